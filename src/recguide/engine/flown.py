"""What was planned for the forwards on their way, and how long each took."""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

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
    """

    planned: Planned
    ms: float
    step_ms: float
    waited_ms: float
    late: bool


class Flown:
    """One forward is on its way at a time.

    Attributes:
        landing: the last one that has landed.
    """

    def __init__(self) -> None:
        self.landing = Landing(Planned(), 0.0, 0.0, 0.0, late=False)
        self._planned = Planned()
        self._since = self._before = perf_counter()

    def launched(self, planned: Planned, began: float) -> None:
        """`began`: seconds of `time.perf_counter`."""
        self._planned, self._since = planned, began

    def landed(self, asked: float, now: float) -> None:
        """To be told before the next is `launched`; `asked`, `now`: of that clock, when the host began to
        wait, and when it had landed."""
        flew, stepped = 1e3 * (now - self._since), 1e3 * (now - self._before)
        self.landing = Landing(self._planned, flew, stepped, stepped - flew, now - asked < LATE_S)
        self._before = now
