"""Value: how far a draft gets, V_B(s, z), and what its margins say; calibrated from traces (paper eq. 3)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from recguide.core import ParameterError
from recguide.guidance.arrays import Bools, Floats, Ints
from recguide.guidance.conditions import Conditions
from recguide.guidance.cost import MalformedTable
from recguide.guidance.history import signal_named
from recguide.models.cache import cache_root

BLOCKS = (4, 8, 16, 32)
UNKNOWN, AFTER_AR = 0, 1
STRATA = 2 + 2 * len(BLOCKS)
"""No history, after an AR step, then each block partly and fully accepted, in the order of BLOCKS."""
_UPPER = np.array([5, 11, 23])
"""Most verified slots that count as a block of 4, 8, 16: blocks may be verified in part."""

log = logging.getLogger(__name__)


def strata(previous: Ints, full: Bools) -> Ints:
    """z as a number: where the block verified last and its outcome stand among STRATA."""
    after_block = 2 + 2 * np.searchsorted(_UPPER, previous) + full
    return np.where(previous >= 2, after_block, np.where(previous == 1, AFTER_AR, UNKNOWN))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What margins say: their law at slots drafted rightly and wrongly, and where wrong what else is right.

    Attributes:
        edges: [bins − 1] of margins, rising.
        right, wrong: [bins] share of margins in each, falling odds of being wrong as margins rise.
        candidates: [ranks, bins] probability that the candidate of that rank is the verifier's token at a
            slot that is wrong.
        continuation: probability that a continuation's slot 0 is right, given that the block passed.
        step: the same beside an AR step, as a power of the probability that a draft's first slot is right.
    """

    edges: tuple[float, ...]
    right: tuple[float, ...]
    wrong: tuple[float, ...]
    candidates: tuple[tuple[float, ...], ...]
    continuation: float
    step: float

    def __post_init__(self) -> None:
        bins = len(self.edges) + 1
        if not all(len(row) == bins for row in (self.right, self.wrong, *self.candidates)):
            raise MalformedTable("value table: its margins have bins of different numbers")
        if min(*self.right, *self.wrong) <= 0:
            raise MalformedTable("value table: a bin of margins is empty")

    @property
    def log_ratio(self) -> Floats:
        """[bins] logarithm of how much a margin raises the odds that its slot is wrong."""
        return np.log(np.array(self.wrong)) - np.log(np.array(self.right))

    def bins(self, margins: Floats) -> Ints:
        return np.searchsorted(np.array(self.edges), margins, side="right").astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTable:
    """V_B(s, z) and the branch probabilities of one model and adapter.

    Attributes:
        signal: which of history.SIGNALS is s.
        edges: [bins − 1] of s, rising, with equal shares of the rounds between them.
        survival: block → [STRATA, bins + 1, B]: P(A ≥ k), k = 1..B; the last bin is for an unknown s.
        share: [STRATA, bins + 1] of the rounds that it was fitted to, summing to 1.
        evidence: what margins say.
        rounds: that it was fitted to.
        conditions: what it holds for.
    """

    signal: str
    edges: tuple[float, ...]
    survival: Mapping[int, Floats]
    share: Floats
    evidence: Evidence
    rounds: int
    conditions: Conditions
    measured_at: str = ""

    def __post_init__(self) -> None:
        signal_named(self.signal)
        for block, curve in self.survival.items():
            if curve.shape != (STRATA, len(self.edges) + 2, block):
                raise MalformedTable(f"value table: survival of block {block} has shape {curve.shape}")
            if not np.isfinite(curve).all() or (curve[..., 0] != 1).any() or (np.diff(curve) > 1e-9).any():
                raise MalformedTable(f"value table: survival of block {block} does not fall from 1")
        if self.share.shape != (STRATA, len(self.edges) + 2):
            raise MalformedTable(f"value table: shares have shape {self.share.shape}")

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(sorted(self.survival))

    @property
    def cells(self) -> int:
        """Strata times bins."""
        return STRATA * (len(self.edges) + 2)

    def cell(self, signals: Floats, previous: Ints, full: Bools) -> Ints:
        """[R] the cell of each request; signals [R, 3] as in history.SIGNALS."""
        s = signals[:, signal_named(self.signal)]
        bins = len(self.edges) + 1
        found = np.where(np.isnan(s), bins, np.searchsorted(np.array(self.edges), s, side="right"))
        return strata(previous, full) * (bins + 1) + found

    def curves(self, block: int) -> Floats:
        """[cells, B] P(A ≥ k)."""
        return self.survival[block].reshape(self.cells, block)

    def values(self) -> Floats:
        """[cells, blocks] V_B: the mean of A."""
        return np.stack([self.curves(block).sum(1) for block in self.blocks], axis=1)

    # --- files ----------------------------------------------------------------------------------------------

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.as_object()) + "\n", encoding="utf-8")

    def as_object(self) -> dict[str, Any]:
        return {
            "signal": self.signal,
            "edges": list(self.edges),
            "survival": {str(block): curve.round(4).tolist() for block, curve in self.survival.items()},
            "share": self.share.round(6).tolist(),
            "evidence": asdict(self.evidence),
            "rounds": self.rounds,
            "conditions": asdict(self.conditions),
            "measured_at": self.measured_at,
        }

    @classmethod
    def read(cls, file: Path) -> ValueTable:
        """Raises MalformedTable, naming the file."""
        try:
            content: Any = json.loads(file.read_text(encoding="utf-8"))
            return cls._from(content)
        except OSError as error:
            raise MalformedTable(f"{file} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError, MalformedTable) as error:
            raise MalformedTable(
                f"{file} is no value table ({error}); run recguide calibrate again"
            ) from error

    @classmethod
    def _from(cls, content: Any) -> ValueTable:  # noqa: ANN401 - whatever the file holds
        evidence = content["evidence"]
        return cls(
            signal=str(content["signal"]),
            edges=_numbers(content["edges"]),
            survival={int(block): np.array(curve, float) for block, curve in content["survival"].items()},
            share=np.array(content["share"], float),
            evidence=Evidence(
                edges=_numbers(evidence["edges"]),
                right=_numbers(evidence["right"]),
                wrong=_numbers(evidence["wrong"]),
                candidates=tuple(_numbers(row) for row in evidence["candidates"]),
                continuation=float(evidence["continuation"]),
                step=float(evidence["step"]),
            ),
            rounds=int(content["rounds"]),
            conditions=Conditions(**content["conditions"]),
            measured_at=str(content["measured_at"]),
        )

    def mismatch(self, wanted: Conditions) -> str | None:
        """Why it says nothing about those conditions; acceptance depends on the model and adapter alone."""
        here = replace(
            self.conditions, device=wanted.device, versions=wanted.versions, settings=wanted.settings
        )
        return here.mismatch(wanted)


def prior() -> ValueTable:
    """What is assumed without a table: drafts like those that the published statistics describe."""
    return ValueTable.read(Path(__file__).with_name("prior.json"))


def named(file: Path, wanted: Conditions) -> ValueTable:
    """The table that a user named; ParameterError with the reason if it does not hold here."""
    try:
        table = ValueTable.read(file)
    except MalformedTable as error:
        raise ParameterError("value_table", str(error)) from error
    reason = table.mismatch(wanted)
    if reason is not None:
        raise ParameterError("value_table", f"{file} does not hold here: {reason}; run recguide calibrate")
    return table


def found(wanted: Conditions, folder: Path | None = None) -> ValueTable | None:
    """The table in its place in the user's cache; None, and a line in the log, if it does not hold here."""
    file = place(wanted, folder)
    if not file.is_file():
        return None
    try:
        table = ValueTable.read(file)
        reason = table.mismatch(wanted)
    except MalformedTable as error:
        table, reason = None, str(error)
    if reason is not None:
        log.warning("value table %s is not used: %s", file, reason)
        return None
    return table


def place(conditions: Conditions, folder: Path | None = None) -> Path:
    """Where a table of this model and adapter lies by default."""
    return (cache_root() / "values" if folder is None else folder) / f"{conditions.fingerprint}.json"


def _numbers(values: Any) -> tuple[float, ...]:  # noqa: ANN401 - whatever the file holds
    return tuple(float(value) for value in values)
