"""Measures T(N, M, X) of a model on this device, and refuses to make a table of what cannot be true.

What times a forward is handed in, so the statistics are the same for a GPU's graphs, a CPU and a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recguide.core import RecGuideError
from recguide.guidance.conditions import Conditions
from recguide.guidance.cost import CostTable
from recguide.models.progress import Progress, ignore_progress

Floats = NDArray[np.float64]

SHORT, LONG = 128, (1024, 4096)
"""Prefix tokens of a request: where N alone is looked at, and where the prefix's share is."""
SHARE = 16
"""Query tokens of a request, as a verified block has; requests share a forward's query tokens evenly."""
NOISY, FALLING, FLAT, UNEXPLAINED, ERRORS = 0.35, 0.8, 1.03, 0.2, 3.0
"""What is not believed: spread ÷ median; a larger N's share of a smaller one's time; the largest N's of the
smallest one's; root mean square of relative residuals; how many standard errors a term lies below 0."""


class ImplausibleProfile(RecGuideError):  # noqa: N818 - it names what was found
    """Times that no table is made of; says why."""


@dataclass(frozen=True, slots=True)
class Point:
    """A forward to be timed: `requests` with prefixes of `prefix` tokens share `tokens` query tokens."""

    tokens: int
    requests: int
    prefix: int

    @property
    def read(self) -> int:
        """M: prefix tokens read, once per request."""
        return self.requests * self.prefix

    @property
    def pairs(self) -> int:
        """X: query tokens × prefix tokens."""
        return self.tokens * self.prefix


Timer = Callable[[Point], Sequence[float]]
"""Milliseconds of a forward, several times."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A point's median and half the distance between its quartiles, in milliseconds."""

    point: Point
    median_ms: float
    spread_ms: float


@dataclass(frozen=True, slots=True)
class Terms:
    """Least squares over all points: what each N costs, and the terms in M and X with standard errors."""

    base_ms: dict[int, float]
    prefix_ms: float
    pair_ms: float
    prefix_error_ms: float
    pair_error_ms: float
    residuals: tuple[float, ...]

    @property
    def residual(self) -> float:
        """Root mean square of the relative residuals, taken over points that share their N with another."""
        return float(np.sqrt(np.mean(np.square(self.residuals)))) if self.residuals else 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """A table, and the points that it was made of."""

    table: CostTable
    terms: Terms
    measured: tuple[Measured, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One for each point: measured, and what the table says."""
        return [
            {
                "tokens": one.point.tokens,
                "requests": one.point.requests,
                "prefix": one.point.prefix,
                "ms": one.median_ms,
                "spread_ms": one.spread_ms,
                "table_ms": float(self.table.ms(one.point.tokens, one.point.read, one.point.pairs)),
            }
            for one in self.measured
        ]


def profile(
    timer: Timer,
    points: Sequence[Point],
    conditions: Conditions,
    *,
    stepped: bool,
    progress: Progress = ignore_progress,
) -> Profile:
    """Times all points and fits the table.

    Raises ImplausibleProfile for times that are flat, noisy, falling with N or not explained by the terms.
    """
    measured: list[Measured] = []
    for done, point in enumerate(points):
        progress("timing forwards", done, len(points))
        measured.append(_measure(timer, point))
    _refuse_noise(measured)
    terms = fit(measured)
    _refuse_shape(terms)
    tokens = tuple(sorted(terms.base_ms))
    spreads = {n: max(one.spread_ms for one in measured if one.point.tokens == n) for n in tokens}
    table = CostTable(
        tokens=tokens,
        base_ms=tuple(terms.base_ms[n] for n in tokens),
        spread_ms=tuple(spreads[n] for n in tokens),
        prefix_ms=terms.prefix_ms,
        pair_ms=terms.pair_ms,
        stepped=stepped,
        residual=terms.residual,
        conditions=conditions,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return Profile(table, terms, tuple(measured))


# --- what to time -------------------------------------------------------------------------------------------


def grid(
    sizes: Sequence[int], *, most_requests: int, pages: int, page_size: int, most_positions: int
) -> list[Point]:
    """Every N once with short prefixes, and three of them with few and many, short and long ones.

    Prefixes are shortened to what so many pages of the cache and the model's positions hold.
    """
    held = {
        requests: min(pages // requests * page_size, most_positions)
        for requests in range(1, most_requests + 1)
    }
    shared = {n: min(max(1, n // SHARE), most_requests) for n in sizes}
    points = [_fitting(n, shared[n], SHORT, held) for n in sizes]
    middle = sorted({sizes[len(sizes) // 4], sizes[len(sizes) // 2], sizes[-1 - len(sizes) // 4]})
    for n in middle:
        for requests in sorted({1, shared[n], min(n, 4 * shared[n], most_requests)}):
            for prefix in LONG:
                points.append(_fitting(n, requests, prefix, held))
    return list(dict.fromkeys(point for point in points if point is not None))


def _fitting(n: int, requests: int, prefix: int, held: Mapping[int, int]) -> Point | None:
    """The point with a prefix that fits, a multiple of 16; None if none does.

    `held`: tokens of each of so many requests, at most.
    """
    own = -(-n // requests)
    room = min(prefix, held[requests] - own) // 16 * 16
    return Point(n, requests, room) if room >= 16 else None


def expected_s(once: Callable[[Point], float], points: Sequence[Point], times: int) -> float:
    """About how many seconds it takes to time all points so many times.

    Judged by three forwards as if time were linear in N and M: the smallest, a larger one with little to
    read, and the one of that size that reads most.

    Args:
        once: milliseconds of a single forward.
    """
    ordered = sorted(points, key=lambda point: (point.prefix > SHORT, point.tokens))
    larger = ordered[len({point.tokens for point in points}) // 2]
    most = max((point for point in points if point.tokens == larger.tokens), key=lambda point: point.read)
    sample = list(dict.fromkeys((ordered[0], larger, most)))
    took_ms = np.array([once(point) for point in sample])
    plane, *_ = np.linalg.lstsq(_plane(sample), took_ms, rcond=None)
    return 1e-3 * times * float(np.maximum(_plane(points) @ plane, took_ms.min()).sum())


def _plane(points: Sequence[Point]) -> Floats:
    return np.array([(1.0, point.tokens, point.read) for point in points])


# --- what times say -----------------------------------------------------------------------------------------


def fit(measured: Sequence[Measured]) -> Terms:
    """T = base(N) + prefix_ms · M + pair_ms · X by least squares of relative residuals, no term below 0.

    Raises ImplausibleProfile for a term that lies below 0 by more than its error explains.
    """
    both = _least_squares(measured, (True, True))
    for name, cost, error in (
        ("a prefix token read", both.prefix_ms, both.prefix_error_ms),
        ("a query token that meets a prefix token", both.pair_ms, both.pair_error_ms),
    ):
        if cost + ERRORS * error < 0:
            raise ImplausibleProfile(
                f"profile: {name} costs {cost:.2g} ms, less than 0; was the device busy?"
            )
    fits = [both, *(_least_squares(measured, kept) for kept in ((True, False), (False, True)))]
    possible = [terms for terms in fits if terms.prefix_ms >= 0 and terms.pair_ms >= 0]
    # Of two terms one that belongs to the other's noise is left out; the fit with both is the closest.
    return min(possible, key=lambda terms: terms.residual, default=_least_squares(measured, (False, False)))


def _least_squares(measured: Sequence[Measured], kept: tuple[bool, bool]) -> Terms:
    times = np.array([one.median_ms for one in measured])
    sizes = sorted({one.point.tokens for one in measured})
    own = np.array([[one.point.tokens == n for n in sizes] for one in measured], dtype=np.float64)
    prefix = np.array([(one.point.read, one.point.pairs) for one in measured], dtype=np.float64)
    scale = np.maximum(prefix.max(0), 1.0)
    columns = np.hstack([own, prefix[:, list(kept)] / scale[list(kept)]])
    weighted = columns / times[:, None]
    solution, *_ = np.linalg.lstsq(weighted, np.ones(len(times)), rcond=None)
    misses = 1 - weighted @ solution
    shared = own @ own.sum(0) > 1
    free = len(times) - int(np.linalg.matrix_rank(weighted))
    variance = float(misses @ misses) / free if free > 0 else 0.0
    errors = np.sqrt(variance * np.diag(np.linalg.pinv(weighted.T @ weighted)))
    slopes, slope_errors = np.zeros(2), np.zeros(2)
    slopes[list(kept)] = solution[len(sizes) :] / scale[list(kept)]
    slope_errors[list(kept)] = errors[len(sizes) :] / scale[list(kept)]
    return Terms(
        base_ms=dict(zip(sizes, solution[: len(sizes)].tolist(), strict=True)),
        prefix_ms=float(slopes[0]),
        pair_ms=float(slopes[1]),
        prefix_error_ms=float(slope_errors[0]),
        pair_error_ms=float(slope_errors[1]),
        residuals=tuple(misses[shared].tolist()),
    )


def _measure(timer: Timer, point: Point) -> Measured:
    samples = np.asarray(timer(point), dtype=np.float64)
    if len(samples) == 0 or not np.isfinite(samples).all() or (samples <= 0).any():
        raise ImplausibleProfile(f"profile: {point} took {samples.tolist()} ms; a time is positive")
    low, median, high = np.percentile(samples, (25, 50, 75))
    return Measured(point, float(median), float(high - low) / 2)


def _refuse_noise(measured: Sequence[Measured]) -> None:
    for one in measured:
        if one.spread_ms > NOISY * one.median_ms:
            raise ImplausibleProfile(
                f"profile: {one.point.tokens} query tokens took {one.median_ms:.3g} ± {one.spread_ms:.3g} "
                "ms: noise; is something else running on the device?"
            )


def _refuse_shape(terms: Terms) -> None:
    if terms.residual > UNEXPLAINED:
        raise ImplausibleProfile(
            f"profile: terms in M and X miss what was measured by {terms.residual:.0%}; was the device busy?"
        )
    times = [terms.base_ms[n] for n in sorted(terms.base_ms)]
    if min(times) <= 0:
        raise ImplausibleProfile("profile: without its prefix some N costs less than nothing")
    if times[-1] < FLAT * times[0]:
        n = sorted(terms.base_ms)
        raise ImplausibleProfile(
            f"profile: the table is flat: {n[-1]} query tokens cost {times[-1]:.3g} ms and {n[0]} cost "
            f"{times[0]:.3g}; was the whole forward timed?"
        )
    dearest = (0, 0.0)
    for n, time in sorted(terms.base_ms.items()):
        if time < FALLING * dearest[1]:
            raise ImplausibleProfile(
                f"profile: {n} query tokens cost {time:.3g} ms, but {dearest[0]} cost {dearest[1]:.3g}; was "
                "the device busy, or throttled?"
            )
        dearest = max(dearest, (n, time), key=lambda one: one[1])
