"""What drafts of each block promise in each cell of a value table, at levels of thrift.

A level says down to which probability slots are verified and branches opened. Margins are drawn from their
calibrated law; what would come of them is then computed, not drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.value import ValueTable

NEVER = 2.0
LEVELS = (
    *((0.0, NEVER), (0.1, NEVER), (0.3, NEVER), (0.5, NEVER)),
    *((0.0, least) for least in (0.0, 0.03, 0.08, 0.15, 0.25, 0.4, 0.6)),
    *((0.1, least) for least in (0.15, 0.25, 0.4, 0.6)),
    *((0.3, least) for least in (0.4, 0.6)),
)
"""(least probability that a verified slot is emitted, least probability that a branch is reused)."""
_BY_SLOT = {
    slot: tuple(sorted(level for level in LEVELS if level[0] == slot))
    for slot in {slot for slot, _ in LEVELS}
}
SHIFTS = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 5.0, 8.0)
"""Log odds by which drafts fail more than the table says, for which outlooks are kept."""
SAMPLES = 48
_TINY = 1e-4


@dataclass(frozen=True, slots=True)
class Outlook:
    """Of one block, [cells, LEVELS] each.

    Attributes:
        acceptance: mean A.
        verified: slots verified.
        branches: that run.
        reuse: probability H that one of them becomes the next draft; below 1.
    """

    acceptance: Floats
    verified: Floats
    branches: Floats
    reuse: Floats


def log_odds(curves: Floats) -> Floats:
    """[cells, B] P(A ≥ k) → [cells, B] log odds that slot i fails, given that it is reached; slot 0 never."""
    passing = np.divide(
        curves[:, 1:], curves[:, :-1], out=np.ones_like(curves[:, 1:]), where=curves[:, :-1] > 0
    )
    failing = np.clip(1 - passing, _TINY, 1 - _TINY)
    odds = np.log(failing) - np.log1p(-failing)
    return np.concatenate([np.full((len(curves), 1), -np.inf), odds], axis=1)


def chance(log_odds: Floats) -> Floats:
    """The logistic function."""
    return 1 / (1 + np.exp(-np.clip(log_odds, -60, 60)))


class Outlooks:
    """Outlooks of every block at any shift: made at SHIFTS when they are asked for, on lines between them."""

    def __init__(self, table: ValueTable) -> None:
        random = np.random.default_rng(0)
        self.blocks = table.blocks
        self._table = table
        self._draws = {
            (block, place): random.random((2, SAMPLES, block - 1))
            for block in table.blocks
            for place in range(len(SHIFTS))
        }
        self._kept: dict[tuple[int, int], Outlook] = {}

    def at(self, block: int, shift: float) -> Outlook:
        place = float(np.interp(shift, SHIFTS, np.arange(len(SHIFTS))))
        low = int(place)
        below, share = self._made(block, low), place - low
        if share == 0:
            return below
        above = self._made(block, low + 1)

        def between(name: str) -> Floats:
            return (1 - share) * getattr(below, name) + share * getattr(above, name)

        return Outlook(*(between(name) for name in Outlook.__slots__))

    def _made(self, block: int, place: int) -> Outlook:
        key = block, place
        if key not in self._kept:
            self._kept[key] = _outlook(self._table, block, SHIFTS[place], self._draws.pop(key))
        return self._kept[key]


def _outlook(table: ValueTable, block: int, shift: float, draws: Floats) -> Outlook:
    """`draws` [2, samples, B − 1] in [0, 1)."""
    evidence = table.evidence
    odds = log_odds(table.curves(block))[:, None, 1:] + shift  # [cells, samples, B − 1]
    wrong = draws[0] < chance(odds)
    place = np.where(wrong, _drawn(evidence.wrong, draws[1]), _drawn(evidence.right, draws[1]))
    failing = chance(odds + evidence.log_ratio[place])
    alive = np.cumprod(1 - failing, axis=2)  # [cells, samples, B − 1]: slot i is emitted
    before = np.concatenate([np.ones_like(alive[..., :1]), alive[..., :-1]], axis=2)
    fixes = before * failing * np.array(evidence.candidates[0])[place]
    goes_on = alive[..., -1:] * evidence.continuation

    columns: dict[tuple[float, float], list[Floats]] = {}
    for least_slot, levels in _BY_SLOT.items():
        kept = alive >= least_slot
        slots, made = kept.sum(2).mean(1), (alive * kept).sum(2).mean(1)
        # A continuation is one branch more, behind the block.
        chances = np.concatenate([fixes * (before >= least_slot), goes_on * kept[..., -1:]], axis=2)
        opened = _above(chances, tuple(least_branch for _, least_branch in levels))
        for level, (count, reuse) in zip(levels, opened, strict=True):
            columns[level] = [1 + made, 1 + slots, count, np.minimum(reuse, 0.99)]
    rows = (columns[level] for level in LEVELS)
    return Outlook(*(np.stack(column, axis=1) for column in zip(*rows, strict=True)))


def _above(chances: NDArray[np.floating[Any]], bounds: tuple[float, ...]) -> list[tuple[Floats, Floats]]:
    """([cells] how many of chances [cells, samples, slots] reach each bound, their sum), means over samples.

    Those of 0 are not on offer, and are no branch at any bound. Bounds rise.
    """
    cells, samples = chances.shape[:2]
    flat = chances.reshape(cells, -1)
    cell, at = np.nonzero(flat)
    chance_ = flat[cell, at]
    key = cell * (len(bounds) + 1) + np.searchsorted(np.array(bounds), chance_, side="right")
    shape = cells, len(bounds) + 1
    counts = np.bincount(key, minlength=shape[0] * shape[1]).reshape(shape)[:, 1:]
    sums = np.bincount(key, chance_, shape[0] * shape[1]).reshape(shape)[:, 1:]
    from_top = (np.cumsum(part[:, ::-1], axis=1)[:, ::-1] / samples for part in (counts, sums))
    return list(zip(*(part.T for part in from_top), strict=True))


def _drawn(shares: tuple[float, ...], u: Floats) -> Ints:
    edges = np.cumsum(shares)[:-1]
    return np.searchsorted(edges, u, side="right").astype(np.int64)
