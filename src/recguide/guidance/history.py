"""What a request's verified rounds say of its next draft: the signals s and the outcome z (paper eq. 2)."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from recguide.core import ParameterError

FIRST = 7
"""Verified decisions whose entropy counts in `entropy`: as many as a block of 8 always has."""
ROUNDS = 2
"""Rounds that s averages over."""

MEMORY = 0.98
"""What a failure still weighs in `record`, per token emitted since."""
FAILURES, EXPOSURE = 1.0, 12.0
"""`record` without any history: one failure in twelve slots."""

SIGNALS = ("entropy", "entropy-all", "record")
"""Larger is easier. `entropy`, `entropy-all`: eq. 2's s over the first seven, or all, valid decisions.
`record`: minus the logarithm of the share of draft slots that failed lately."""


def signal_named(name: str) -> int:
    """Its place among SIGNALS."""
    if name not in SIGNALS:
        raise ParameterError("signal", f"{name!r} is not one of {', '.join(SIGNALS)}")
    return SIGNALS.index(name)


class History:
    """One request's; whoever decodes the request keeps it and tells it of every verified round.

    AR steps are many, so they are only counted; what they mean is found out when someone asks.

    Attributes:
        idle: AR steps since a draft was verified.
    """

    __slots__ = (
        "_every",
        "_exposure",
        "_failures",
        "_first",
        "_full",
        "_known",
        "_step",
        "_step_before",
        "_verified",
        "idle",
    )

    def __init__(self) -> None:
        self.idle = 0
        self._verified, self._full = 0, False
        self._first: tuple[float, ...] = ()
        self._every: tuple[float, ...] = ()
        self._step_before: Sequence[float] = ()
        self._step: Sequence[float] = ()
        """Entropies of the last two of the AR steps."""
        self._failures = self._exposure = 0.0
        self._known: tuple[int, tuple[float, float, float]] | None = None
        """The signals, and what `idle` was."""

    @property
    def previous(self) -> int:
        """Slots of the block verified last, 1 after an AR step, 0 before the first round."""
        return 1 if self.idle else self._verified

    @property
    def full(self) -> bool:
        """Whether that block passed whole."""
        return self._full and not self.idle

    def add(self, verified: int, acceptance: int, entropies: Sequence[float]) -> None:
        """A round ended.

        Args:
            verified: slots of the causal row.
            acceptance: A, before any cut.
            entropies: the verifier's, in nats, at its causally valid decisions: up to and with the first
                mismatch, or without the bonus after a full block; for an AR step its only one.
        """
        if verified == 1:
            self.idle += 1
            self._step_before, self._step = self._step, entropies
            return
        few = [_mean(entropies[:FIRST])] if entropies else []
        every = [_mean(entropies)] if entropies else []
        self._first = (*self._first, *self._steps, *few)[-ROUNDS:]
        self._every = (*self._every, *self._steps, *every)[-ROUNDS:]
        self._step_before = self._step = ()
        kept = MEMORY ** (self.idle + acceptance)
        self._failures = self._failures * kept + (acceptance < verified)
        self._exposure = self._exposure * kept + min(acceptance, verified - 1)
        self._verified, self._full, self.idle = verified, acceptance == verified, 0
        self._known = None

    @property
    def _steps(self) -> tuple[float, ...]:
        return (*self._step_before, *self._step)

    @property
    def signals(self) -> tuple[float, float, float]:
        """In the order of SIGNALS; NaN where nothing is known yet."""
        if self._known is None or self._known[0] != self.idle:
            kept = MEMORY**self.idle
            record = -log((self._failures * kept + FAILURES) / (self._exposure * kept + EXPOSURE))
            first, every = ((*rounds, *self._steps)[-ROUNDS:] for rounds in (self._first, self._every))
            self._known = self.idle, (_certainty(first), _certainty(every), record)
        return self._known[1]


def _mean(entropies: Sequence[float]) -> float:
    return sum(entropies) / len(entropies)


def _certainty(entropies: tuple[float, ...]) -> float:
    return -_mean(entropies) if entropies else float("nan")
