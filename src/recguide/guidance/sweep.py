"""The exact solutions of a step: increments in the order of Δy/Δn, and N swept upward over the cost table."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from recguide.guidance.arrays import Bools, Floats, Ints

Time = Callable[[Floats, Floats], Floats]
"""(N, X) → T in milliseconds, for arrays."""

BETWEEN = 64
"""Places in between at which T is looked at too, where equal requests may be split."""
_SHARES = np.linspace(0.0, 1.0, BETWEEN)


@dataclass(frozen=True, slots=True)
class Base:
    """What is there before any increment: query tokens, query × prefix tokens, yield."""

    tokens: float
    pairs: float
    gain: float


@dataclass(frozen=True, slots=True)
class Increments:
    """What may be added, [I] each; Δy/Δn of one request's must fall.

    Attributes:
        tokens, gain: Δn > 0 and Δy.
        prefix: prefix tokens of its request.
        weight: what one of its query tokens costs, relative to one of a request without prefix.
    """

    tokens: Floats
    gain: Floats
    prefix: Floats
    weight: Floats

    @property
    def slope(self) -> Floats:
        return self.gain / (self.tokens * self.weight)


Step = tuple[float, float, float, float]
"""(Δy/Δn, Δn, Δx, Δy) of one increment."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where plans have the most Y/T.

    Attributes:
        tokens, gain, ms: N, Y and T there.
        last, following: Δy/Δn just below and just above; inf and 0 where there is nothing.
    """

    tokens: float
    gain: float
    ms: float
    last: float
    following: float


@dataclass(frozen=True, slots=True)
class Swept:
    """Increments in their order.

    Attributes:
        slope: [I] falling.
        tokens, pairs, gain: N, X, Y [I + 1], before the first increment and after each.
    """

    slope: Floats
    tokens: Floats
    pairs: Floats
    gain: Floats

    @classmethod
    def of(cls, base: Base, slope: Floats, tokens: Floats, pairs: Floats, gain: Floats) -> Swept:
        """Of what each increment adds, [I] each."""
        sums = np.empty((3, len(slope) + 1))
        sums[:, 0] = base.tokens, base.pairs, base.gain
        sums[0, 1:], sums[1, 1:], sums[2, 1:] = tokens, pairs, gain
        np.cumsum(sums, axis=1, out=sums)
        return cls(slope, *sums)

    def best(self, time: Time) -> Cut:
        """The cut with the most Y/T, at an increment's end or at one of BETWEEN places."""
        n = self.tokens
        between = n[0] + (n[-1] - n[0]) * _SHARES
        places = np.concatenate([n, between])
        pairs = np.concatenate([self.pairs, np.interp(between, n, self.pairs)])
        gain = np.concatenate([self.gain, np.interp(between, n, self.gain)])
        ms = time(places, pairs)
        best = int((gain / ms).argmax())
        below = int(n.searchsorted(places[best], side="left"))  # increments begun up to there
        above = int(n.searchsorted(places[best], side="right")) - 1  # increments completed
        return Cut(
            tokens=float(places[best]),
            gain=float(gain[best]),
            ms=float(ms[best]),
            last=float(self.slope[below - 1]) if below else float("inf"),
            following=float(self.slope[above]) if above < len(self.slope) else 0.0,
        )


def best_of_few(base: Base, steps: Sequence[Step], time: Time, at: Callable[[float, float], float]) -> Cut:
    """`Swept.best` of a few increments, slopes falling; `at`: T at one place, as `time` has it."""
    n, x, y = [base.tokens], [base.pairs], [base.gain]
    for _, tokens, pairs, gain in steps:
        n.append(n[-1] + tokens)
        x.append(x[-1] + pairs)
        y.append(y[-1] + gain)
    best, place, made, ms = 0.0, 0.0, 0.0, 0.0
    for tokens, pairs, gain in zip(n, x, y, strict=True):
        took = at(tokens, pairs)
        if gain > best * took:
            best, place, made, ms = gain / took, tokens, gain, took
    places = n[0] + (n[-1] - n[0]) * _SHARES
    gains, times = np.interp(places, n, y), time(places, np.interp(places, n, x))
    rates = gains / times
    between = int(rates.argmax())
    if rates[between] > best:
        place, made, ms = float(places[between]), float(gains[between]), float(times[between])
    begun, completed = bisect_left(n, place), bisect_right(n, place) - 1
    return Cut(
        tokens=place,
        gain=made,
        ms=ms,
        last=steps[begun - 1][0] if begun else float("inf"),
        following=steps[completed][0] if completed < len(steps) else 0.0,
    )


def best_rate(base: Base, increments: Increments, time: Time) -> Cut:
    """The cut with the most Y/T. An increment may be taken in part: it stands for equal requests."""
    return _swept(base, increments)[1].best(time)


def best_profit(base: Base, increments: Increments, time: Time, rate: float) -> Bools:
    """[I] the increments up to the most Y − ρ·T: one step of a run with ρ tokens per millisecond."""
    order, swept = _swept(base, increments)
    best = int((swept.gain - rate * time(swept.tokens, swept.pairs)).argmax())
    taken = np.zeros(len(order), np.bool_)
    taken[order[:best]] = True
    return taken


def _swept(base: Base, increments: Increments) -> tuple[Ints, Swept]:
    """Which of equals comes first does not matter: those of one request are told apart by their number."""
    slope = increments.slope
    order = np.argsort(-slope)
    slope, tokens, prefix, gain = (
        column.take(order) for column in (slope, increments.tokens, increments.prefix, increments.gain)
    )
    return order, Swept.of(base, slope, tokens, tokens * prefix, gain)
