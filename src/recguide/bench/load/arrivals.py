"""When an open-loop load's requests are sent: decided beforehand by its rate and seed, never by answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import sqrt
from typing import Protocol

from recguide.core import ParameterError


class Arrivals(Protocol):
    """A law of arrivals."""

    def times(self, random: random.Random) -> Iterator[float]:
        """Seconds from the start, rising, without end."""
        ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent users: exponential gaps, `rate` requests a second."""

    rate: float

    def times(self, random: random.Random) -> Iterator[float]:
        at = 0.0
        while True:
            at += random.expovariate(self.rate)
            yield at


@dataclass(frozen=True, slots=True)
class Ramp:
    """Independent users that become more: the rate rises from `start` to `rate` in `rise_s`, then stays.

    A Poisson process whose rate changes is a unit one on the clock Λ(t), the requests expected until t; here
    Λ(t) = start·t + (rate − start)·t²/(2·rise_s).
    """

    start: float
    rate: float
    rise_s: float

    def times(self, random: random.Random) -> Iterator[float]:
        expected = 0.0
        while True:
            expected += random.expovariate(1.0)
            yield self._when(expected)

    def _when(self, expected: float) -> float:
        risen = (self.start + self.rate) / 2 * self.rise_s
        if expected >= risen:
            return self.rise_s + (expected - risen) / self.rate
        slope = (self.rate - self.start) / self.rise_s
        # The root of slope/2·t² + start·t = expected in the form that holds for slope 0 too.
        return 2 * expected / (self.start + sqrt(self.start**2 + 2 * slope * expected))


@dataclass(frozen=True, slots=True)
class Burst:
    """`size` requests at once, every size/rate seconds: `rate` a second on average."""

    rate: float
    size: int

    def times(self, random: random.Random) -> Iterator[float]:
        del random  # bursts are regular
        for burst in count():
            for _ in range(self.size):
                yield burst * self.size / self.rate


def arrivals_named(name: str, rate: float, *, start_rate: float, rise_s: float, burst_size: int) -> Arrivals:
    """The law called poisson, ramp or burst. Raises ParameterError that names what is out of range."""
    if rate <= 0:
        raise ParameterError("rate", f"must be above 0 requests a second (got {rate})")
    if name == "poisson":
        return Poisson(rate)
    if name == "ramp":
        if start_rate < 0 or rise_s <= 0:
            raise ParameterError("start_rate", "a ramp starts at 0 or more a second and rises over some time")
        return Ramp(start_rate, rate, rise_s)
    if name == "burst":
        if burst_size < 1:
            raise ParameterError("burst_size", f"must be at least 1 (got {burst_size})")
        return Burst(rate, burst_size)
    raise ParameterError("arrivals", f"{name!r} is none of poisson, ramp, burst")
