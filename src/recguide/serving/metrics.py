"""Prometheus metrics of a server: what its steps did, and how its requests fared.

Counters wherever a rate is wanted, so that nothing is lost between two scrapes: mean acceptance, say, is
rate(recguide:acceptance_sum) / rate(recguide:acceptance_count).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector

from recguide.core import RoundStats
from recguide.engine.reports import StepReport
from recguide.serving.tallies import RoundTally

PREFIX = "recguide"

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 900)
_STEPS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 5)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_QUERY_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_ACCEPTANCE = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64)
_TPF = (1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)


class Metrics:
    """Keeps all metrics in a registry of its own, or in one that is given.

    The seconds that requests report are measured where they are answered, queue and text included; those in
    the queue are the engine's.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._steps = _Steps(self.registry)
        self._rounds = _Rounds(self.registry)
        self._requests = _Requests(self.registry)

    def observe(self, report: StepReport) -> None:
        """Counts a step of the engine."""
        self._steps.observe(report)
        for seconds in report.queued_s:
            self._requests.queued.observe(seconds)
        if report.rounds:
            self._rounds.observe(RoundTally.of(report.rounds))

    def arrived(self, prompt_tokens: int) -> None:
        """A request was accepted, with so many tokens in all its prompts."""
        self._requests.in_flight.inc()
        self._requests.prompt_tokens.inc(prompt_tokens)
        self._requests.prompt_length.observe(prompt_tokens)

    def first_token(self, seconds: float) -> None:
        """A choice's first token came so long after the request had arrived."""
        self._requests.first_token.observe(seconds)

    def tokens(self, seconds: float) -> None:
        """A chunk of a choice, one token or several, came so long after the one before."""
        self._requests.between.observe(seconds)

    def choice(self, stats: RoundStats, prompt_tokens: int, seconds: float) -> None:
        """A choice of a prompt ended; `seconds` is from its first token to its last."""
        self._requests.prefix_queries.inc(prompt_tokens)
        self._requests.prefix_hits.inc(stats.prefix_hit_tokens)
        self._requests.length.observe(stats.tokens)
        if stats.forwards:
            self._requests.tpf.observe(stats.tpf)
        if stats.tokens > 1:
            self._requests.per_token.observe(seconds / (stats.tokens - 1))

    def finished(self, outcome: str, seconds: float) -> None:
        """A request that had arrived was answered; `outcome` is a finish reason, or why there is none."""
        self._requests.in_flight.dec()
        self._requests.outcomes.labels(outcome).inc()
        self._requests.end_to_end.observe(seconds)

    def failed(self, status: int) -> None:
        """A request was answered with an error, as one that a full queue turned away."""
        self._requests.errors.labels(status).inc()


class _Makers:
    """Makes metrics of one registry, under the project's prefix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}:{name}", text, registry=self._registry)

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"{PREFIX}:{name}", text, labels, registry=self._registry)

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"{PREFIX}:{name}", text, buckets=buckets, registry=self._registry)


class _Steps:
    """What the engine's forwards are and what it holds meanwhile."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Makers(registry)
        self.running = make.gauge("running_requests", "Requests being decoded: the load C.")
        self.waiting = make.gauge("waiting_requests", "Requests in the engine's queue.")
        self.kv_used = make.gauge("kv_used_ratio", "KV pages held by requests, of all.")
        self.kv_cached = make.gauge("kv_cached_ratio", "KV pages kept for their prefix alone, of all.")
        self.price = make.gauge("price", "Output tokens that one more query token costs at this load.")
        self.rate = make.gauge("rate_tokens_per_ms", "Output tokens per millisecond that the plan expects.")
        self.seconds = make.histogram("step_seconds", "From a step's end to the next one's end.", _STEPS)
        self.query_tokens = make.histogram("step_query_tokens", "Query tokens of a forward.", _QUERY_TOKENS)
        self.prefix_tokens = make.counter("prefix_tokens", "Cached tokens that forwards read.")
        self.emitted = make.counter("emitted_tokens", "Tokens returned.")
        self.preemptions = make.counter("preemptions", "Requests that lost their KV to others.")
        phases = make.counter("request_forwards", "Requests in forwards, by phase.", ["phase"])
        self.prefill, self.draft, self.verify = map(phases.labels, ("prefill", "draft", "verify"))

    def observe(self, report: StepReport) -> None:
        self.running.set(report.running)
        self.waiting.set(report.waiting)
        self.kv_used.set(report.pages_used / report.pages)
        self.kv_cached.set(report.pages_cached / report.pages)
        self.price.set(report.price)
        self.rate.set(report.rate)
        self.seconds.observe(1e-3 * report.step_ms)
        self.query_tokens.observe(report.query_tokens)
        self.prefix_tokens.inc(report.prefix_tokens)
        self.emitted.inc(report.emitted)
        self.preemptions.inc(report.preempted)
        self.prefill.inc(report.prefill)
        self.draft.inc(report.draft)
        self.verify.inc(report.verify)


class _Rounds:
    """What verification said. Rounds without a draft, AR steps, count as blocks of 1 and nowhere else."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Makers(registry)
        self.blocks = make.counter(
            "rounds", "Rounds by their verified slots; 1 is mostly an AR step.", ["block"]
        )
        self.drafts = make.counter("drafts", "Verified drafts by what made them.", ["by"])
        self.drafted = make.counter("draft_tokens", "Draft slots offered to the verifier.")
        self.accepted = make.counter("accepted_tokens", "Draft slots that matched.")
        self.positions = make.counter(
            "accepted_position", "Rounds that matched this draft slot.", ["position"]
        )
        self.acceptance = Tallied(
            f"{PREFIX}:acceptance", "Tokens of a round with a draft, uncut.", _ACCEPTANCE, registry
        )
        self.branches = make.counter(
            "branches", "Branches by kind: missed, covered (in place only) or reused.", ["kind", "outcome"]
        )

    def observe(self, tally: RoundTally) -> None:
        self.acceptance.add(tally.acceptance)
        for block, count in tally.blocks.items():
            self.blocks.labels(block).inc(count)
        for by, count in tally.drafts.items():
            self.drafts.labels(by).inc(count)
        for (kind, outcome), count in tally.branches.items():
            self.branches.labels(kind, outcome).inc(count)
        self.drafted.inc(sum((block - 1) * count for block, count in tally.blocks.items()))
        reaching = accepted = 0
        for position in range(max(tally.acceptance, default=1) - 2, -1, -1):
            reaching += tally.acceptance[position + 2]
            accepted += reaching
            self.positions.labels(position).inc(reaching)
        self.accepted.inc(accepted)


class Tallied(Collector):
    """A histogram of small whole numbers that are counted many at once, which prometheus_client's cannot."""

    def __init__(self, name: str, text: str, buckets: Sequence[int], registry: CollectorRegistry) -> None:
        self._name, self._text, self._buckets = name, text, buckets
        self._counts = Tally[int]()
        registry.register(self)

    def add(self, counts: Mapping[int, int]) -> None:
        self._counts.update(counts)

    def collect(self) -> Iterable[Metric]:
        counts = self._counts.copy()  # a scrape runs in a thread of its own
        below = [
            (str(float(edge)), sum(n for value, n in counts.items() if value <= edge))
            for edge in self._buckets
        ]
        total = sum(value * n for value, n in counts.items())
        yield HistogramMetricFamily(
            self._name, self._text, buckets=[*below, ("+Inf", counts.total())], sum_value=total
        )


class Gaps(Collector):
    """A histogram of seconds that is observed for every chunk of every stream; read as any other."""

    def __init__(self, name: str, text: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self._name, self._text, self._buckets = name, text, buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._buckets, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterable[Metric]:
        edges = [*(str(float(edge)) for edge in self._buckets), "+Inf"]
        below = list(zip(edges, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=below, sum_value=self._sum)


class _Requests:
    """How requests fared, as their clients see it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Makers(registry)
        self.in_flight = make.gauge("requests_in_flight", "Requests that arrived and are not answered yet.")
        self.outcomes = make.counter("requests", "Requests answered, by outcome.", ["outcome"])
        self.errors = make.counter("http_errors", "Answers that are errors, by status.", ["status"])
        self.prompt_tokens = make.counter("prompt_tokens", "Tokens of the prompts that arrived.")
        self.prefix_queries = make.counter("prefix_cache_queries", "Tokens the prefix cache was asked for.")
        self.prefix_hits = make.counter("prefix_cache_hits", "Tokens the prefix cache held.")
        self.prompt_length = make.histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self.length = make.histogram("request_generation_tokens", "Tokens of a choice.", _TOKENS)
        self.tpf = make.histogram("request_tokens_per_forward", "TPF of a choice.", _TPF)
        self.queued = make.histogram(
            "request_queue_time_seconds", "From a choice's arrival to when it is first scheduled.", _SECONDS
        )
        self.first_token = make.histogram("time_to_first_token_seconds", "Arrival to first token.", _SECONDS)
        self.between = Gaps(
            f"{PREFIX}:inter_token_latency_seconds",
            "From a choice's chunk to its next, of any tokens.",
            _SECONDS,
            registry,
        )
        self.per_token = make.histogram(
            "request_time_per_output_token_seconds", "Mean of a choice after its first token.", _SECONDS
        )
        self.end_to_end = make.histogram("e2e_request_latency_seconds", "Arrival to last token.", _SECONDS)
