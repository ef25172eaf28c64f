"""Does a table keep what it promises? Predictions for prompts that it never saw, beside what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recguide.guidance.arrays import Bools, Floats, Ints
from recguide.guidance.fitting import CANDIDATES, MARGIN_EDGES, held_out, reached
from recguide.guidance.outlook import chance, log_odds
from recguide.guidance.records import Rounds
from recguide.guidance.value import BLOCKS, ValueTable

POINTS = 8
"""Of a reliability curve, with equal weight."""


@dataclass(frozen=True, slots=True)
class Curve:
    """[points] means of what was predicted and of what happened, and the weight of each."""

    predicted: tuple[float, ...]
    observed: tuple[float, ...]
    weight: tuple[float, ...]

    @property
    def error(self) -> float:
        """Weighted mean distance between the two."""
        gap = np.abs(np.array(self.predicted) - np.array(self.observed))
        return float(np.average(gap, weights=np.array(self.weight))) if len(gap) else float("nan")


@dataclass(frozen=True, slots=True)
class Ranks:
    """What was right at the first mismatch, by the margin there.

    Attributes:
        edges: [bins − 1] of the margin.
        shares: [CANDIDATES, bins] of mismatches whose right token is the candidate of that rank.
        mass: [bins] share of the mismatches.
    """

    edges: tuple[float, ...]
    shares: tuple[tuple[float, ...], ...]
    mass: tuple[float, ...]

    @property
    def overall(self) -> tuple[float, ...]:
        """[CANDIDATES] over all mismatches."""
        return tuple(float(np.dot(row, self.mass)) for row in self.shares)


@dataclass(frozen=True, slots=True)
class Reliability:
    """Of one calibration.

    Attributes:
        values: block → a curve of V_B for each fold; in tokens.
        slots: a curve of the probability that a reached slot passes, given its margin, for each fold.
        ranks: of the right token at mismatches.
    """

    values: Mapping[int, tuple[Curve, ...]]
    slots: tuple[Curve, ...]
    ranks: Ranks

    def as_object(self) -> dict[str, Any]:
        """Mean errors over folds, for a summary."""
        return {
            "value_error": {str(block): _mean_error(curves) for block, curves in self.values.items()},
            "slot_error": _mean_error(self.slots),
            "candidate_share": list(self.ranks.overall),
        }


def reliability(rounds: Rounds, *, signal: str, bins: int) -> Reliability:
    """Judges tables fitted to four fifths of the prompts by the others; needs five prompts or more."""
    values: dict[int, list[Curve]] = {block: [] for block in BLOCKS}
    slots: list[Curve] = []
    for mine, table in held_out(rounds, signal=signal, bins=bins):
        some = rounds.only(mine)
        cell = table.cell(some.signals, some.previous, some.full)
        for block in BLOCKS:
            whole = (some.block == block) & (some.verified == block)
            if whole.any():
                promised = table.values()[cell[whole], table.blocks.index(block)]
                kept = some.acceptance[whole].astype(np.float64)
                values[block].append(curve(promised, kept, some.weight[whole]))
        slots.append(_slots(some, cell, table))
    return Reliability(
        {block: tuple(curves) for block, curves in values.items()}, tuple(slots), _ranks(rounds)
    )


def curve(predicted: Floats, observed: Floats, weight: Floats, spread: Floats | None = None) -> Curve:
    """Means over at most POINTS groups of neighbouring predictions; equal ones stay together.

    Groups have equal shares of `spread`, or else of the weight.
    """
    order = np.argsort(predicted, kind="stable")
    by = (weight if spread is None else spread)[order]
    predicted, observed, weight = predicted[order], observed[order], weight[order]
    before = np.cumsum(by) - by
    first = np.searchsorted(predicted, predicted, side="left")
    group = np.minimum((before[first] / by.sum() * POINTS).astype(np.int64), POINTS - 1)
    mass = np.bincount(group, weight, POINTS)
    used = mass > 0

    def mean(of: Floats) -> tuple[float, ...]:
        return tuple((np.bincount(group, weight * of, POINTS)[used] / mass[used]).tolist())

    return Curve(mean(predicted), mean(observed), tuple((mass[used] / mass.sum()).tolist()))


def _slots(rounds: Rounds, cell: Ints, table: ValueTable) -> Curve:
    seen = reached(rounds, rounds.margins.shape[1])
    known = seen.reached & ~np.isnan(rounds.margins)
    promised = np.zeros(known.shape)
    for block in table.blocks:
        rows = rounds.block == block
        odds = log_odds(table.curves(block))[cell[rows]]
        ratio = table.evidence.log_ratio[table.evidence.bins(rounds.margins[rows, :block])]
        promised[rows, :block] = 1 - chance(odds + ratio)
    known &= np.isin(rounds.block, table.blocks)[:, None]
    weight = np.broadcast_to(rounds.weight[:, None], known.shape)[known]
    passed = (~seen.failed[known]).astype(np.float64)
    # Most slots pass for sure: what fails decides where the groups lie.
    return curve(promised[known], passed, weight, weight * (1 - promised[known] + 1e-6))


def _ranks(rounds: Rounds) -> Ranks:
    failed = (rounds.acceptance < rounds.verified) & (rounds.block > 1)
    rows: Bools | Ints = np.flatnonzero(failed)
    margin = rounds.margins[rows, rounds.acceptance[rows]]
    edges = MARGIN_EDGES[1:10:2]
    place = np.searchsorted(np.array(edges), margin, side="right")
    weight = rounds.weight[rows]
    mass = np.bincount(place, weight, len(edges) + 1)
    shares = [
        np.bincount(place, weight * (rounds.rank[rows] == rank), len(edges) + 1) / np.maximum(mass, 1e-300)
        for rank in range(1, CANDIDATES + 1)
    ]
    return Ranks(
        edges,
        tuple(tuple(share.tolist()) for share in shares),
        tuple((mass / max(mass.sum(), 1e-300)).tolist()),
    )


def _mean_error(curves: tuple[Curve, ...]) -> float | None:
    return float(np.mean([one.error for one in curves])) if curves else None
