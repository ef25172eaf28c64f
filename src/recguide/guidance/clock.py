"""A cost table as policies ask for it: T at every N at once, as it is and as a mean over nearby N."""

from __future__ import annotations

import numpy as np

from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.cost import CostTable
from recguide.guidance.pace import Pace
from recguide.guidance.sweep import Time
from recguide.guidance.view import View, total

SPREAD = 0.25
"""A plan's N is a mean over steps; those steps' own N lie within this share of it, say."""


class Clock:
    """T(N, M, X) by look-up; N up to twice the table's end, linear beyond.

    A plan's N is a mean over its steps, so T is smoothed where means are compared: a graph's bucket costs a
    step of T, and a mean that lies just under one is no cheaper than one that lies just above.

    What policies plan by is their `own` one, which goes with what forwards really take (`learn`).

    Attributes:
        known: T of N = 0, 1, …, without its prefix, as far as it is looked up.
        in_ms: times are milliseconds; else in some unit, as an assumed table's are.
        moved: times that T became another one.
    """

    def __init__(self, table: CostTable, *, in_ms: bool = True) -> None:
        self.in_ms, self.moved = in_ms, 0
        self.prefix_ms, self.pair_ms = table.prefix_ms, table.pair_ms
        self._table, self._pace = table, Pace(table.tokens)
        self._tokens = np.arange(1, 2 * table.tokens[-1] + 1)
        self._said = table.ms(self._tokens)
        self._set(self._said, table.slope_ms)

    def own(self) -> Clock:
        """Another one of the same table, which has learned nothing."""
        return Clock(self._table, in_ms=self.in_ms)

    def learn(self, tokens: int, ms: float) -> None:
        """A forward of so many query tokens took so long, without its prefix. Of a table in some unit nothing
        is learned."""
        said = float(self._said[tokens - 1]) if self.in_ms and tokens <= len(self._said) else 0.0
        if said and self._pace.add(tokens, ms / said):
            times = self._pace.of(self._tokens)
            self.moved += 1
            self._set(times * self._said, float(times[-1]) * self._table.slope_ms)

    def _set(self, known: Floats, slope: float) -> None:
        """T of N = 1, 2, …, and of each more beyond."""
        self._exact = np.concatenate([[0.0], known])
        self.known: list[float] = self._exact.tolist()
        self._mean = _smoothed(self._exact)
        self._rise = np.diff(self._mean, append=self._mean[-1] + slope)
        self._lists: tuple[list[float], list[float]] = self._mean.tolist(), self._rise.tolist()
        self._slope = slope

    def ms(self, tokens: Ints, prefix: Floats | float = 0.0, pairs: Floats | float = 0.0) -> Floats:
        """T of steps; that of N = 0 is 0."""
        return self._look_up(self._exact, tokens) + self._terms(prefix, pairs)

    def at(self, tokens: int) -> float:
        """T of one step, without its prefix."""
        last = len(self.known) - 1
        return self.known[tokens] if tokens <= last else self.known[last] + self._slope * (tokens - last)

    def of_view(self, view: View, tokens: int, pairs: float) -> float:
        """T of a step of these requests with so many query tokens, and query × prefix tokens, in all."""
        return self.at(tokens) + self.terms_of(view, pairs)

    def terms_of(self, view: View, pairs: float) -> float:
        """What it takes for the prefixes of these requests."""
        return self.prefix_ms * (view.prefix_tokens + total(view.prefix)) + self.pair_ms * pairs

    def of_step(self, view: View, detour_ms: float = 0.0) -> Time:
        """T(N, X) for rising N of a step of these requests, from the least N on; infinite beyond what it may
        hold. All but the least takes `detour_ms` longer."""
        read = float(view.prefix_tokens + view.prefix.sum())

        def ms(tokens: Floats, pairs: Floats) -> Floats:
            found = self.ms(tokens.astype(np.int64), read, pairs if self.pair_ms else 0.0)
            if detour_ms:
                found[1:] += detour_ms
            return found if tokens[-1] <= view.most else np.where(tokens <= view.most, found, np.inf)

        return ms

    def mean_ms(self, tokens: Floats, prefix: Floats | float = 0.0, pairs: Floats | float = 0.0) -> Floats:
        """T of plans, whose N is a mean."""
        low = tokens.astype(np.int64)
        np.minimum(low, len(self._mean) - 1, out=low)
        # Beyond the end the last rise goes on.
        return self._mean.take(low) + (tokens - low) * self._rise.take(low) + self._terms(prefix, pairs)

    def slope_ms(self, tokens: float) -> float:
        """What one more query token costs around there."""
        reach = max(1.0, SPREAD * tokens)
        low, high = max(1.0, tokens - reach), tokens + reach
        return max(0.0, self.mean_at(high) - self.mean_at(low)) / (high - low)

    def mean_at(self, tokens: float, prefix: float = 0.0, pairs: float = 0.0) -> float:
        """`mean_ms` of one plan."""
        means, rises = self._lists
        low = min(int(tokens), len(means) - 1)
        terms = self.prefix_ms * prefix + self.pair_ms * pairs
        return means[low] + (tokens - low) * rises[low] + terms

    def _look_up(self, values: Floats, tokens: Ints) -> Floats:
        last = len(values) - 1
        if tokens.max() <= last:
            return values.take(tokens)
        inside = np.minimum(tokens, last)
        return values[inside] + self._slope * (tokens - inside)

    def _terms(self, prefix: Floats | float, pairs: Floats | float) -> Floats | float:
        return self.prefix_ms * prefix + self.pair_ms * pairs


def _smoothed(values: Floats) -> Floats:
    """Means over [(1 − SPREAD)·N, (1 + SPREAD)·N]; the last values go on along their slope."""
    last = len(values) - 1
    number = np.arange(last + 1)
    reach = (SPREAD * number).astype(np.int64)
    reach = np.minimum(reach, last - number)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    low, high = np.maximum(number - reach, np.minimum(1, number)), number + reach
    return (sums[high + 1] - sums[low]) / (high + 1 - low)
