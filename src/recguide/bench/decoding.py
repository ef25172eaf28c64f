"""Requests decoded side by side, and the time of the steps in which all of them decode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, quantiles

from recguide.bench.stage import alone_ms
from recguide.core import RoundStats, SamplingParams
from recguide.engine.engine import Engine
from recguide.engine.flight import Forward
from recguide.engine.request import Request


@dataclass(frozen=True, slots=True)
class Decoding:
    """The window from the first step without prefill to the end of the first request.

    Attributes:
        load: C, requests that decode in every step of the window.
        tokens: tokens they emitted in it.
        step_ms: wall time of each step, from one's end to the next one's.
        stats: what the rounds of all requests did, inside and outside the window.
        mean_prefix: mean committed length in the middle of the window.
        graph_ms: what the window's forwards take as CUDA graphs alone; None if it was not asked for, or any
            ran without a graph.
    """

    load: int
    tokens: int
    step_ms: tuple[float, ...]
    stats: RoundStats
    mean_prefix: float
    graph_ms: float | None = None

    @property
    def wall_ms(self) -> float:
        return sum(self.step_ms)

    @property
    def tokens_per_s(self) -> float:
        return 1e3 * self.tokens / self.wall_ms


@dataclass(slots=True)
class Sum:
    """Everything that one way of decoding did, text after text."""

    tokens: int = 0
    wall_ms: float = 0.0
    timed_ms: float = 0.0
    graph_ms: float = 0.0
    steps: int = 0
    rates: list[float] = field(default_factory=list[float])
    stats: RoundStats = field(default_factory=RoundStats)

    def add(self, found: Decoding) -> None:
        if not found.step_ms:  # the text ended with its first token
            return
        self.tokens += found.tokens
        self.wall_ms += found.wall_ms
        self.steps += len(found.step_ms)
        if found.graph_ms is not None:
            self.timed_ms += found.wall_ms
            self.graph_ms += found.graph_ms
        self.rates.append(found.tokens_per_s)
        self.stats.add(found.stats)

    @property
    def tokens_per_s(self) -> float:
        return 1e3 * self.tokens / self.wall_ms if self.wall_ms else 0.0

    @property
    def efficiency(self) -> float | None:
        """Over the texts whose forwards were timed alone, too; None without any."""
        return self.graph_ms / self.timed_ms if self.timed_ms else None


def decode(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    *,
    alone: bool = False,
) -> Decoding:
    """Decodes all prompts until the first is done; the others are aborted then.

    The engine must be idle and have room for all of them at once. With `alone` the forwards of the window are
    timed again afterwards, as graphs alone.
    """
    launched: list[Forward] = []
    engine.runner.forwards = launched if alone else None
    requests = [
        request for prompt, p in zip(prompts, params, strict=True) for request in engine.add(prompt, p)
    ]
    prefills = 0
    while not all(request.emitted for request in requests):
        engine.step()
        prefills += 1
    before, cached = _emitted(requests), _cached(requests)
    stamps = [time.perf_counter()]
    while all(request.finish_reason is None for request in requests):
        engine.step()
        stamps.append(time.perf_counter())
    tokens = _emitted(requests) - before
    engine.runner.forwards = None
    for request in requests:
        engine.abort(request)
    stats = RoundStats()
    for request in requests:
        stats.add(request.stats)
    steps = len(stamps) - 1
    return Decoding(
        load=len(requests),
        tokens=tokens,
        step_ms=tuple(1e3 * (after - at) for at, after in pairwise(stamps)),
        stats=stats,
        mean_prefix=(cached + tokens / 2) / len(requests),
        # Every step lands one forward; what is launched after the last one is not waited for.
        graph_ms=alone_ms(engine.runner, launched[prefills : prefills + steps]) if alone else None,
    )


def _emitted(requests: Sequence[Request]) -> int:
    return sum(len(request.emitted) for request in requests)


def _cached(requests: Sequence[Request]) -> int:
    return sum(request.cached for request in requests)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, and the tenth and ninetieth percentile."""
    if len(values) < 2:
        return {"median": values[0], "p10": values[0], "p90": values[0]}
    tenths = quantiles(values, n=10, method="inclusive")
    return {"median": median(values), "p10": tenths[0], "p90": tenths[-1]}
