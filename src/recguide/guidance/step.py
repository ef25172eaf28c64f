"""One step's exact solution: which drafts begin, how far those in hand are verified, which branches open.

Everything a step may add brings some tokens, now or by what a draft in hand will be worth, and costs query
tokens. Increments are taken in the order of what they bring per token, up to the most (gain − ρ·T). Where T
is straight that opens a branch iff q·(g + μB) ≥ μ·b, and verifies a slot iff it is emitted with probability
μ at least; where it is not, finite differences of T decide.
"""

from __future__ import annotations

from collections.abc import Callable
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
        token: [R] what a token emitted now counts.
        worth: [R, blocks] of a draft in hand, against none, by the table's blocks.
        time: T(N, X) of this step.
        weight: prefix → what a query token over it costs, relative to one without.
    """

    price: float
    rate: float
    floor: float
    token: Floats
    worth: Floats
    time: Time
    weight: Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class _Values:
    """What things are worth to each of R requests.

    Attributes:
        token: [R] of a token emitted now.
        blocks: [blocks] sizes that a draft may have, rising.
        draft: [R, blocks] of a draft in hand, against none.
    """

    token: Floats
    blocks: Ints
    draft: Floats

    def capped(self, request: Ints, most: Ints) -> Floats:
        """[I, blocks] of drafts that can emit no more than `most` [I]."""
        return np.minimum(self.draft[request], (self.token[request] * most)[:, None])


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
    values = _Values(market.token, np.array(beliefs.table.blocks), market.worth)
    begin = _beginnings(view, cell, beliefs.menus.head[cell], values)
    branches, chances = _candidates(view, hand, beliefs, values, market)
    parts = (_steps(begin), _slots(hand, values, market.floor), _branch_gains(branches, chances, values))
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


def _beginnings(view: View, cell: Ints, head: Floats, values: _Values) -> _Beginnings:
    free = np.flatnonzero(view.draft == 0)
    blocks, beyond = values.blocks, int(values.blocks[-1]) + 1
    # Requests of one cell that no block takes to their cap have one menu.
    room = np.minimum(view.remaining[free], beyond)
    _, first, menu = np.unique(cell[free] * (beyond + 1) + room, return_index=True, return_inverse=True)
    rows, remaining = free[first], room[first]
    one = np.ones((len(rows), 1))
    tokens = np.concatenate([one, one * blocks, one * (1 + blocks)], axis=1)
    step, draft = values.token[rows, None], values.capped(rows, remaining)
    after = step + head[rows, None] * draft
    # A block that reaches past the cap is cut there; one slot is no draft.
    gain = np.concatenate(
        [
            step,
            np.where(remaining[:, None] >= 2, draft, -np.inf),
            np.where(remaining[:, None] >= 3, after, -np.inf),
        ],
        axis=1,
    )
    none = np.zeros(len(blocks), np.int64)
    return _Beginnings(
        free,
        hulls(tokens, gain).of(menu),
        block=np.concatenate([[0], blocks, none]),
        verified=np.concatenate([[1], none, none + 1]),
        branch=np.concatenate([[0], none, blocks]),
    )


def _steps(begin: _Beginnings) -> _Additions:
    there = begin.hulls.tokens > 0
    request = np.broadcast_to(begin.rows[:, None], there.shape)[there]
    return _Additions(request, begin.hulls.tokens[there], begin.hulls.gain[there])


# --- drafts in hand -----------------------------------------------------------------------------------------


def _slots(hand: InHand, values: _Values, floor: float) -> _Additions:
    """Slots 1, 2, … of the causal row: each is emitted with a probability that falls along the block."""
    gain = hand.alive[:, 1:] * values.token[hand.rows, None]
    at, slot = np.nonzero(gain >= max(floor, 1e-9))
    return _Additions(hand.rows[at], np.ones(len(at)), gain[at, slot])


def _candidates(
    view: View, hand: InHand, beliefs: Beliefs, values: _Values, market: Market
) -> tuple[Branches, Floats]:
    """Branches that may pay, and their probabilities of reuse."""
    found: list[tuple[Ints, Ints, int, Floats]] = []
    if len(hand.rows):
        best = (values.draft[hand.rows] / values.blocks).max(1, keepdims=True)
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
    left = view.remaining[request] - slot
    net = values.capped(request, left) * chances[:, None] - market.price * values.blocks
    block = np.minimum(values.blocks[net.argmax(1)], left)
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


def _branch_gains(branches: Branches, chances: Floats, values: _Values) -> _Additions:
    at = np.minimum(np.searchsorted(values.blocks, branches.block), len(values.blocks) - 1)
    saved = values.capped(branches.request, branches.block)[np.arange(len(at)), at]
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
