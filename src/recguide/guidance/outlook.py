"""What drafts of each block promise in each cell of a value table, at levels of thrift.

A level says down to which probability slots are verified and branches opened. Margins are drawn from their
calibrated law; what would come of them is then computed, not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recguide.core import CANDIDATES
from recguide.guidance.arrays import Bools, Floats, Ints
from recguide.guidance.value import ValueTable

NEVER = 2.0
LEVELS = (
    *((0.0, NEVER), (0.1, NEVER), (0.3, NEVER), (0.5, NEVER)),
    *((0.0, least) for least in (0.0, 0.03, 0.08, 0.15, 0.25, 0.4, 0.6)),
    *((0.1, least) for least in (0.15, 0.25, 0.4, 0.6)),
    *((0.3, least) for least in (0.4, 0.6)),
)
"""(least probability that a verified slot is emitted, least probability that a branch is reused)."""


class Choice(Enum):
    """What is chosen of drafts in hand; values are the levels that are left."""

    ALL = tuple(range(len(LEVELS)))
    BARE = tuple([number for number, (_, branch) in enumerate(LEVELS) if branch == NEVER])
    """Slots to verify, and no branches."""
    NOTHING = (LEVELS.index((0.0, NEVER)),)
    """They are verified whole: all that can be planned before they are made."""


Reals = NDArray[np.floating[Any]]
_BY_SLOT = {
    slot: tuple(sorted(level for level in LEVELS if level[0] == slot))
    for slot in {slot for slot, _ in LEVELS}
}
SHIFTS = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 5.0, 8.0)
"""Log odds by which drafts fail more than the table says, for which outlooks are kept."""
FIRST = (-1.0, 0.0, 1.0)
"""Those that are made at the start."""
SAMPLES = 48
_TINY = 1e-4
_OFFERED = 1e-300
"""A branch that is never reused is none."""


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

    def of(self, choice: Choice) -> Outlook:
        """At the levels that a choice leaves."""
        if choice is Choice.ALL:
            return self
        return Outlook(*(getattr(self, name)[:, list(choice.value)] for name in Outlook.__slots__))


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
    """Outlooks of every block at any shift: made at SHIFTS, on lines between them. Making one takes long."""

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
        for shift in FIRST:
            while self.make_one(dict.fromkeys(table.blocks, shift)):
                pass

    def make_one(self, shifts: Mapping[int, float]) -> bool:
        """Makes one that `at` would have to make at these shifts of blocks; false if there is none."""
        for block, shift in shifts.items():
            low, share = _place(shift)
            for place in (low, low + (share > 0)):
                if (block, place) not in self._kept:
                    self._made(block, place)
                    return True
        return False

    def at(self, block: int, shift: float) -> Outlook:
        low, share = _place(shift)
        below = self._made(block, low)
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


def _place(shift: float) -> tuple[int, float]:
    """(index into SHIFTS, share of the way to the next)"""
    place = float(np.interp(shift, SHIFTS, np.arange(len(SHIFTS))))
    return int(place), place - int(place)


def _outlook(table: ValueTable, block: int, shift: float, draws: Floats) -> Outlook:
    """`draws` [2, samples, B − 1] in [0, 1)."""
    evidence = table.evidence
    odds = log_odds(table.curves(block))[:, None, 1:] + shift  # [cells, 1, B − 1]
    wrong = draws[0] < chance(odds)  # [cells, samples, B − 1]
    places = _drawn(evidence.wrong, draws[1]), _drawn(evidence.right, draws[1])
    ratio, *fixed = (
        np.where(wrong, *(of[place] for place in places))
        for of in (np.exp(evidence.log_ratio), *np.array(evidence.candidates[:CANDIDATES]))
    )
    ratio *= np.exp(odds)  # the odds of failing, given the margins
    passing = 1 / (1 + ratio)
    alive = np.cumprod(passing, axis=2)  # [cells, samples, B − 1]: slot i is emitted
    before = np.concatenate([np.ones_like(alive[..., :1]), alive[..., :-1]], axis=2)
    missed = before - alive
    fixes = [missed * right for right in fixed]  # by each candidate
    goes_on = alive[..., -1] * evidence.continuation

    columns: dict[tuple[float, float], list[Floats]] = {}
    for least_slot, levels in _BY_SLOT.items():
        kept = alive >= least_slot
        slots, made = _sums(kept), _sums(alive, kept)
        # A continuation is one branch more, behind the block.
        fixable, going = [each * (before >= least_slot) for each in fixes], goes_on * kept[..., -1]
        for level in levels:
            columns[level] = [1 + made, 1 + slots, *_opened(fixable, going, level[1])]
    rows = (columns[level] for level in LEVELS)
    return Outlook(*(np.stack(column, axis=1) for column in zip(*rows, strict=True)))


def _opened(fixable: Sequence[Reals], going: Reals, least: float) -> tuple[Floats, Floats]:
    """([cells] branches that run, H), means over samples; chances of 0 are not on offer."""
    if least == NEVER:
        return np.zeros(len(going)), np.zeros(len(going))
    goes = going >= max(least, _OFFERED)
    count, reuse = goes.mean(1), (going * goes).mean(1)
    for chances in fixable:
        opened = chances >= max(least, _OFFERED)
        count, reuse = count + _sums(opened), reuse + _sums(chances, opened)
    return count, np.minimum(reuse, 0.99)


def _sums(values: Reals | Bools, where: Bools | None = None) -> Floats:
    """[cells, samples, slots] → [cells] sums over slots, means over samples."""
    flat = values.reshape(len(values), -1)
    if where is None:
        return np.count_nonzero(flat, axis=1) / values.shape[1]
    return np.einsum("ij,ij->i", flat, where.reshape(flat.shape)) / values.shape[1]


def _drawn(shares: tuple[float, ...], u: Floats) -> Ints:
    edges = np.cumsum(shares)[:-1]
    return np.searchsorted(edges, u, side="right").astype(np.int64)
