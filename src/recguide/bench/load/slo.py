"""What counts as good service: limits that every request must keep."""

from __future__ import annotations

from dataclasses import dataclass

from recguide.bench.load.measures import e2e_ms, tpot_ms, ttft_ms
from recguide.bench.load.record import Record
from recguide.core import ParameterError


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in milliseconds; None is no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Reads "ttft=500,tpot=20,e2e=10000". Raises ParameterError that says what is wrong."""
        limits: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            if name not in cls.__slots__ or name in limits:
                raise ParameterError(
                    "slo", f"{part.strip()!r} is none of ttft=, tpot=, e2e= (milliseconds), each once"
                )
            limits[name] = _positive(name, value)
        return cls(**limits)

    def kept(self, record: Record) -> bool | None:
        """Whether a request was served well; None where its tokens, so its TPOT, are not known."""
        if record.error is not None:
            return False
        if not _within(ttft_ms(record), self.ttft) or not _within(e2e_ms(record), self.e2e):
            return False
        if self.tpot is not None and record.output_tokens is None:
            return None
        return _within(tpot_ms(record), self.tpot)

    def __str__(self) -> str:
        limits = {"TTFT": self.ttft, "TPOT": self.tpot, "E2E": self.e2e}
        return ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in limits.items() if limit is not None)


def _within(value: float | None, limit: float | None) -> bool:
    """An answer of one token has no TPOT, one of none no TTFT: nothing that could be late."""
    return limit is None or value is None or value <= limit


def _positive(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ParameterError("slo", f"{name} must be milliseconds above 0 (got {value!r})")
    return number
