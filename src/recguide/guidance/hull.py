"""Concave hulls of menus: what is worth choosing at some price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from recguide.guidance.arrays import Bools, Floats, Ints

FEW = 8
"""Menus up to which one after another is quicker."""
_NEVER = -1e30
"""Stands for minus infinity where differences are taken."""


@dataclass(frozen=True, slots=True)
class Hulls:
    """The upper left hull of each of R menus, from its cheapest item on.

    Attributes:
        item: [R, P + 1] index of each vertex's item; the last vertex repeats to the end.
        tokens, gain: [R, P] Δn and Δy from vertex to vertex, Δy/Δn never rising; 0 after the last.
    """

    item: Ints
    tokens: Floats
    gain: Floats

    def of(self, menus: Ints) -> Hulls:
        """A copy of those of some menus, in that order."""
        return Hulls(
            self.item.take(menus, axis=0), self.tokens.take(menus, axis=0), self.gain.take(menus, axis=0)
        )

    def put(self, rows: Ints, other: Hulls) -> None:
        """Replaces these hulls by others, over as many items."""
        self.item[rows], self.tokens[rows], self.gain[rows] = other.item, other.tokens, other.gain

    @property
    def slope(self) -> Floats:
        """[R, P] Δy/Δn; 0 where there are no more vertices."""
        return np.divide(self.gain, self.tokens, out=np.zeros_like(self.gain), where=self.tokens > 0)


def hulls(n: Floats, y: Floats) -> Hulls:
    """Of menus [R, items] of use n and yield y; an item with y = −inf is not on offer."""
    rows = np.arange(len(n))
    cheapest = np.where(np.isfinite(y), n, np.inf).min(1, keepdims=True)
    at = np.where(n == cheapest, y, -np.inf).argmax(1)
    items, tokens, gains = [at], [], []
    while True:
        more = n - n[rows, at][:, None]
        slope = np.full_like(y, -np.inf)
        np.divide(y - y[rows, at][:, None], more, out=slope, where=more > 0)
        then = slope.argmax(1)
        going = slope[rows, then] > 0
        if not going.any():
            break
        then = np.where(going, then, at)
        tokens.append(n[rows, then] - n[rows, at])
        gains.append(y[rows, then] - y[rows, at])
        items.append(then)
        at = then
    shape = (len(n), len(tokens))
    return Hulls(
        np.stack(items, axis=1).astype(np.int64),
        np.stack(tokens, axis=1) if tokens else np.zeros(shape),
        np.stack(gains, axis=1) if gains else np.zeros(shape),
    )


def spots(chosen: Bools) -> tuple[Ints, Ints]:
    """Where [rows, columns] is true, in the flat array, and the row of each."""
    flat = chosen.ravel().nonzero()[0]  # a method is quicker than its function
    return flat, flat // chosen.shape[1] if chosen.size else flat


def places(chosen: Bools) -> tuple[Ints, Ints]:
    """np.nonzero of [rows, columns], several times as fast."""
    flat, row = spots(chosen)
    return row, flat - row * chosen.shape[1]


class SharedHulls:
    """Hulls of menus whose items have the same n, as wide as there are items.

    Args:
        n: [items] rising; the first item is always on offer.
    """

    def __init__(self, n: Floats) -> None:
        self.n = n
        first, then = np.triu_indices(len(n), 1)
        by_then = np.lexsort((first, then))
        self._first, self._then = first[by_then], then[by_then]
        self._apart = (n[self._then] - n[self._first])[:, None]
        self._from_first = np.lexsort((self._then, self._first))
        each = np.arange(len(n) - 1)
        self._into = each * (each + 1) // 2  # where the pairs that end at item 1, 2, … begin
        self._outof = np.concatenate([[0], np.cumsum(len(n) - 1 - each)[:-1]])

    def of(self, y: Floats) -> Hulls:
        """y [items, R]; −inf is not on offer. A vertex is an item that no line past it lies above."""
        items, rows = y.shape
        if rows <= FEW:
            return self._one_by_one(y.T.tolist())
        y = np.maximum(y, _NEVER)
        slope = y[self._then]
        slope -= y[self._first]
        slope /= self._apart  # [pairs, R]
        into = np.minimum.reduceat(slope, self._into)
        outof = np.maximum.reduceat(slope[self._from_first], self._outof)
        vertex = np.zeros((items, rows), np.bool_)
        np.greater(into, 0, out=vertex[1:])
        vertex[1:-1] &= into[:-1] >= outof[1:]
        request, item = places(vertex.T)
        count = np.bincount(request, minlength=rows)
        number = np.arange(len(item)) - (np.cumsum(count) - count)[request]
        before = np.where(number == 0, 0, np.concatenate([[0], item[:-1]]))
        vertices = np.zeros((rows, items), np.int64)
        tokens, gain = np.zeros((2, rows, items - 1))
        vertices[request, number + 1] = item
        tokens[request, number] = self.n[item] - self.n[before]
        gain[request, number] = y[item, request] - y[before, request]
        return Hulls(np.maximum.accumulate(vertices, axis=1), tokens, gain)

    def _one_by_one(self, menus: list[list[float]]) -> Hulls:
        """`of`, for a few."""
        n: list[float] = self.n.tolist()
        vertex = np.zeros((len(menus), len(n)), np.int64)
        tokens, gain = np.zeros((2, len(menus), len(n) - 1))
        for row, y in enumerate(menus):
            items = vertices(n, y)
            vertex[row, : len(items)], vertex[row, len(items) :] = items, items[-1]
            for step, (a, b) in enumerate(pairwise(items)):
                tokens[row, step], gain[row, step] = n[b] - n[a], y[b] - y[a]
        return Hulls(vertex, tokens, gain)


def vertices(n: Sequence[float], y: Sequence[float]) -> list[int]:
    """Of one menu, n rising: items of falling slopes, from the first on."""
    found = [0]
    for item in range(1, len(n)):
        if y[item] <= y[found[-1]]:
            continue
        while len(found) > 1:
            a, b = found[-2:]
            if (y[item] - y[b]) * (n[b] - n[a]) <= (y[b] - y[a]) * (n[item] - n[b]):
                break
            found.pop()
        found.append(item)
    return found
