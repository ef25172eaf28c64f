"""What was planned for the forwards on their way, and how long each took."""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

from recguide.engine.flight import Flight
from recguide.engine.planning import Planned

LATE_S = 50e-6
"""A landing that is read within that time was there before."""


class Landing(NamedTuple):
    """A forward that has landed.

    Attributes:
        planned: what was planned for it.
        ms: milliseconds since its launch, as the host saw them; `step_ms` since the landing before it.
        waited_ms: from that landing to its launch: the device had nothing to do.
        late: nor did it before the host asked for this landing.
        first: its time says nothing of others like it; see `landing.Landing`.
    """

    planned: Planned
    ms: float
    step_ms: float
    waited_ms: float
    late: bool
    first: bool = False


class Flown:
    """One forward is on its way at a time.

    Attributes:
        landing: the last one that has landed.
    """

    def __init__(self) -> None:
        self.landing = Landing(Planned(), 0.0, 0.0, 0.0, late=False)
        self._planned, self._first = Planned(), False
        self._since = self._before = perf_counter()

    def launched(self, planned: Planned, flight: Flight) -> None:
        self._planned, self._since, self._first = planned, flight.began, flight.first

    def landed(self, asked: float, now: float) -> None:
        """To be told before the next is `launched`; `asked`, `now`: of that clock, when the host began to
        wait, and when it had landed."""
        flew, stepped = 1e3 * (now - self._since), 1e3 * (now - self._before)
        late = now - asked < LATE_S
        self.landing = Landing(self._planned, flew, stepped, stepped - flew, late, self._first)
        self._before = now
