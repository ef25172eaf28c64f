"""What a request's verified rounds say of its next draft: the signals s and the outcome z (paper eq. 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(slots=True)
class History:
    """One request's; whoever decodes the request keeps it and tells it of every verified round.

    Attributes:
        previous: slots of the block verified last, 1 after an AR step, 0 before the first round.
        full: whether that block passed whole.
        idle: AR steps since a draft was verified.
    """

    previous: int = 0
    full: bool = False
    idle: int = 0
    _first: tuple[float, ...] = ()
    _every: tuple[float, ...] = ()
    _failures: float = 0.0
    _exposure: float = 0.0
    _signals: tuple[float, float, float] | None = None

    def add(self, verified: int, acceptance: int, entropies: Sequence[float]) -> None:
        """A round ended.

        Args:
            verified: slots of the causal row.
            acceptance: A, before any cut.
            entropies: the verifier's, in nats, at its causally valid decisions: up to and with the first
                mismatch, or without the bonus after a full block; for an AR step its only one.
        """
        self._signals = None
        if verified == 1:
            self._add_step(entropies)
            return
        self.previous, self.full, self.idle = verified, acceptance == verified, 0
        if entropies:
            few = entropies[:FIRST]
            self._first = (*self._first, sum(few) / len(few))[-ROUNDS:]
            self._every = (*self._every, sum(entropies) / len(entropies))[-ROUNDS:]
        kept = MEMORY**acceptance
        self._failures = self._failures * kept + (acceptance < verified)
        self._exposure = self._exposure * kept + min(acceptance, verified - 1)

    def _add_step(self, entropies: Sequence[float]) -> None:
        """An AR step; there are many of them."""
        self.previous, self.full = 1, False
        self.idle += 1
        if entropies:
            self._first = (*self._first[1 - ROUNDS :], entropies[0])
            self._every = (*self._every[1 - ROUNDS :], entropies[0])
        self._failures *= MEMORY
        self._exposure *= MEMORY

    @property
    def signals(self) -> tuple[float, float, float]:
        """In the order of SIGNALS; NaN where nothing is known yet."""
        if self._signals is None:
            record = -log((self._failures + FAILURES) / (self._exposure + EXPOSURE))
            self._signals = _certainty(self._first), _certainty(self._every), record
        return self._signals


def _certainty(entropies: tuple[float, ...]) -> float:
    return -sum(entropies) / len(entropies) if entropies else float("nan")
