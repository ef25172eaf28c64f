"""The pictures of a load report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from recguide.bench.load.measures import chunk_tokens, e2e_ms, gaps_ms, inter_token_ms, ttft_ms
from recguide.bench.load.record import Record
from recguide.bench.load.report.canvas import BAD, SERIES, Canvas
from recguide.bench.load.result import Loaded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 80
Values = Callable[[Record], list[float]]


def latencies(loaded: Sequence[Loaded]) -> str:
    """How many requests, or tokens, were at least that quick."""
    panels: tuple[tuple[str, Values], ...] = (
        ("time to first token", lambda record: [] if (ms := ttft_ms(record)) is None else [ms]),
        ("inter-token latency", _each_token),
        ("gap between chunks", gaps_ms),
        ("end to end", lambda record: [e2e_ms(record)]),
    )
    with Canvas(panels=len(panels), height=2.8) as canvas:
        for axes, (title, values) in zip(canvas.axes, panels, strict=True):
            for colour, each in zip(SERIES, loaded, strict=False):
                _cumulative(axes, [ms for record in _whole(each) for ms in values(record)], colour)
            axes.set(title=title, xlabel="ms", ylim=(0, 102))
        canvas.axes[0].set_ylabel("% at most")
        return canvas.to_svg("Cumulative distributions of latencies")


def over_time(loaded: Sequence[Loaded]) -> str:
    """Requests under way, and tokens that arrived a second."""
    with Canvas(panels=2, height=2.8) as canvas:
        under_way, rate = canvas.axes
        end_s = max((record.ended_s for each in loaded for record in each.outcome.records), default=1.0)
        edges = np.linspace(0, end_s, _BINS + 1)
        for colour, each in zip(SERIES, loaded, strict=False):
            times, count = _under_way(each.outcome.records)
            under_way.step(times, count, where="post", color=colour, linewidth=1.2)
            rate.stairs(_tokens_per_s(each.outcome.records, edges), edges, color=colour, linewidth=1.2)
        under_way.set(title="requests under way", xlabel="seconds", ylim=(0, None))
        rate.set(title="output tokens a second", xlabel="seconds", ylim=(0, None))
        return canvas.to_svg("Requests under way and output tokens a second over time")


def requests(loaded: Sequence[Loaded]) -> str:
    """Each request's first token and end against when it was due; failures are crosses."""
    panels: tuple[tuple[str, Callable[[Record], float | None]], ...] = (
        ("time to first token of each request, ms", ttft_ms),
        ("end to end of each request, ms", e2e_ms),
    )
    with Canvas(panels=2, height=2.8) as canvas:
        for axes, (title, value) in zip(canvas.axes, panels, strict=True):
            for colour, each in zip(SERIES, loaded, strict=False):
                _scatter(axes, _whole(each), value, color=colour, marker="o")
                failed = [record for record in each.outcome.records if record.error is not None]
                _scatter(axes, failed, e2e_ms, color=BAD, marker="x")
            axes.set(title=title, xlabel="due at, seconds", ylim=(0, None))
        return canvas.to_svg("Latency of each request against the time it was due")


def acceptance(loaded: Sequence[Loaded]) -> str | None:
    """Tokens emitted by the rounds, where endpoints report them."""
    reporting = [
        (colour, found)
        for colour, each in zip(SERIES, loaded, strict=False)
        if (found := each.summary.speculation) is not None and found.acceptance
    ]
    if not reporting:
        return None
    width = 0.8 / len(reporting)
    with Canvas(height=2.6) as canvas:
        axes = canvas.axes[0]
        for place, (colour, found) in enumerate(reporting):
            rounds = sum(found.acceptance.values())
            left = [tokens + (place - (len(reporting) - 1) / 2) * width for tokens in found.acceptance]
            axes.bar(left, [100 * n / rounds for n in found.acceptance.values()], width, color=colour)
        axes.set(title="rounds by tokens emitted, %", xlabel="acceptance A")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return canvas.to_svg("Histogram of acceptance")


def _whole(loaded: Loaded) -> list[Record]:
    return [record for record in loaded.outcome.records if record.error is None]


def _each_token(record: Record) -> list[float]:
    """A chunk's latency once for each of its tokens; shared-out tokens are rounded up to one at least."""
    return [ms for ms, tokens in inter_token_ms(record) for _ in range(max(1, round(tokens)))]


def _cumulative(axes: Axes, values: Sequence[float], colour: str) -> None:
    if not values:
        return
    ordered = np.sort(values)
    share = 100 * np.arange(1, len(ordered) + 1) / len(ordered)
    axes.step(ordered, share, where="post", color=colour, linewidth=1.4)
    positive = ordered[ordered > 0]
    if len(positive) and positive[-1] > 30 * positive[0]:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(ScalarFormatter())


def _scatter(
    axes: Axes, records: Sequence[Record], value: Callable[[Record], float | None], *, color: str, marker: str
) -> None:
    points = [(record.scheduled_s, ms) for record in records if (ms := value(record)) is not None]
    if points:
        width = 1.2 if marker == "x" else 0.0
        axes.scatter(*zip(*points, strict=True), s=14, c=color, marker=marker, linewidths=width, alpha=0.75)


def _under_way(records: Sequence[Record]) -> tuple[list[float], list[int]]:
    """Times at which the number of requests under way changes, and the number from then on."""
    changes = sorted([(r.scheduled_s, 1) for r in records] + [(r.ended_s, -1) for r in records])
    times, counts, count = [0.0], [0], 0
    for at_s, change in changes:
        count += change
        times.append(at_s)
        counts.append(count)
    return times, counts


def _tokens_per_s(records: Sequence[Record], edges: np.ndarray) -> np.ndarray:
    """Tokens of the chunks in each bin over its width."""
    pairs = [
        (arrival.at_s, tokens)
        for record in records
        for arrival, tokens in zip(record.arrivals, chunk_tokens(record), strict=True)
    ]
    counts, _ = np.histogram([at for at, _ in pairs], edges, weights=[tokens for _, tokens in pairs])
    return counts / np.diff(edges)
