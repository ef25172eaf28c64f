"""Fits value tables to rounds; offline, with scipy's isotonic regression.

Survival P(A ≥ k | cell) is estimated per slot among the rounds that reached it (Kaplan-Meier), so that a
block that passed whole, or was verified in part, only says "at least".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from recguide.core import RecGuideError
from recguide.guidance.arrays import Bools, Floats, Ints
from recguide.guidance.conditions import Conditions
from recguide.guidance.history import signal_named
from recguide.guidance.records import Rounds
from recguide.guidance.value import BLOCKS, STRATA, Evidence, ValueTable, strata

MARGIN_EDGES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
CANDIDATES = 3
SMOOTHING = 0.5
"""Slots that every bin of margins is given beforehand, so that none is impossible."""


class TooFewRounds(RecGuideError):  # noqa: N818 - it names what was found
    """Nothing can be said of a block that was never tried."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Slots that a round had come to: [rows, W] of slot i ≥ 1, and whether it failed there."""

    reached: Bools
    failed: Bools


def fit(
    rounds: Rounds, conditions: Conditions, *, signal: str = "entropy", bins: int = 24, measured_at: str = ""
) -> ValueTable:
    """A value table of these rounds; TooFewRounds if a block in BLOCKS was never drafted."""
    missing = [block for block in BLOCKS if not (rounds.block == block).any()]
    if missing:
        raise TooFewRounds(f"calibration: no round has a block of {missing[0]}")
    s = rounds.signals[:, signal_named(signal)]
    edges = _equal_mass(s, rounds.weight, bins)
    found = np.where(np.isnan(s), len(edges) + 1, np.searchsorted(edges, s, side="right"))
    z = strata(rounds.previous, rounds.full)
    share = np.zeros((STRATA, len(edges) + 2))
    np.add.at(share, (z, found), rounds.weight)
    return ValueTable(
        signal=signal,
        edges=tuple(edges.tolist()),
        survival={block: _survival(rounds, block, z, found, len(edges) + 1) for block in BLOCKS},
        share=share / share.sum(),
        evidence=fit_evidence(rounds),
        rounds=len(rounds),
        conditions=conditions,
        measured_at=measured_at,
    )


def held_out(rounds: Rounds, *, signal: str, bins: int, folds: int = 5) -> Iterator[tuple[Bools, ValueTable]]:
    """(rows [rows] of some prompts, a table that never saw them), until every row has been one of them."""
    for fold in range(folds):
        mine = rounds.prompt % folds == fold
        if not mine.any():
            continue
        rest = rounds.only(~mine)
        rest = replace(rest, weight=rest.weight / rest.weight.sum())
        yield mine, fit(rest, Conditions("", "", "", {}, {}), signal=signal, bins=bins)


def out_of_fold(rounds: Rounds, blocks: tuple[int, ...], *, signal: str, bins: int, folds: int = 5) -> Floats:
    """[rows, blocks] V_B of each row by a table that never saw its prompt."""
    values = np.zeros((len(rounds), len(blocks)))
    for mine, table in held_out(rounds, signal=signal, bins=bins, folds=folds):
        cell = table.cell(rounds.signals[mine], rounds.previous[mine], rounds.full[mine])
        places = [table.blocks.index(block) for block in blocks]
        values[mine] = table.values()[cell][:, places]
    return values


def _equal_mass(s: Floats, weight: Floats, bins: int) -> Floats:
    """[≤ bins − 1] edges with equal weight between them."""
    known = ~np.isnan(s)
    order = np.argsort(s[known], kind="stable")
    rising, mass = s[known][order], np.cumsum(weight[known][order])
    if not len(rising):
        return np.zeros(0)
    at = np.searchsorted(mass, mass[-1] * np.arange(1, bins) / bins)
    return np.unique(rising[np.minimum(at, len(rising) - 1)])


def _survival(rounds: Rounds, block: int, z: Ints, found: Ints, bins: int) -> Floats:
    """[STRATA, bins + 1, block]"""
    mine = rounds.block == block
    part, stratum, bin_ = rounds.only(mine), z[mine], found[mine]
    pooled = _by_bin(part, block, bin_, bins)
    curves = np.empty((STRATA, bins + 1, block))
    for number in range(STRATA):
        rows = stratum == number
        enough = rows.sum() >= max(48, 3 * bins)
        curves[number] = _by_bin(part.only(rows), block, bin_[rows], bins) if enough else pooled
    return curves


def _by_bin(rounds: Rounds, block: int, found: Ints, bins: int) -> Floats:
    """[bins + 1, block], rising in s and falling in k; the last row knows no s."""
    slots = reached(rounds, block)
    at_risk, failed = np.zeros((2, bins + 1, block))
    np.add.at(at_risk, found, rounds.weight[:, None] * slots.reached)
    np.add.at(failed, found, rounds.weight[:, None] * slots.failed)
    overall = _kaplan_meier(at_risk.sum(0), failed.sum(0))
    weight = np.bincount(found, rounds.weight, bins + 1).astype(np.float64)
    curves = np.stack(
        [_kaplan_meier(risk, fail, overall) for risk, fail in zip(at_risk, failed, strict=True)]
    )
    rising = _isotonic(curves[:bins], weight[:bins])
    return np.vstack([np.minimum.accumulate(rising, axis=1), overall[None]])


def _kaplan_meier(at_risk: Floats, failed: Floats, otherwise: Floats | None = None) -> Floats:
    """[block] P(A ≥ k); where no round came to a slot, the hazard there is that of `otherwise`."""
    known = at_risk > 0
    hazard = np.divide(failed, at_risk, out=np.zeros_like(failed), where=known)
    if otherwise is not None:
        before = np.concatenate([[1.0], otherwise[:-1]])
        spare = 1 - np.divide(otherwise, before, out=np.ones_like(otherwise), where=before > 0)
        hazard = np.where(known, hazard, spare)
    return np.concatenate([[1.0], np.cumprod(1 - hazard[1:])])


def _isotonic(curves: Floats, weight: Floats) -> Floats:
    """[bins, block], each slot's made to rise with s."""
    from scipy.optimize import isotonic_regression

    safe = np.maximum(weight, 1e-12)
    return np.stack(
        [isotonic_regression(curves[:, slot], weights=safe).x for slot in range(curves.shape[1])], axis=1
    )


def reached(rounds: Rounds, width: int) -> Reached:
    """A slot is reached if those before it passed and it was verified."""
    slot = np.arange(width)
    verified = (slot >= 1) & (slot < rounds.verified[:, None])
    reached = verified & (slot <= rounds.acceptance[:, None])
    return Reached(reached, reached & (slot == rounds.acceptance[:, None]))


# --- what margins say ---------------------------------------------------------------------------------------


def fit_evidence(rounds: Rounds) -> Evidence:
    """The law of margins at reached slots, and of what follows them."""
    slots = reached(rounds, rounds.margins.shape[1])
    known = slots.reached & ~np.isnan(rounds.margins)
    bins = len(MARGIN_EDGES) + 1
    place = np.searchsorted(np.array(MARGIN_EDGES), rounds.margins, side="right")
    mass = np.broadcast_to(rounds.weight[:, None] * len(rounds), known.shape)
    wrong, right = (
        SMOOTHING + np.bincount(place[mine], mass[mine], bins).astype(np.float64)
        for mine in (known & slots.failed, known & ~slots.failed)
    )
    wrong, right = _falling(wrong, right)
    return Evidence(
        edges=MARGIN_EDGES,
        right=tuple((right / right.sum()).tolist()),
        wrong=tuple((wrong / wrong.sum()).tolist()),
        candidates=_candidates(rounds, place, bins),
        continuation=_share(rounds, (rounds.head >= 0) & (rounds.verified > 1), rounds.head == 1, 0.95),
        step=_step_power(rounds),
    )


def _falling(wrong: Floats, right: Floats) -> tuple[Floats, Floats]:
    """The same slots with odds of being wrong that fall as margins rise."""
    from scipy.optimize import isotonic_regression

    total = wrong + right
    share = isotonic_regression(wrong / total, weights=total, increasing=False).x
    return share * total, (1 - share) * total


def _candidates(rounds: Rounds, place: Ints, bins: int) -> tuple[tuple[float, ...], ...]:
    """[ranks, bins], each bin drawn towards the mean over bins."""
    failed = (rounds.acceptance < rounds.verified) & (rounds.acceptance < rounds.margins.shape[1])
    rows = np.flatnonzero(failed)
    at = place[rows, rounds.acceptance[rows]]
    weight = rounds.weight[rows] * len(rounds)
    total = np.bincount(at, weight, bins)
    found: list[tuple[float, ...]] = []
    for rank in range(1, CANDIDATES + 1):
        hits = np.bincount(at, weight * (rounds.rank[rows] == rank), bins)
        mean = hits.sum() / max(total.sum(), 1e-12)
        found.append(tuple(((hits + 8 * mean) / (total + 8)).tolist()))
    return tuple(found)


def _step_power(rounds: Rounds) -> float:
    """log P(a continuation beside an AR step is right) ÷ log P(a draft's first slot is right)."""
    after = (rounds.head >= 0) & (rounds.verified == 1)
    first = _share(rounds, rounds.verified > 1, rounds.acceptance > 1, 0.9)
    right = _share(rounds, after, rounds.head == 1, first)
    return float(np.clip(np.log(min(right, 0.999)) / np.log(min(first, 0.999)), 0.1, 10.0))


def _share(rounds: Rounds, among: Bools, hit: Bools, otherwise: float) -> float:
    """Weighted share; `otherwise` counts like eight rounds."""
    mass = rounds.weight * len(rounds)
    return float((mass[among & hit].sum() + 8 * otherwise) / (mass[among].sum() + 8))
