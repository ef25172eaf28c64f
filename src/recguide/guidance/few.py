"""A step of a few requests, solved slot by slot: what `step` finds for many, at less than its arrays cost.

Plans are those of `step.solve`; where increments bring the same per token, another order may be chosen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from recguide.guidance.beliefs import Beliefs
from recguide.guidance.clock import Clock
from recguide.guidance.market import Market
from recguide.guidance.options import Options
from recguide.guidance.view import Branches, Head, Plan, View

FEW = 12
"""Requests up to which this is quicker."""

Open = tuple[int, int, int]
"""(slot, head, block) of a branch."""
_Found = tuple[float, int, float, int, int, Open | None]
"""An increment: (gain per token, query tokens, gain, prefix, request, the branch); without a branch it is the
next slot, or the next step of a hull."""


class _One(NamedTuple):
    """One request, and what things are worth to it; `worth`, `blocks` and what these `cost` by size, and the
    `best` worth."""

    cell: int
    draft: int
    prefix: int
    left: int
    token: float
    worth: list[float]
    blocks: list[int]
    cost: list[float]
    best: float

    def capped(self, at: int, most: int) -> float:
        """What a draft of that size is worth if it can emit no more than `most`."""
        return min(self.worth[at], self.token * most)


def solve_few(
    view: View,
    cell: Sequence[int],
    beliefs: Beliefs,
    market: Market,
    clock: Clock,
    detour_ms: float = 0.0,
    fork_ms: float = 0.0,
) -> Plan:
    """`cell` [R]; any increment at all takes `detour_ms` longer, and any branch of a draft `fork_ms`."""
    found: list[_Found] = []
    items: list[list[int]] = []
    ones = _ones(view, cell, beliefs.options, market)
    for row, one in enumerate(ones):
        if one.draft:
            items.append([])
            found += _in_hand(row, one, view.margins[row].tolist(), view.candidates, beliefs, market)
        else:
            options, steps = _begins(one, beliefs, market)
            items.append(options)
            weight = 1 + market.ratio * one.prefix
            found += [(gain / (n * weight), n, gain, one.prefix, row, None) for n, gain in steps]
    found.sort(key=itemgetter(0), reverse=True)
    taken, opened = [0] * len(ones), list[list[Open]]([] for _ in ones)
    for _, _, _, _, row, what in _chosen(found, view, market, clock, detour_ms, fork_ms):
        if what is None:
            taken[row] += 1
        else:
            opened[row].append(what)
    return _laid_out(ones, items, taken, opened, beliefs.options, market)


def _ones(view: View, cell: Sequence[int], options: Options, market: Market) -> list[_One]:
    blocks = options.blocks.tolist()
    cost = [market.price * block for block in blocks]
    columns = (cell, view.draft.tolist(), view.prefix.tolist(), view.remaining.tolist())
    ones: list[_One] = []
    for facts in zip(*columns, strict=True):
        worth = market.worth[facts[0]].tolist()
        ones.append(_One(*facts, float(market.token[facts[0]]), worth, blocks, cost, max(worth)))
    return ones


def _chosen(
    found: list[_Found], view: View, market: Market, clock: Clock, detour_ms: float, fork_ms: float
) -> list[_Found]:
    """The increments that are taken: with branches, or without any if that is better."""
    best, profit = _best(found, view, market, clock, detour_ms)
    if not fork_ms or all(what is None for *_, what in found[:best]):
        return found[:best]
    bare = [one for one in found if one[-1] is None]
    fewer, without = _best(bare, view, market, clock, detour_ms)
    return found[:best] if profit - market.rate * fork_ms > without else bare[:fewer]


def _best(
    found: Sequence[_Found], view: View, market: Market, clock: Clock, detour_ms: float
) -> tuple[int, float]:
    """How many increments, taken in their order, have the most Y − ρ·T, and that."""
    tokens, pairs, rate = view.tokens + len(view), float(view.pairs + view.prefix.sum()), market.rate
    at_ms, pair_ms, most = clock.at, clock.pair_ms, view.most
    best, at, made = -rate * (at_ms(tokens) + pair_ms * pairs), 0, 0.0
    for number, (_, more, gain, prefix, _, _) in enumerate(found, 1):
        tokens += more
        if tokens > most:
            break
        pairs += more * prefix
        made += gain
        profit = made - rate * (at_ms(tokens) + pair_ms * pairs + detour_ms)
        if profit > best:
            best, at = profit, number
    return at, best


# --- drafts in hand -----------------------------------------------------------------------------------------


def _in_hand(
    row: int, one: _One, margins: list[float], candidates: int, beliefs: Beliefs, market: Market
) -> list[_Found]:
    last, token, prefix = min(one.draft, one.left), one.token, one.prefix
    floor, least = max(market.floor, 1e-9), float(market.least[one.cell])
    weight = 1 + market.ratio * prefix
    found: list[_Found] = []
    branches: list[tuple[int, int, float]] = []
    reached, slots = 1.0, beliefs.slots(one.draft, one.cell, margins[:last])[1:]
    for slot, (failing, alive, right) in enumerate(slots, 1):
        gain = alive * token
        if gain >= floor:
            found.append((gain / weight, 1, gain, prefix, row, None))
        fixed = reached * failing
        if fixed >= least:
            branches += [
                (slot, rank, fixed * chance)
                for rank, chance in enumerate(right[:candidates], 1)
                if fixed * chance >= least
            ]
        reached = alive
    goes_on = reached * beliefs.continuation
    if last == one.draft and goes_on >= least:
        branches.append((last, int(Head.CONTINUATION), goes_on))
    for slot, head, chance in branches:
        block, gain = _branch(one, slot, chance)
        if block:
            found.append((gain / (block * weight), block, gain, prefix, row, (slot, head, block)))
    return found


def _branch(one: _One, slot: int, chance: float) -> tuple[int, float]:
    """The block that brings most, and that; 0 slots if no draft fits."""
    left, blocks, worth = one.left - slot, one.blocks, one.worth
    most = one.token * left
    if most < one.best:
        worth = [min(each, most) for each in worth]
    nets = [each * chance - cost for each, cost in zip(worth, one.cost, strict=True)]
    at = nets.index(max(nets))
    block = blocks[at]
    if block <= left:
        return block, max(0.0, chance * min(worth[at], one.token * block))
    if left < 2:
        return 0, 0.0
    at = min(bisect_left(blocks, left), len(blocks) - 1)
    return left, max(0.0, chance * one.capped(at, left))


# --- requests without a draft -------------------------------------------------------------------------------


def _begins(one: _One, beliefs: Beliefs, market: Market) -> tuple[list[int], list[tuple[int, float]]]:
    """Options along the hull, and the steps between them: (query tokens, gain)."""
    cell = one.cell
    if one.left >= market.enough[cell]:
        begin = market.begin
        steps = zip(begin.tokens[cell].tolist(), begin.gain[cell].tolist(), strict=True)
        return begin.item[cell].tolist(), [(int(tokens), gain) for tokens, gain in steps if tokens]
    hull = _hull(list(_offers(one, beliefs, market)))
    steps = zip(hull[1:], hull, strict=False)
    return [item for _, _, item in hull], [(n - m, y - z) for (n, y, _), (m, z, _) in steps]


def _offers(one: _One, beliefs: Beliefs, market: Market) -> Iterator[tuple[int, float, int]]:
    """(query tokens, gain, option) of those that fit, query tokens rising."""
    head = float(market.head[one.cell])
    for item, (block, branch) in enumerate(beliefs.options.pairs):
        if not block and not branch:
            yield 1, one.token, item
        elif one.left >= (2 if block else 3):
            worth = one.capped(bisect_left(one.blocks, block or branch), one.left)
            yield (block, worth, item) if block else (1 + branch, one.token + head * worth, item)


def _hull(offers: Sequence[tuple[int, float, int]]) -> list[tuple[int, float, int]]:
    hull = [offers[0]]
    for offer in offers[1:]:
        while len(hull) > 1 and _slope(hull[-1], offer) > _slope(hull[-2], hull[-1]):
            hull.pop()
        if offer[1] > hull[-1][1]:
            hull.append(offer)
    return hull


def _slope(one: tuple[int, float, int], other: tuple[int, float, int]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])


# --- the plan -----------------------------------------------------------------------------------------------


def _laid_out(
    ones: Sequence[_One],
    items: Sequence[Sequence[int]],
    taken: Sequence[int],
    opened: Sequence[list[Open]],
    options: Options,
    market: Market,
) -> Plan:
    blocks, verified = list[int](), list[int]()
    branches: list[tuple[int, int, int, int]] = []
    for row, one in enumerate(ones):
        if one.draft:
            slots = 1 + taken[row]
            blocks.append(0)
            verified.append(slots)
            # A branch needs the decision before its slot, a continuation all of them.
            branches += [(row, *branch) for branch in sorted(opened[row]) if branch[0] <= slots]
            continue
        block, branch = options.pairs[items[row][taken[row]]]
        blocks.append(min(block, one.left))
        verified.append(0 if block else 1)
        going = min(branch, one.left - 1)
        if going >= 2:
            branches.append((row, 1, int(Head.CONTINUATION), going))
    opens = Branches(*np.array(branches, np.int64).T) if branches else Branches.none()
    return Plan(np.array(blocks, np.int64), np.array(verified, np.int64), opens, market.price, market.rate)
