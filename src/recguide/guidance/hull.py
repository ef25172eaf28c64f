"""Concave hulls of menus: what is worth choosing at some price."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide.guidance.arrays import Floats, Ints


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
        """Those of some menus, in that order."""
        return Hulls(self.item[menus], self.tokens[menus], self.gain[menus])

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
