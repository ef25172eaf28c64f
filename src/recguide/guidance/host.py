"""The host's time: what a step takes beyond its forward, by what kind of step it is.

Plain steps run ahead of the host, so that hardly any of its time shows; all others wait for it. A cost table
knows nothing of that. So steps are timed while they run, and what is found is a discrete cost of leaving
plain decoding, the same however much is drafted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import fmean, median

WINDOW = 16
"""Steps of a kind that are remembered."""
LEAST = 4
"""Steps before anything is said."""
EVERY = 4
"""Steps between two looks at them."""
SLOW = 2.0
"""A step that took so many lower quartiles did something else as well: it captured a graph, say."""
MOVED = 0.05
"""Share of a step by which what was learned must have moved before another number is said."""


@dataclass(frozen=True, slots=True)
class Host:
    """Milliseconds of a step beyond its forward, as (per step, per request).

    Attributes:
        plain: of a plain step behind another one of the same requests.
        other: of any other.
    """

    plain: tuple[float, float] = (0.0, 0.0)
    other: tuple[float, float] = (0.0, 0.0)

    def ms(self, requests: int, *, plain: bool) -> float:
        step, each = self.plain if plain else self.other
        return step + each * requests


class HostClock:
    """What was learned of the host's time; 0 until then. Numbers of requests are told apart by powers of two.

    Args:
        in_ms: forwards' times are milliseconds of this machine. Those of an assumed table are in some unit,
            in which plain steps take what the table says.
    """

    def __init__(self, *, in_ms: bool = True) -> None:
        self._unit = 1.0 if in_ms else None
        self._ratios: deque[float] | None = None if in_ms else deque(maxlen=WINDOW)
        self._kinds: dict[bool, dict[int, _Window]] = {True: {}, False: {}}

    def add(self, requests: int, forward_ms: float, step_ms: float, *, plain: bool) -> None:
        """A step took `step_ms` from the landing before it to its own, its forward by the table so much."""
        if self._ratios is not None and plain:
            self._ratios.append(step_ms / forward_ms)
            self._unit = median(self._ratios) if len(self._ratios) >= LEAST else None
        if self._unit is not None:
            windows = self._kinds[plain]
            windows.setdefault(_bucket(requests), _Window()).add(forward_ms, step_ms / self._unit)

    def ms(self, requests: int, *, plain: bool) -> float:
        """Of a step of so many requests; of the nearest number that was met."""
        windows, bucket = self._kinds[plain], _bucket(requests)
        known = [other for other, window in windows.items() if len(window.steps) >= LEAST]
        return windows[min(known, key=lambda other: abs(other - bucket))].ms if known else 0.0

    def detour_ms(self, requests: int) -> float:
        """What a step takes longer because it is not plain steps alone."""
        return max(0.0, self.ms(requests, plain=False) - self.ms(requests, plain=True))


class _Window:
    """The last steps of a kind.

    Attributes:
        steps: (step, forward) times of each.
        ms: what the usual ones took beyond their forwards; it moves in strides, so that what was made of it
            stays good for a while.
    """

    def __init__(self) -> None:
        self.steps: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self.ms = 0.0
        self._added = 0

    def add(self, forward_ms: float, step_ms: float) -> None:
        self.steps.append((step_ms, forward_ms))
        self._added += 1
        if self._added > LEAST and self._added % EVERY:
            return
        usual = sorted(step for step, _ in self.steps)[len(self.steps) // 4]
        found = max(0.0, fmean(step - forward for step, forward in self.steps if step <= SLOW * usual))
        if len(self.steps) <= LEAST or abs(found - self.ms) > MOVED * usual:
            self.ms = found


def _bucket(requests: int) -> int:
    return (requests - 1).bit_length()
