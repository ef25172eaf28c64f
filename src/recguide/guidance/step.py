"""One step's exact solution: which drafts begin, how far those in hand are verified, which branches open.

Everything a step may add brings some tokens, now or by what a draft in hand will be worth, and costs query
tokens. Increments are taken in the order of what they bring per token, up to the most (gain − ρ·T). Where T
is straight that opens a branch iff q·(g + μB) ≥ μ·b, and verifies a slot iff it is emitted with probability
μ at least; where it is not, finite differences of T decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide.core import MAX_BLOCK
from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.beliefs import Beliefs, InHand
from recguide.guidance.hull import Hulls, places
from recguide.guidance.market import Market, base_of
from recguide.guidance.options import Options
from recguide.guidance.sweep import Increments, Time, best_profit
from recguide.guidance.view import Branches, Head, Plan, View


@dataclass(frozen=True, slots=True)
class _Values:
    """What things are worth to each of R requests.

    Attributes:
        cell: [R]
        token: [R] of a token emitted now.
        blocks: [blocks] sizes that a draft may have, rising.
        draft: [R, blocks] of a draft in hand, against none.
    """

    cell: Ints
    token: Floats
    blocks: Ints
    draft: Floats

    def capped(self, request: Ints, most: Ints) -> Floats:
        """[I, blocks] of drafts that can emit no more than `most` [I]."""
        return np.minimum(self.draft[request], (self.token[request] * most)[:, None])


@dataclass(frozen=True, slots=True)
class _Beginnings:
    """What requests without a draft may do: the hulls of the options of those `rows` [F]."""

    rows: Ints
    hulls: Hulls


@dataclass(frozen=True, slots=True)
class _Additions:
    """[I] each."""

    request: Ints
    tokens: Floats
    gain: Floats


def solve(view: View, cell: Ints, hand: InHand, beliefs: Beliefs, market: Market, time: Time) -> Plan:
    """`time`: T(N, X) of this step."""
    values = _Values(cell, market.token[cell], beliefs.options.blocks, market.worth[cell])
    begin = _beginnings(view, beliefs, values, market)
    branches, chances = _candidates(view, hand, beliefs, values, market)
    parts = (_steps(begin), _slots(hand, values, market.floor), _branch_gains(branches, chances, values))
    request, tokens, gain = (
        np.concatenate([getattr(part, name) for part in parts]) for name in _Additions.__slots__
    )
    prefix = view.prefix[request].astype(np.float64)
    increments = Increments(tokens, gain, prefix, market.weight(prefix))
    chosen = best_profit(base_of(view), increments, time, market.rate)
    behind = len(parts[0].request), len(parts[0].request) + len(parts[1].request)
    steps, slots, opened = chosen[: behind[0]], chosen[behind[0] : behind[1]], chosen[behind[1] :]
    taken = np.bincount(parts[0].request[steps], minlength=len(view))
    verified = 1 + np.bincount(parts[1].request[slots], minlength=len(view))
    return _laid_out(view, begin, beliefs.options, taken, verified, branches.only(opened), market)


# --- requests without a draft -------------------------------------------------------------------------------


def _beginnings(view: View, beliefs: Beliefs, values: _Values, market: Market) -> _Beginnings:
    free = np.flatnonzero(view.draft == 0)
    cell, remaining = values.cell[free], view.remaining[free]
    begin = market.begin.of(cell)
    near = np.flatnonzero(remaining < market.enough[cell])
    if len(near):
        capped = values.capped(free[near], remaining[near])
        head = beliefs.menus.head[cell[near]]
        cut = beliefs.options.hulls(values.token[free[near]], head, capped, remaining[near])
        begin = begin.with_rows(near, cut)
    return _Beginnings(free, begin)


def _steps(begin: _Beginnings) -> _Additions:
    at, step = places(begin.hulls.tokens > 0)
    return _Additions(begin.rows[at], begin.hulls.tokens[at, step], begin.hulls.gain[at, step])


# --- drafts in hand -----------------------------------------------------------------------------------------


def _slots(hand: InHand, values: _Values, floor: float) -> _Additions:
    """Slots 1, 2, … of the causal row: each is emitted with a probability that falls along the block."""
    gain = hand.alive[:, 1:] * values.token[hand.rows, None]
    at, slot = places(gain >= max(floor, 1e-9))
    return _Additions(hand.rows[at], np.ones(len(at)), gain[at, slot])


def _candidates(
    view: View, hand: InHand, beliefs: Beliefs, values: _Values, market: Market
) -> tuple[Branches, Floats]:
    """Branches that may pay, and their probabilities of reuse."""
    if not len(hand.rows):
        return Branches.none(), np.zeros(0)
    draft = view.draft[hand.rows]
    last = np.minimum(draft, view.remaining[hand.rows])
    least = market.least[values.cell[hand.rows]]
    found = [_continuations(hand, draft, last, beliefs.continuation, least)]
    fixed = np.zeros_like(hand.alive)
    np.multiply(hand.alive[:, :-1], hand.failing[:, 1:], out=fixed[:, 1:])
    fixed *= np.arange(fixed.shape[1]) < last[:, None]
    for rank in range(1, view.candidates + 1):
        chance = fixed * beliefs.candidate(rank, hand.place)
        at, slot = places(chance >= least[:, None])
        found.append((at, slot, np.full(len(at), rank), chance[at, slot]))
    at, slot, head, chances = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if not len(at):
        return Branches.none(), chances
    order = np.argsort(at * (MAX_BLOCK + 1) + slot, kind="stable")
    request, slot, head, chances = hand.rows[at[order]], slot[order], head[order], chances[order]
    left = view.remaining[request] - slot
    net = values.capped(request, left) * chances[:, None] - market.price * values.blocks
    block = np.minimum(values.blocks[net.argmax(1)], left)
    kept = block >= 2
    return Branches(request, slot, head, block).only(kept), chances[kept]


def _continuations(
    hand: InHand, draft: Ints, last: Ints, right: float, least: Floats
) -> tuple[Ints, Ints, Ints, Floats]:
    """(index into hand.rows, slot, head, chance) of those that may pay, behind drafts that are not cut."""
    chance = hand.alive[np.arange(len(last)), last - 1] * right
    at = np.flatnonzero((chance >= least) & (last == draft))
    return at, last[at], np.full(len(at), int(Head.CONTINUATION)), chance[at]


def _branch_gains(branches: Branches, chances: Floats, values: _Values) -> _Additions:
    at = np.minimum(np.searchsorted(values.blocks, branches.block), len(values.blocks) - 1)
    saved = values.capped(branches.request, branches.block)[np.arange(len(at)), at]
    return _Additions(branches.request, branches.block.astype(np.float64), np.maximum(0.0, chances * saved))


# --- the plan -----------------------------------------------------------------------------------------------


def _laid_out(
    view: View,
    begin: _Beginnings,
    options: Options,
    taken: Ints,
    verified: Ints,
    branches: Branches,
    market: Market,
) -> Plan:
    item = begin.hulls.item[np.arange(len(begin.rows)), taken[begin.rows]]
    block = np.zeros(len(view), np.int64)
    block[begin.rows] = np.minimum(options.block[item], view.remaining[begin.rows])
    verified = verified.astype(np.int64)
    verified[begin.rows] = options.verified[item]
    going = np.minimum(options.branch[item], view.remaining[begin.rows] - 1)
    on = (options.branch[item] > 0) & (going >= 2)
    # A branch needs the decision before its slot, a continuation all of them.
    fits = branches.only(branches.slot <= verified[branches.request])
    if not on.any():
        return Plan(block, verified, fits, market.price, market.rate)
    ones = np.ones(int(on.sum()), np.int64)
    extra = Branches(begin.rows[on], ones, Head.CONTINUATION * ones, going[on])
    return Plan(block, verified, _merged(fits, extra), market.price, market.rate)


def _merged(one: Branches, other: Branches) -> Branches:
    parts = {name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in Branches.__slots__}
    order = np.argsort(parts["request"], kind="stable")
    return Branches(**{name: values[order] for name, values in parts.items()})
