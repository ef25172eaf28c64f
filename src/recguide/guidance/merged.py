"""The hulls of all cells' menus, merged once: a step then only counts its requests.

Which increment comes before which depends on what a query token costs, and that on the request's prefix.
Requests are told apart by that cost in steps of STEP; within one step they count alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from operator import itemgetter

import numpy as np

from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.menu import Menus
from recguide.guidance.sweep import Base, Step, Swept

STEP = 1.03
_LOG_STEP = log(STEP)
_REMEMBERED = 64
"""Combinations of costs whose order is remembered."""


class Merged:
    """Args: menus: of every cell; made anew when these are."""

    def __init__(self, menus: Menus) -> None:
        self.menus = menus
        tokens, gain = menus.hulls.tokens, menus.hulls.gain
        self._cell, vertex = np.nonzero(tokens > 0)
        self._tokens, self._gain = tokens[self._cell, vertex], gain[self._cell, vertex]
        self._cells = len(tokens)
        self._orders: dict[tuple[int, ...], _Order] = {}

    def sweep(self, base: Base, cell: Ints, prefix: Floats, weight: Floats) -> Swept:
        """All increments of requests of these cells, [R] each; `weight` as in Increments."""
        cost = np.rint(np.log(weight) / _LOG_STEP).astype(np.int64)
        costs = np.unique(cost) if len(cost) and cost.min() < cost.max() else cost[:1]
        group = np.searchsorted(costs, cost) * self._cells + cell
        groups = len(costs) * self._cells
        order = self._order(tuple(costs.tolist()))
        count = np.bincount(group, minlength=groups)[order.group]
        there = np.flatnonzero(count > 0)
        of, count = order.group[there], count[there]
        tokens = order.tokens[there]
        read = np.bincount(group, prefix, groups)[of]
        return Swept.of(base, order.slope[there], tokens * count, tokens * read, order.gain[there] * count)

    def _order(self, costs: tuple[int, ...]) -> _Order:
        if costs not in self._orders:
            if len(self._orders) >= _REMEMBERED:
                self._orders.clear()
            self._orders[costs] = self._sorted(costs)
        return self._orders[costs]

    def _sorted(self, costs: tuple[int, ...]) -> _Order:
        each = len(self._cell)
        slope = np.concatenate([self._gain / (self._tokens * STEP**cost) for cost in costs])
        order = np.argsort(-slope, kind="stable")
        which = order % each
        group = order // each * self._cells + self._cell[which]
        return _Order(group, slope[order], self._tokens[which], self._gain[which])


def steps_of_few(menus: Menus, cells: Sequence[int], prefixes: Sequence[int], ratio: float) -> list[Step]:
    """The increments of `Merged.sweep` of a few requests, by their hulls alone; a query token costs `ratio`
    more for each token of its prefix."""
    groups: dict[tuple[int, int], list[int]] = {}
    for cell, prefix in zip(cells, prefixes, strict=True):
        cost = round(log(1 + ratio * prefix) / _LOG_STEP) if ratio else 0
        group = groups.setdefault((cost, cell), [0, 0])
        group[0] += 1
        group[1] += prefix
    steps = [
        (slope / STEP**cost, n * count, n * read, gain * count)
        for (cost, cell), (count, read) in groups.items()
        for slope, n, gain in menus.steps(cell)
    ]
    steps.sort(key=itemgetter(0), reverse=True)
    return steps


@dataclass(frozen=True, slots=True)
class _Order:
    """Every increment of every group of requests, [I] each, slopes falling; a group is a cost and a cell."""

    group: Ints
    slope: Floats
    tokens: Floats
    gain: Floats
