"""A closed loop on a real engine: so many requests decode all the time, under one policy.

Prompts come again and again, so that the cache knows all but their last tokens: what is measured is decoding.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import NamedTuple

import numpy as np

from recguide.core import RoundStats, SamplingParams
from recguide.engine.engine import Engine
from recguide.engine.reports import DRAFT, StepReport
from recguide.engine.request import Request
from recguide.guidance.cost import CostTable
from recguide.guidance.host import Host, Kind, kind_of
from recguide.guidance.policy import Policy
from recguide.guidance.view import Outcome, Plan, View

WARM_UP = 0.25
"""Share of the time in which nothing is counted: graphs are captured, the first texts get apart."""
SLOW = 20.0
"""A step that took so many medians captured a graph, or the machine was away; it is left out, and counted."""


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and how it is continued; its policy is the loop's."""

    prompt: Sequence[int]
    params: SamplingParams


@dataclass(slots=True)
class Served:
    """Steps after the warm-up, all seats taken.

    Attributes:
        load: C.
        tokens, query_tokens: over those steps.
        begun: texts that began meanwhile.
        decoded: texts that all ways decode, from their first tokens to their last: tokens and milliseconds.
        step_ms: of each; `outliers` were left out as SLOW.
        skipped: steps of the warm-up; `warm_up` its tokens and milliseconds.
        drafts: those verified that no branch made, by block; `branches` those that ran, by kind.
        stats: of all requests that ended.
        prices: μ of each step; `sizes` and `prefixes` its N and M.
        policy_ms: a step's decision and what it learned, mean.
        timed: steps from landing to landing; `before` those of the warm-up.
    """

    load: int
    tokens: int = 0
    query_tokens: int = 0
    begun: int = 0
    decoded: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    step_ms: list[float] = field(default_factory=list[float])
    outliers: int = 0
    skipped: int = 0
    warm_up: tuple[int, float] = (0, 0.0)
    drafts: Counter[int] = field(default_factory=Counter[int])
    branches: Counter[str] = field(default_factory=Counter[str])
    stats: RoundStats = field(default_factory=RoundStats)
    prices: list[float] = field(default_factory=list[float])
    sizes: list[int] = field(default_factory=list[int])
    prefixes: list[int] = field(default_factory=list[int])
    policy_ms: float = 0.0
    timed: list[Timed] = field(default_factory=list["Timed"])
    before: list[Timed] = field(default_factory=list["Timed"])

    @property
    def wall_ms(self) -> float:
        return sum(self.step_ms)

    @property
    def tokens_per_s(self) -> float:
        """By the time that the texts took which all ways decode, as every seat is always taken; without any,
        by what was decoded in the time."""
        if self.decoded:
            tokens, ms = map(sum, zip(*self.decoded, strict=True))
            return 1e3 * self.load * tokens / ms
        return self.window_tokens_per_s

    @property
    def window_tokens_per_s(self) -> float:
        return 1e3 * self.tokens / self.wall_ms if self.step_ms else 0.0

    @property
    def warm_up_tokens_per_s(self) -> float:
        tokens, ms = self.warm_up
        return 1e3 * tokens / ms if ms else 0.0

    @property
    def request_rate(self) -> float:
        """Tokens per second of a request: its share of all, as every seat is always taken."""
        return self.tokens_per_s / self.load

    @property
    def mean_query_tokens(self) -> float:
        return self.query_tokens / max(1, len(self.step_ms))


class Timed(NamedTuple):
    """A step: its kind, only PLAIN if it ran ahead of the host behind another one, and its time."""

    kind: Kind
    view: View
    plan: Plan
    ms: float

    def beyond_ms(self, cost: CostTable) -> float:
        """What it took longer than its forward does by the table."""
        view, plan = self.view, self.plan
        read = view.prefix_tokens + int(view.prefix.sum())
        pairs = view.pairs + int((plan.query_tokens * view.prefix).sum())
        return self.ms - float(cost.ms(view.tokens + plan.all_tokens, read, pairs))


def host_of(served: Served, cost: CostTable) -> Host:
    """What steps took beyond their forwards, by their kind, at this load: in the mean, or, of a kind that was
    given up in the warm-up, in the median there; 0 for a kind that there was not. Steps beside which someone
    prefills, or that someone joined, are not among them: what they took longer is the newcomers'."""
    timed, warm_up = _usual(served.timed), _usual(served.before)
    each: list[tuple[float, float] | None] = []
    for kind in Kind:
        beyond = [step.beyond_ms(cost) for step in timed if step.kind is kind]
        before = [step.beyond_ms(cost) for step in warm_up if step.kind is kind]
        found = fmean(beyond) if beyond else float(np.median(before)) if before else None
        each.append(None if found is None else (max(0.0, found), 0.0))
    plain, other, branches, ahead, probe = each
    newcomer = _newcomer_ms(served, [step.ms for step in timed])
    return Host(plain or (0.0, 0.0), other or (0.0, 0.0), branches, ahead, probe, newcomer)


def _usual(steps: Sequence[Timed]) -> list[Timed]:
    """Those beside which nobody prefills, without outliers."""
    most = SLOW * float(np.median([step.ms for step in steps])) if steps else 0.0
    return [step for step in steps if step.ms <= most and not step.view.tokens]


def _newcomer_ms(served: Served, usual: Sequence[float]) -> float:
    """What all steps took longer than as many usual ones, by texts that began."""
    if not usual or not served.begun:
        return 0.0
    longer = served.wall_ms - len(served.step_ms) * fmean(usual)
    return max(0.0, longer / served.begun)


class Noted:
    """A policy, with what it plans and how long it takes noted while `served` is set; `before` has the steps
    until then."""

    def __init__(self, policy: Policy) -> None:
        self.served: Served | None = None
        self.before: list[Timed] = []
        self.ms = 0.0
        self._policy = policy
        self._plain = False
        self._last: Plan | None = None
        self._kind = Kind.PLAIN

    @property
    def name(self) -> str:
        return self._policy.name

    def decide(self, view: View) -> Plan:
        began = time.perf_counter()
        plan = self._policy.decide(view)
        self._took(began)
        return plan

    def ahead(self, view: View) -> Plan | None:
        began = time.perf_counter()
        plan = self._policy.ahead(view)
        if plan is not None:
            self._took(began)
        return plan

    def _took(self, began: float) -> None:
        if self.served is not None:
            self.ms += 1e3 * (time.perf_counter() - began)

    def prepare(self, view: View) -> None:
        self._policy.prepare(view)

    def again(self, requests: int) -> bool:
        return self._policy.again(requests)

    def observe(self, view: View, plan: Plan, outcome: Outcome) -> None:
        began = time.perf_counter()
        self._policy.observe(view, plan, outcome)
        self._took(began)

    def timed(self, view: View, plan: Plan, ms: float, waited_ms: float, *, late: bool = False) -> None:
        if plan is not self._last:
            self._last, self._kind = plan, kind_of(view, plan)
        kind, plain, self._plain = self._kind, self._plain, self._kind is Kind.PLAIN
        # The first plain step behind others is waited for as well, unless it was planned ahead.
        kind = Kind.DRAFTS if self._plain and not plain and not view.blind else kind
        timed = self.before if self.served is None else self.served.timed
        timed.append(Timed(kind, view, plan, ms))
        self._policy.timed(view, plan, ms, waited_ms, late=late)


def serve(
    engine: Engine,
    policy: Policy,
    batching: str,
    texts: Callable[[int], Text],
    load: int,
    *,
    seconds: float = 0.0,
    skip: int = 0,
    whole: int = 0,
) -> Served:
    """Keeps `load` requests decoding for so many seconds; text number n takes the next free seat.

    The first texts are cut to rising shares of their length, so that not all end together. All graphs are
    captured before: in seconds they would weigh what they do not in hours, and more where sizes differ more.

    Args:
        seconds: WARM_UP of them pass before anything is counted.
        skip: steps that pass before it at least.
        whole: texts that begin afterwards, from number 0 on; it goes on until all of them have ended. Whoever
            is compared decodes the same ones, as in seconds some have better luck than others.
    """
    engine.runner.prepare(engine.runner.most_in_graph)
    noted = Noted(policy)
    engine.plan_by(noted, batching)
    served = Served(load)
    watch = _Watch()
    engine.observer = watch
    try:
        running = [_Running.of(engine, _shortened(texts(n), (n + 1) / load)) for n in range(load)]
        following = load
        while not all(one.request.emitted for one in running):
            engine.step()
        began, lasts = time.perf_counter(), WARM_UP * seconds
        while (
            (passed := time.perf_counter() - began) < lasts or not watch.kept or len(served.decoded) < whole
        ):
            if not watch.counting and passed >= lasts and watch.steps >= skip:
                noted.served = served
                watch.counting, served.skipped = True, watch.steps
                began, lasts, following = time.perf_counter(), (1 - WARM_UP) * seconds, 0
            engine.step()
            for seat, one in enumerate(running):
                if one.request.finish_reason is not None:
                    _ended(served, one, counting=watch.counting)
                    running[seat] = _Running.of(
                        engine, texts(following), counts=watch.counting and following < whole
                    )
                    following += 1
                    served.begun += watch.counting
        for one in running:
            engine.abort(one.request)
    finally:
        engine.observer = None
    watch.tell(served)
    served.before = noted.before
    served.policy_ms = noted.ms / max(1, len(watch.kept))
    return served


def know(engine: Engine, texts: Sequence[Text]) -> None:
    """Lets the cache know the prompts, as far as it has room."""
    for text in texts:
        _add(engine, replace(text, params=replace(text.params, max_tokens=1)))
    while engine.busy:
        engine.step()


def _add(engine: Engine, text: Text) -> Request:
    (request,) = engine.add(text.prompt, text.params)
    return request


def _shortened(text: Text, share: float) -> Text:
    most = max(8, round(share * text.params.max_tokens))
    return replace(text, params=replace(text.params, max_tokens=min(most, text.params.max_tokens)))


class _Running(NamedTuple):
    """A text that is decoded, since when, and whether it is among those that count from first to last."""

    request: Request
    began: float
    counts: bool

    @classmethod
    def of(cls, engine: Engine, text: Text, *, counts: bool = False) -> _Running:
        return cls(_add(engine, text), time.perf_counter(), counts)


def _ended(served: Served, one: _Running, *, counting: bool) -> None:
    request = one.request
    if request.error is not None:
        raise request.error
    if counting:
        served.stats.add(request.stats)
    if one.counts:
        served.decoded.append((len(request.emitted), 1e3 * (time.perf_counter() - one.began)))


class _Watch:
    """Collects what steps were; an engine's observer."""

    def __init__(self) -> None:
        self.counting = False
        self.steps = 0
        self.kept: list[StepReport] = []
        self.before: list[StepReport] = []

    def __call__(self, report: StepReport) -> None:
        self.steps += 1
        if report.step_ms > 0:
            (self.kept if self.counting else self.before).append(report)

    def tell(self, served: Served) -> None:
        usual = SLOW * float(np.median([report.step_ms for report in self.kept]))
        before = [report for report in self.before if report.step_ms <= usual]
        served.warm_up = sum(report.emitted for report in before), sum(report.step_ms for report in before)
        for report in self.kept:
            if report.step_ms > usual:
                served.outliers += 1
                continue
            served.step_ms.append(report.step_ms)
            served.tokens += report.emitted
            served.query_tokens += report.query_tokens
            served.prices.append(report.price)
            served.sizes.append(report.query_tokens)
            served.prefixes.append(report.prefix_tokens)
            for verified in report.rounds:
                served.branches.update(verified.branches)
                if verified.drafted_by == DRAFT:
                    served.drafts[verified.drafted] += 1


def whole_pages(tokens: int, page_size: int) -> int:
    """The next length of a prompt of which the cache knows all but the last token."""
    return -(-tokens // page_size) * page_size + 1


def cycle(texts: Sequence[Text], seed: int = 0) -> Callable[[int], Text]:
    """Text number n: the prompts by turns, each time with another sampling seed."""

    def text(number: int) -> Text:
        one = texts[number % len(texts)]
        return replace(one, params=one.params.with_seed(seed + number))

    return text
