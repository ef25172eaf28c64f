"""One step's exact solution: which drafts begin, how far those in hand are verified, which branches open.

Everything a step may add brings some tokens, now or by what a draft in hand will be worth, and costs query
tokens. Increments are taken in the order of what they bring per token, up to the most (gain − ρ·T). Where T
is straight that opens a branch iff q·(g + μB) ≥ μ·b, and verifies a slot iff it is emitted with probability
μ at least; where it is not, finite differences of T decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide.guidance.arrays import Bools, Floats, Ints
from recguide.guidance.beliefs import Beliefs, InHand
from recguide.guidance.hull import Hulls, places, spots
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
        return np.minimum(self.draft.take(request, axis=0), (self.token.take(request) * most)[:, None])


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
    blocks = beliefs.options.blocks
    values = _Values(cell, market.token.take(cell), blocks, market.worth.take(cell, axis=0))
    begin = _beginnings(view, beliefs, values, market)
    branches, chances = _candidates(view, hand, beliefs, values, market)
    parts = (_steps(begin), _slots(hand, values, market.floor), _branch_gains(branches, chances, values))
    request = np.concatenate([part.request for part in parts])
    tokens = np.concatenate([part.tokens for part in parts])
    gain = np.concatenate([part.gain for part in parts])
    prefix = view.prefix.take(request).astype(np.float64)
    increments = Increments(tokens, gain, prefix, market.weight(prefix))
    chosen = best_profit(base_of(view), increments, time, market.rate)
    behind = len(parts[0].request), len(parts[0].request) + len(parts[1].request)
    steps, slots, opened = chosen[: behind[0]], chosen[behind[0] : behind[1]], chosen[behind[1] :]
    taken = np.bincount(parts[0].request[steps], minlength=len(view))
    verified = 1 + np.bincount(parts[1].request[slots], minlength=len(view))
    return _laid_out(view, begin, beliefs.options, taken, verified, branches.only(opened), market)


# --- requests without a draft -------------------------------------------------------------------------------


def _beginnings(view: View, beliefs: Beliefs, values: _Values, market: Market) -> _Beginnings:
    free = (view.draft == 0).nonzero()[0]
    cell, remaining = values.cell.take(free), view.remaining.take(free)
    begin = market.begin.of(cell)
    near = (remaining < market.enough.take(cell)).nonzero()[0]
    if len(near):
        capped = values.capped(free[near], remaining[near])
        head = market.head[cell[near]]
        cut = beliefs.options.hulls(values.token[free[near]], head, capped, remaining[near])
        begin.put(near, cut)
    return _Beginnings(free, begin)


def _steps(begin: _Beginnings) -> _Additions:
    spot, at = spots(begin.hulls.tokens > 0)
    return _Additions(begin.rows.take(at), begin.hulls.tokens.take(spot), begin.hulls.gain.take(spot))


# --- drafts in hand -----------------------------------------------------------------------------------------


def _slots(hand: InHand, values: _Values, floor: float) -> _Additions:
    """Slots 1, 2, … of the causal row: each is emitted with a probability that falls along the block."""
    gain = hand.alive * values.token.take(hand.rows)[:, None]
    gain[:, 0] = 0.0
    spot, at = spots(gain >= max(floor, 1e-9))
    return _Additions(hand.rows.take(at), np.ones(len(at)), gain.take(spot))


def _candidates(
    view: View, hand: InHand, beliefs: Beliefs, values: _Values, market: Market
) -> tuple[Branches, Floats]:
    """Branches that may pay, and their probabilities of reuse."""
    if not len(hand.rows):
        return Branches.none(), np.zeros(0)
    last = np.minimum(view.draft.take(hand.rows), view.remaining.take(hand.rows))
    least = market.least.take(values.cell.take(hand.rows))
    place = _places_of_branches(view, hand, last, beliefs.continuation)
    spot, at = spots(place >= least[:, None])
    slot = spot - at * place.shape[1] + 1
    goes_on = slot == last.take(at)
    chance = place.take(spot)[:, None] * _right(hand, beliefs, view.candidates, at, slot, goes_on)
    found, rank = places(chance >= least.take(at)[:, None])
    if not len(found):
        return Branches.none(), np.zeros(0)
    request, slot, chances = hand.rows.take(at.take(found)), slot.take(found), chance[found, rank]
    left = view.remaining.take(request) - slot
    net = values.capped(request, left) * chances[:, None] - market.price * values.blocks
    block = np.minimum(values.blocks.take(net.argmax(1)), left)
    head = (rank + 1) * ~goes_on.take(found)  # a continuation's is 0
    branches, kept = Branches(request, slot, head, block), block >= 2
    return (branches, chances) if kept.all() else (branches.only(kept), chances[kept])


def _places_of_branches(view: View, hand: InHand, last: Ints, goes_on: float) -> Floats:
    """[D, W] probability that the first mismatch is at slot 1, 2, …, and at the end of a draft that is not
    cut that all of it passes and a continuation goes on."""
    alive, failing = hand.alive.ravel(), hand.failing.ravel()
    found = np.zeros(alive.shape)
    np.multiply(alive[:-1], failing[1:], out=found[:-1])  # 0 at a row's end: no slot 0 fails
    end = last - 1
    end += np.arange(0, len(found), hand.alive.shape[1])
    found[end] = alive.take(end) * (goes_on * (last == view.draft.take(hand.rows)))
    return found.reshape(hand.alive.shape)


def _right(hand: InHand, beliefs: Beliefs, ranks: int, at: Ints, slot: Ints, goes_on: Bools) -> Floats:
    """[I, ranks] probability that what a branch tries there is the verifier's token, given its place."""
    place = hand.place[at, np.minimum(slot, hand.place.shape[1] - 1)]
    right = beliefs.candidates(ranks, place)
    right[goes_on] = np.arange(ranks) == 0
    return right


def _branch_gains(branches: Branches, chances: Floats, values: _Values) -> _Additions:
    at = np.minimum(values.blocks.searchsorted(branches.block), len(values.blocks) - 1)
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
    item = begin.hulls.item[np.arange(len(begin.rows)), taken.take(begin.rows)]
    remaining = view.remaining.take(begin.rows)
    block = np.zeros(len(view), np.int64)
    block[begin.rows] = np.minimum(options.block.take(item), remaining)
    verified = verified.astype(np.int64)
    verified[begin.rows] = options.verified.take(item)
    # A branch needs the decision before its slot, a continuation all of them.
    fitting = branches.slot <= verified.take(branches.request)
    fits = branches if fitting.all() else branches.only(fitting)
    # 0 or less where there is no branch, or no room.
    going = np.minimum(options.branch.take(item), remaining - 1)
    on = (going >= 2).nonzero()[0]
    if len(on):
        ones = np.ones(len(on), np.int64)
        fits = _merged(fits, Branches(begin.rows[on], ones, Head.CONTINUATION * ones, going[on]))
    return market.plan(block, verified, fits)


def _merged(one: Branches, other: Branches) -> Branches:
    """Of different requests."""
    if not len(one.request):
        return other
    request = np.concatenate([one.request, other.request])
    order = np.argsort(request, kind="stable")
    slot, head, block = (
        np.concatenate(parts)[order]
        for parts in ((one.slot, other.slot), (one.head, other.head), (one.block, other.block))
    )
    return Branches(request[order], slot, head, block)
