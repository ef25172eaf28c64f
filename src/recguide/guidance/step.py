"""One step's exact solution: which drafts begin, how far those in hand are verified, which branches open.

Everything a step may add brings some tokens, now or by what a draft in hand will be worth, and costs query
tokens. Increments are taken in the order of what they bring per token, up to the most (gain − ρ·T). Where T
is straight that opens a branch iff q·(g + μB) ≥ μ·b, and verifies a slot iff it is emitted with probability
μ at least; where it is not, finite differences of T decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.beliefs import Beliefs, InHand
from recguide.guidance.hull import Hulls, hulls
from recguide.guidance.sweep import Base, Increments, Time, best_profit
from recguide.guidance.view import Branches, Head, Plan, View


@dataclass(frozen=True, slots=True)
class Market:
    """What one more query token costs now, and what things are worth at that price.

    Attributes:
        price, rate: μ, ρ.
        floor: what a query token costs where it is cheapest in this step; what brings less is not looked at.
        worth: block → [cells] of a draft in hand.
        time: T(N, X) of this step.
        weight: prefix → what a query token over it costs, relative to one without.
    """

    price: float
    rate: float
    floor: float
    worth: Mapping[int, Floats]
    time: Time
    weight: Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class _Beginnings:
    """What requests without a draft may do: hulls of AR, AR with a continuation, drafts.

    Attributes:
        rows: [F] which requests.
        block, verified, branch: [items] of each item: draft's block, slots of the causal row, continuation's
            block; capped by what a request may still emit when it is laid out.
    """

    rows: Ints
    hulls: Hulls
    block: Ints
    verified: Ints
    branch: Ints


@dataclass(frozen=True, slots=True)
class _Additions:
    """[I] each."""

    request: Ints
    tokens: Floats
    gain: Floats


def solve(view: View, cell: Ints, hand: InHand, beliefs: Beliefs, market: Market) -> Plan:
    worth = np.stack([market.worth[block][cell] for block in sorted(market.worth)], axis=1)  # [R, blocks]
    blocks = np.array(sorted(market.worth))
    begin = _beginnings(view, cell, beliefs, worth, blocks)
    branches, chances = _candidates(view, hand, beliefs, worth, blocks, market)
    parts = (_steps(begin), _slots(hand, market.floor), _branch_gains(branches, chances, worth, blocks))
    request, tokens, gain = (
        np.concatenate([getattr(part, name) for part in parts]) for name in _Additions.__slots__
    )
    prefix = view.prefix[request].astype(np.float64)
    increments = Increments(tokens, gain, prefix, market.weight(prefix))
    chosen = best_profit(base_of(view), increments, market.time, market.rate)
    steps, slots, opened = np.split(chosen, np.cumsum([len(part.request) for part in parts])[:-1])
    taken = np.bincount(parts[0].request[steps], minlength=len(view))
    verified = 1 + np.bincount(parts[1].request[slots], minlength=len(view))
    return _laid_out(view, begin, taken, verified, branches.only(opened), market)


def base_of(view: View) -> Base:
    """Every request's first slot, which always emits a token or begins a draft."""
    read = float(view.pairs + view.prefix.sum())
    return Base(float(view.tokens + len(view)), read, float(len(view)))


# --- requests without a draft -------------------------------------------------------------------------------


def _beginnings(view: View, cell: Ints, beliefs: Beliefs, worth: Floats, blocks: Ints) -> _Beginnings:
    rows = np.flatnonzero(view.draft == 0)
    remaining = view.remaining[rows, None]
    mine = worth[rows]
    head = beliefs.menus.head[cell[rows], None]
    one = np.ones((len(rows), 1))
    tokens = np.concatenate([one, one * blocks, one * (1 + blocks)], axis=1)
    # A block that reaches past the cap is cut there; one slot is no draft.
    draft = np.where(remaining >= 2, np.minimum(mine, remaining), -np.inf)
    after = np.where(remaining >= 3, 1 + head * np.minimum(mine, remaining), -np.inf)
    gain = np.concatenate([one, draft, after], axis=1)
    none = np.zeros(len(blocks), np.int64)
    return _Beginnings(
        rows,
        hulls(tokens, gain),
        block=np.concatenate([[0], blocks, none]),
        verified=np.concatenate([[1], none, none + 1]),
        branch=np.concatenate([[0], none, blocks]),
    )


def _steps(begin: _Beginnings) -> _Additions:
    there = begin.hulls.tokens > 0
    request = np.broadcast_to(begin.rows[:, None], there.shape)[there]
    return _Additions(request, begin.hulls.tokens[there], begin.hulls.gain[there])


# --- drafts in hand -----------------------------------------------------------------------------------------


def _slots(hand: InHand, floor: float) -> _Additions:
    """Slots 1, 2, … of the causal row: each is emitted with a probability that falls along the block."""
    at, slot = np.nonzero(hand.alive[:, 1:] >= max(floor, 1e-9))
    return _Additions(hand.rows[at], np.ones(len(at)), hand.alive[at, slot + 1])


def _candidates(
    view: View, hand: InHand, beliefs: Beliefs, worth: Floats, blocks: Ints, market: Market
) -> tuple[Branches, Floats]:
    """Branches that may pay, and their probabilities of reuse."""
    found: list[tuple[Ints, Ints, int, Floats]] = []
    if len(hand.rows):
        best = (worth[hand.rows] / blocks).max(1, keepdims=True)
        before = np.concatenate([np.zeros((len(hand.rows), 1)), hand.alive[:, :-1]], axis=1)
        last = np.minimum(view.draft, view.remaining)[hand.rows]
        fixed = before * hand.failing * (np.arange(before.shape[1]) < last[:, None])
        for rank in range(1, view.candidates + 1):
            chance = fixed * beliefs.candidate(rank, hand.place)
            found.append(_worthwhile(chance, rank, hand, best, market.floor))
        whole = hand.alive[np.arange(len(last)), last - 1] * beliefs.continuation
        going = np.zeros((len(last), int(last.max()) + 1))
        going[np.arange(len(last)), last] = whole * (last == view.draft[hand.rows])
        found.append(_worthwhile(going, Head.CONTINUATION, hand, best, market.floor))
    if not found:
        return Branches.none(), np.zeros(0)
    request = np.concatenate([rows for rows, _, _, _ in found])
    slot = np.concatenate([slots for _, slots, _, _ in found])
    head = np.concatenate([np.full(len(rows), number) for rows, _, number, _ in found])
    chances = np.concatenate([chance for _, _, _, chance in found])
    net = np.minimum(worth[request], (view.remaining[request] - slot)[:, None]) * chances[:, None]
    block = blocks[(net - market.price * blocks).argmax(1)]
    block = np.minimum(block, view.remaining[request] - slot)
    kept = block >= 2
    order = np.lexsort((slot[kept], request[kept]))
    parts = (request[kept][order], slot[kept][order], head[kept][order], block[kept][order])
    return Branches(*parts), chances[kept][order]


def _worthwhile(
    chance: Floats, head: int, hand: InHand, best: Floats, floor: float
) -> tuple[Ints, Ints, int, Floats]:
    """(requests, slots, head, chances) of those that may pay; `best` [D, 1]: a draft's worth per slot."""
    at, slot = np.nonzero((chance * best >= floor) & (chance > 0))
    return hand.rows[at], slot, head, chance[at, slot]


def _branch_gains(branches: Branches, chances: Floats, worth: Floats, blocks: Ints) -> _Additions:
    at = np.minimum(np.searchsorted(blocks, branches.block), len(blocks) - 1)
    saved = np.minimum(worth[branches.request, at], branches.block)
    return _Additions(branches.request, branches.block.astype(np.float64), np.maximum(0.0, chances * saved))


# --- the plan -----------------------------------------------------------------------------------------------


def _laid_out(
    view: View, begin: _Beginnings, taken: Ints, verified: Ints, branches: Branches, market: Market
) -> Plan:
    item = begin.hulls.item[np.arange(len(begin.rows)), taken[begin.rows]]
    block = np.zeros(len(view), np.int64)
    block[begin.rows] = np.minimum(begin.block[item], view.remaining[begin.rows])
    verified = verified.astype(np.int64)
    verified[begin.rows] = begin.verified[item]
    going = np.minimum(begin.branch[item], view.remaining[begin.rows] - 1)
    on = going >= 2
    ones = np.ones(int(on.sum()), np.int64)
    extra = Branches(begin.rows[on], ones, Head.CONTINUATION * ones, going[on])
    # A branch needs the decision before its slot, a continuation all of them.
    fits = branches.slot <= verified[branches.request]
    return Plan(block, verified, _merged(branches.only(fits), extra), market.price, market.rate)


def _merged(one: Branches, other: Branches) -> Branches:
    parts = {name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in Branches.__slots__}
    order = np.argsort(parts["request"], kind="stable")
    return Branches(**{name: values[order] for name, values in parts.items()})
