"""What drafts of each block promise in each cell of a value table, at levels of thrift.

A level says down to which probability slots are verified and branches opened. Margins are drawn from their
calibrated law; what would come of them is then computed, not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

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
    """Outlooks of every block at any shift: kept at SHIFTS, on the line between them elsewhere."""

    def __init__(self, table: ValueTable) -> None:
        random = np.random.default_rng(0)
        self.blocks = table.blocks
        self._kept: Mapping[int, tuple[Outlook, ...]] = {
            block: tuple(_outlook(table, block, shift, random) for shift in SHIFTS) for block in table.blocks
        }

    def at(self, block: int, shift: float) -> Outlook:
        place = float(np.interp(shift, SHIFTS, np.arange(len(SHIFTS))))
        low = min(int(place), len(SHIFTS) - 2)
        below, above, share = self._kept[block][low], self._kept[block][low + 1], place - low

        def between(name: str) -> Floats:
            return (1 - share) * getattr(below, name) + share * getattr(above, name)

        return Outlook(*(between(name) for name in Outlook.__slots__))


def _outlook(table: ValueTable, block: int, shift: float, random: np.random.Generator) -> Outlook:
    evidence = table.evidence
    odds = log_odds(table.curves(block))[:, None, 1:] + shift  # [cells, samples, B − 1]
    wrong = random.random((1, SAMPLES, block - 1)) < chance(odds)
    u = random.random((1, SAMPLES, block - 1))
    place = np.where(wrong, _drawn(evidence.wrong, u), _drawn(evidence.right, u))
    failing = chance(odds + evidence.log_ratio[place])
    alive = np.cumprod(1 - failing, axis=2)  # [cells, samples, B − 1]: slot i is emitted
    before = np.concatenate([np.ones_like(alive[..., :1]), alive[..., :-1]], axis=2)
    fixes = before * failing * np.array(evidence.candidates[0])[place]
    goes_on = alive[..., -1] * evidence.continuation

    rows: list[list[Floats]] = []
    for least_slot, least_branch in LEVELS:
        kept = alive >= least_slot
        opened = (fixes >= least_branch) & (before >= least_slot)
        on = (goes_on >= least_branch) & kept[..., -1]
        rows.append(
            [
                1 + (alive * kept).sum(2).mean(1),
                1 + kept.sum(2).mean(1),
                (opened.sum(2) + on).mean(1),
                np.minimum(((fixes * opened).sum(2) + goes_on * on).mean(1), 0.99),
            ]
        )
    return Outlook(*(np.stack(columns, axis=1) for columns in zip(*rows, strict=True)))


def _drawn(shares: tuple[float, ...], u: Floats) -> Ints:
    edges = np.cumsum(shares)[:-1]
    return np.searchsorted(edges, u, side="right").astype(np.int64)
