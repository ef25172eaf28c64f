"""A step of a few requests, solved slot by slot: what arrays find for many, at less than they cost.

Plans are those of `step`, and of `foresight` behind a step that still runs. Where increments bring the same
per token, another order may be chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from recguide.guidance.beliefs import Beliefs
from recguide.guidance.clock import Clock
from recguide.guidance.market import Market
from recguide.guidance.options import Options
from recguide.guidance.quote import Quote
from recguide.guidance.view import Branches, Head, Plan, View

_CONTINUATION = int(Head.CONTINUATION)
"""Looked up once: an enumeration answers slowly."""

Open = tuple[int, int, int]
"""(slot, head, block) of a branch."""
_Found = tuple[float, int, float, int, int, Open | None]
"""An increment: (gain per token, query tokens, gain, prefix, request, the branch); without a branch it is the
next slot, or the next step of a hull."""


class _One(NamedTuple):
    """One request, and what things are worth to it."""

    cell: int
    draft: int
    prefix: int
    left: int
    quote: Quote


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
    ones = _ones(view, cell, market)
    for row, one in enumerate(ones):
        if one.draft:
            items.append([])
            found += _in_hand(row, one, view.margins[row].tolist(), view.candidates, beliefs, market)
        else:
            options, steps = one.quote.begin_near(one.left)
            items.append(options)
            found += _increments(steps, one.prefix, row, market.ratio)
    found.sort(key=itemgetter(0), reverse=True)
    taken, opened = [0] * len(ones), list[list[Open]]([] for _ in ones)
    base = _Base(view.tokens + len(ones), view.pairs + sum([one.prefix for one in ones]), view.most)
    for _, _, _, _, row, what in _chosen(found, base, market.rate, clock, detour_ms, fork_ms):
        if what is None:
            taken[row] += 1
        else:
            opened[row].append(what)
    return _laid_out(ones, items, taken, opened, beliefs.options, market)


def solve_ahead_few(
    view: View,
    cell: Sequence[int],
    beliefs: Beliefs,
    market: Market,
    clock: Clock,
    detour_ms: float = 0.0,
) -> Plan:
    """Of a view that is blind; arguments as for `solve_few`."""
    found: list[_Found] = []
    items: list[list[int]] = []
    tokens, pairs, lefts, verified = view.tokens, view.pairs, view.remaining.tolist(), list[int]()
    columns = (cell, view.draft.tolist(), view.prefix.tolist(), lefts, view.verifying.tolist())
    for row, (place, draft, prefix, left, verifying) in enumerate(zip(*columns, strict=True)):
        verified.append(min(draft, left) or 1)
        tokens += verified[row]
        pairs += verified[row] * prefix
        if draft:
            items.append([0])
            continue
        token, worth = _behind(view, row, place, verifying, beliefs, market)
        options, steps = beliefs.options.hull(token, 0.0, worth, left)
        items.append(options)
        found += _increments(steps, prefix, row, market.ratio)
    found.sort(key=itemgetter(0), reverse=True)
    taken = [0] * len(items)
    base = _Base(tokens, pairs, view.most)
    for _, _, _, _, row, _ in found[: _best(found, base, market.rate, clock, detour_ms)[0]]:
        taken[row] += 1
    begun = [beliefs.options.pairs[mine[number]][0] for mine, number in zip(items, taken, strict=True)]
    block = [min(size, left) for size, left in zip(begun, lefts, strict=True)]
    verified = [0 if size else slots for size, slots in zip(block, verified, strict=True)]
    return market.plan(np.array(block, np.int64), np.array(verified, np.int64))


def _increments(steps: Iterable[tuple[int, float]], prefix: int, row: int, ratio: float) -> list[_Found]:
    """Of a request that begins anew, along its hull."""
    weight = 1 + ratio * prefix
    return [(gain / (n * weight), n, gain, prefix, row, None) for n, gain in steps]


def _behind(
    view: View, row: int, cell: int, verifying: int, beliefs: Beliefs, market: Market
) -> tuple[float, Sequence[float]]:
    """What a token and drafts will be worth to a request, in the mean over whether the block passes that it
    verifies."""
    if not verifying:
        quote = market.quote(cell)
        return quote.token, quote.worth
    signals = view.signals[row].tolist()
    passing = beliefs.slots(verifying, cell, view.margins[row, :verifying].tolist())[-1][1]
    whole, part = (market.quote(beliefs.cell_of(signals, verifying, full)) for full in (True, False))
    worth = [passing * a + (1 - passing) * b for a, b in zip(whole.worth, part.worth, strict=True)]
    return passing * whole.token + (1 - passing) * part.token, worth


def _ones(view: View, cell: Sequence[int], market: Market) -> list[_One]:
    columns = (cell, view.draft.tolist(), view.prefix.tolist(), view.remaining.tolist())
    return [_One(*facts, market.quote(facts[0])) for facts in zip(*columns, strict=True)]


# --- increments ---------------------------------------------------------------------------------------------


class _Base(NamedTuple):
    """Query tokens, and query × prefix tokens, before any increment; `most` tokens there may be."""

    tokens: int
    pairs: int
    most: int


def _chosen(
    found: list[_Found], base: _Base, rate: float, clock: Clock, detour_ms: float, fork_ms: float
) -> list[_Found]:
    """The increments that are taken: with branches, or without any if that is better."""
    best, profit = _best(found, base, rate, clock, detour_ms)
    if not fork_ms or all(what is None for *_, what in found[:best]):
        return found[:best]
    bare = [one for one in found if one[-1] is None]
    fewer, without = _best(bare, base, rate, clock, detour_ms)
    return found[:best] if profit - rate * fork_ms > without else bare[:fewer]


def _best(
    found: Sequence[_Found], base: _Base, rate: float, clock: Clock, detour_ms: float
) -> tuple[int, float]:
    """How many increments, taken in their order, have the most Y − ρ·T, and that."""
    tokens, pairs, most = base
    known, pair_ms, last = clock.known, clock.pair_ms, len(clock.known)
    best, at, made = -rate * (clock.at(tokens) + pair_ms * pairs), 0, 0.0
    for number, (_, more, gain, prefix, _, _) in enumerate(found, 1):
        tokens += more
        if tokens > most:
            break
        pairs += more * prefix
        made += gain
        ms = known[tokens] if tokens < last else clock.at(tokens)
        profit = made - rate * (ms + pair_ms * pairs + detour_ms)
        if profit > best:
            best, at = profit, number
    return at, best


# --- drafts in hand -----------------------------------------------------------------------------------------


def _in_hand(
    row: int, one: _One, margins: list[float], candidates: int, beliefs: Beliefs, market: Market
) -> list[_Found]:
    quote, left, prefix = one.quote, one.left, one.prefix
    last, token, least = min(one.draft, left), quote.token, quote.least
    floor, weight = max(market.floor, 1e-9), 1 + market.ratio * prefix
    found: list[_Found] = []
    branches: list[tuple[int, int, float]] = []
    reached = 1.0
    for slot, (failing, alive, right) in enumerate(beliefs.slots(one.draft, one.cell, margins[:last])):
        if not slot:
            continue
        gain = alive * token
        if gain >= floor:
            found.append((gain / weight, 1, gain, prefix, row, None))
        fixed = reached * failing
        if fixed >= least:
            for rank, chance in enumerate(right[:candidates], 1):
                if fixed * chance >= least:
                    branches.append((slot, rank, fixed * chance))
        reached = alive
    goes_on = reached * beliefs.continuation
    if last == one.draft and goes_on >= least:
        branches.append((last, _CONTINUATION, goes_on))
    branch = quote.branch if left - last < quote.far else quote.far_branch
    for slot, head, chance in branches:
        block, gain = branch(chance, left - slot)
        if block:
            found.append((gain / (block * weight), block, gain, prefix, row, (slot, head, block)))
    return found


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
            branches.append((row, 1, _CONTINUATION, going))
    opens = Branches(*np.array(branches, np.int64).T) if branches else None
    return market.plan(np.array(blocks, np.int64), np.array(verified, np.int64), opens)
