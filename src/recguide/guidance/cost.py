"""Cost: the milliseconds T(N, M, X) of a forward on this device (architecture §4).

N query tokens, M prefix tokens read (once per request), X = Σ query tokens × prefix tokens. A table over N
plus one linear term each for M, which costs bandwidth, and X, which costs arithmetic.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recguide.core import ParameterError, RecGuideError
from recguide.guidance.conditions import Conditions
from recguide.models.cache import cache_root

Floats = NDArray[np.float64]

log = logging.getLogger(__name__)


class MalformedTable(RecGuideError):  # noqa: N818 - it names what was found
    """A file that is no cost table; names the file and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """T(N, M, X), measured.

    Attributes:
        tokens: N at which it was measured, rising; CUDA graph buckets included.
        base_ms: medians at those N with the prefix's share taken out.
        spread_ms: half the distance between the quartiles of each.
        prefix_ms: per prefix token read; `pair_ms` per query token × prefix token.
        stepped: a forward costs what the next N above it costs (it is padded up to its graph's bucket);
            else times between two N lie on the line between them.
        residual: root mean square of (measured − table) / measured over everything measured.
        conditions: what it holds for.
        measured_at: time, for readers.
    """

    tokens: tuple[int, ...]
    base_ms: tuple[float, ...]
    spread_ms: tuple[float, ...]
    prefix_ms: float
    pair_ms: float
    stepped: bool
    residual: float
    conditions: Conditions
    measured_at: str

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.base_ms) == len(self.spread_ms) >= 2:
            raise MalformedTable("cost table: needs at least two N, and a time and a spread for each")
        if self.tokens[0] < 1 or list(self.tokens) != sorted(set(self.tokens)):
            raise MalformedTable("cost table: N must rise from 1 on")
        if not np.isfinite([*self.base_ms, *self.spread_ms, self.prefix_ms, self.pair_ms]).all():
            raise MalformedTable("cost table: a time is not finite")

    def ms(self, tokens: ArrayLike, prefix: ArrayLike = 0, pairs: ArrayLike = 0) -> Floats:
        """T(N, M, X) in milliseconds for numbers or arrays that broadcast; N ≥ 1."""
        n = np.asarray(tokens, dtype=np.float64)
        if (n < 1).any():
            raise RecGuideError("cost table: a forward has at least one query token")
        terms = self.prefix_ms * np.asarray(prefix, np.float64) + self.pair_ms * np.asarray(pairs, np.float64)
        return self._base(n) + terms

    @property
    def slope_ms(self) -> float:
        """Milliseconds per query token beyond the table's end: its slope over the upper half."""
        n, base = np.array(self.tokens, np.float64), np.array(self.base_ms)
        low = min(int(np.searchsorted(n, n[-1] / 2)), len(n) - 2)
        return max(0.0, float((base[-1] - base[low]) / (n[-1] - n[low])))

    def _base(self, n: Floats) -> Floats:
        known, base = np.array(self.tokens, np.float64), np.array(self.base_ms)
        if self.stepped:
            inside = base[np.minimum(np.searchsorted(known, n), len(known) - 1)]
        else:
            inside = np.interp(n, known, base)
        return inside + self.slope_ms * np.maximum(0.0, n - known[-1])

    # --- files ----------------------------------------------------------------------------------------------

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.as_object(), indent=1) + "\n", encoding="utf-8")

    def as_object(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> CostTable:
        """What `as_object` made; KeyError, TypeError, ValueError or MalformedTable for anything else."""
        return cls(
            tokens=tuple(int(n) for n in content["tokens"]),
            base_ms=_times(content["base_ms"]),
            spread_ms=_times(content["spread_ms"]),
            prefix_ms=float(content["prefix_ms"]),
            pair_ms=float(content["pair_ms"]),
            stepped=bool(content["stepped"]),
            residual=float(content["residual"]),
            conditions=_conditions(content["conditions"]),
            measured_at=str(content["measured_at"]),
        )

    @classmethod
    def read(cls, file: Path) -> CostTable:
        """Raises MalformedTable, naming the file."""
        try:
            return cls.of(json.loads(file.read_text(encoding="utf-8")))
        except OSError as error:
            raise MalformedTable(f"{file} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError, MalformedTable) as error:
            raise MalformedTable(f"{file} is no cost table ({error}); run recguide profile again") from error


def named(file: Path, wanted: Conditions) -> CostTable:
    """The table that a user named; ParameterError with the reason if it does not hold here."""
    try:
        table = CostTable.read(file)
    except MalformedTable as error:
        raise ParameterError("cost_table", str(error)) from error
    reason = table.conditions.mismatch(wanted)
    if reason is not None:
        raise ParameterError("cost_table", f"{file} does not hold here: {reason}; run recguide profile")
    return table


def found(wanted: Conditions, folder: Path | None = None) -> CostTable | None:
    """The table in its place in the user's cache; None, and a line in the log, if it does not hold here."""
    file = place(wanted, folder)
    if not file.is_file():
        return None
    try:
        table = CostTable.read(file)
        reason = table.conditions.mismatch(wanted)
    except MalformedTable as error:
        table, reason = None, str(error)
    if reason is not None:
        log.warning("cost table %s is not used: %s", file, reason)
        return None
    return table


def place(conditions: Conditions, folder: Path | None = None) -> Path:
    """Where a table of this model on this device lies by default."""
    folder = cache_root() / "costs" if folder is None else folder
    device = re.sub(r"[^a-z0-9]+", "-", conditions.device.lower()).strip("-")
    return folder / f"{conditions.fingerprint}-{device}.json"


def _times(values: Sequence[object]) -> tuple[float, ...]:
    return tuple(float(str(value)) for value in values)


def _conditions(content: Mapping[str, Any]) -> Conditions:
    return Conditions(
        model=str(content["model"]),
        fingerprint=str(content["fingerprint"]),
        device=str(content["device"]),
        versions=dict(content["versions"]),
        settings=dict(content["settings"]),
    )
