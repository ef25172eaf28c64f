"""The policy `price`: every query token costs what it is worth elsewhere (architecture §4).

Each step solves twice, and does not iterate. First plans: the hulls of all requests' menus are merged in the
order of Δy/Δn, and the cut with the most Y(N)/T(N, M, X) gives the rate ρ, the price μ, and what a draft in
hand is worth (`market`); while a forward runs that is made for the next. Then the step itself, at these
(`step`, and `few` for a few requests).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide.guidance.arrays import Ints
from recguide.guidance.beliefs import Beliefs
from recguide.guidance.clock import Clock
from recguide.guidance.courses import Course, Courses, Stretches
from recguide.guidance.few import solve_ahead_few, solve_few
from recguide.guidance.foresight import solve_ahead, solve_evenly, solve_in_a_hurry
from recguide.guidance.host import HostClock, Kind, kind_of
from recguide.guidance.lately import FORGOTTEN, WINDOW
from recguide.guidance.market import Market, MarketMaker
from recguide.guidance.markets import Markets
from recguide.guidance.probes import Probes
from recguide.guidance.quote import FEW
from recguide.guidance.standing import Standing
from recguide.guidance.step import solve
from recguide.guidance.value import ValueTable
from recguide.guidance.view import Outcome, Plan, View, stays_plain, total

SLOW = 2.0
"""Times what a step should take that it counts for at most."""
COLD = 8
"""Steps of a course whose time says little, of several requests, where the host has not done the like for as
many steps. On an H200 with the 8B shape the second one waits as long as those that follow, at 4 to 64
requests; with a small model, or at 128, some more are slow."""
UNAWARE = 3
"""Steps that were planned before it was known how long the host takes for their like: the last one without
it, the one whose time tells it, and the one that was planned while that ran."""
LEARNS = 5
"""Of so many steps one is learned from where the host is hurried and little is new. Drafts and verifications
alternate, so the number is odd."""
_SAYS = {
    Course.PLAIN: Kind.PLAIN,
    Course.AHEAD: Kind.AHEAD,
    Course.FREE: Kind.BRANCHES,
    Course.EVEN: Kind.AHEAD,
}
"""The kind of step by which it is known what the host takes in a course."""
RUN = 8
"""Steps that a plan of plain ones is taken again for before their time is booked: they are all alike."""


class Price:
    """Args: table: value and branch probabilities; clock: the cost table's."""

    def __init__(self, table: ValueTable, clock: Clock) -> None:
        clock = clock.own()
        self._beliefs, self._clock = Beliefs(table), clock
        self._host = HostClock(in_ms=clock.in_ms)
        self._courses = Courses()
        maker = MarketMaker(self._beliefs, clock, self._host, self._courses)
        self._markets = Markets(maker, clock, self._host, self._courses)
        self._probes = Probes(clock, self._host)
        self._standing = Standing()
        self._timing: tuple[Plan, Kind, float] | None = None
        """The plan that was timed last, and what its prefixes take."""
        self._run: list[float] = []
        """Milliseconds of steps of it that are not booked."""
        self._steps = 0
        """That were timed of it."""
        self._open = 0
        """Requests of a step that was timed, whose tokens are told next; of some that ended they are not."""
        self._half: _Half | None = None
        self._unaware = 0
        """Steps to come that are UNAWARE."""
        self._missed = 0
        """Steps in a row that could have been planned ahead and were not. After WINDOW of them that is not
        reckoned with any more, until they are FORGOTTEN."""
        self._observed = 0
        """Steps whose outcome was told."""
        self._stretches = Stretches(COLD)

    @property
    def name(self) -> str:
        return "price"

    def decide(self, view: View) -> Plan:
        self._host.may_run_ahead(view.runs_ahead and self._missed < WINDOW)
        cell = self._beliefs.cell(view)
        return self._with_probes(view, self._solved(view, cell, self._markets.now(view, cell)))

    def ahead(self, view: View) -> Plan | None:
        """Branches beside a draft's verification need its margins. Nothing else is worth waiting for: in
        simulation what verifications said last, and which slots of a draft are worth verifying, bring less
        than the host's time costs."""
        self._host.may_run_ahead(self._missed < WINDOW)
        cell = self._beliefs.cell(view)
        market = self._markets.prepare(view, cell)
        drafted = view.drafted
        if market.course is Course.FREE and (
            drafted or len(self._solved(view, cell, market).branches.request)
        ):
            return None
        return self._with_probes(view, self._solved_ahead(view, cell, market, drafted=drafted))

    def _with_probes(self, view: View, plan: Plan) -> Plan:
        stood, probes, requests = self._standing, self._probes, len(view)
        plan = probes.among(view, plan, stood.requests * stood.taken)
        plain = stays_plain(view, plan)
        stood.begin(requests, plain=plain, due=probes.steps_left(requests) if plain else 0)
        return plan

    def _solved(self, view: View, cell: Ints, market: Market) -> Plan:
        beliefs, clock = self._beliefs, self._clock
        drafted = view.drafted
        plan = _settled(view, market, drafted=drafted)
        if plan is not None:
            return plan
        detour = 0.0 if drafted else self._host.detour_ms(len(view))
        if len(view) <= FEW:
            fork = self._host.fork_ms(len(view)) if drafted else 0.0
            return solve_few(view, cell.tolist(), beliefs, market, clock, detour, fork)
        return solve(view, cell, beliefs.in_hand(view, cell), beliefs, market, clock.of_step(view, detour))

    def _solved_ahead(self, view: View, cell: Ints, market: Market, *, drafted: bool) -> Plan:
        beliefs, clock = self._beliefs, self._clock
        plan = _settled(view, market, drafted=drafted)
        if plan is not None:
            return plan
        detour = 0.0 if drafted else self._host.detour_ms(len(view))
        if len(view) <= FEW:
            return solve_ahead_few(view, cell.tolist(), beliefs, market, clock, detour)
        if self._host.hurried:
            plan = solve_in_a_hurry(view, beliefs, market)
            if _fits(view, plan):
                return plan
        return solve_ahead(view, beliefs, market, clock.of_step(view, detour))

    def prepare(self, view: View) -> None:
        self._markets.prepare(view, self._beliefs.cell(view))

    def again(self, requests: int) -> bool:
        return self._standing.again(requests)

    def observe(self, view: View, plan: Plan, outcome: Outcome) -> None:
        if self._open:
            emitted = total(np.minimum(outcome.acceptance, view.remaining))
            if self._half is not None:
                self._half.made += emitted
            else:
                self._courses.made(self._open, plan.course, emitted, plan.even)
            self._open = 0
        self._observed += 1
        seldom = self._host.hurried and self._beliefs.is_settled and len(view) > 1
        if not seldom or self._observed % LEARNS == 0:
            self._beliefs.observe(view, plan, outcome)
        self._beliefs.refresh()

    def timed(self, view: View, plan: Plan, ms: float, waited_ms: float, *, late: bool = False) -> None:
        self._open = 0
        if view.tokens:
            return  # what a prefill takes beside its forward is its own
        if self._timing is None or self._timing[0] is not plan:
            pairs = float((plan.query_tokens * view.prefix).sum()) if self._clock.pair_ms else 0.0
            self._timing = plan, kind_of(view, plan), self._clock.terms_of(view, pairs)
            self._run.clear()
            self._steps = 0
        returns = _returns(view, plan)
        if view.blind:
            self._missed = 0
        elif returns or self._missed >= WINDOW:
            self._missed = (self._missed + 1) % FORGOTTEN
        if plan.course is Course.FREE or returns:
            self._host.stayed(len(view), returns=returns)
        _, kind, terms = self._timing
        self._run.append(ms)
        self._steps += 1
        if kind is Kind.PLAIN:
            if self._steps % RUN != 1:
                return
            self._beliefs.refresh()
        if not late:  # else it is not known how long its forward took
            self._clock.learn(plan.all_tokens, ms - waited_ms - terms)
        forward = self._clock.at(plan.all_tokens) + terms
        if self._counts(view, plan, kind):
            self._host.add(len(view), forward, ms, waited_ms, kind, late=late, steps=len(self._run))
        if not self._host.knows(len(view), _SAYS[plan.course]):
            self._unaware = UNAWARE
        if not self._unaware:
            self._book(view, plan, forward + self._host.ms(len(view), kind))
        else:  # a market's word was given without it
            self._unaware -= 1
            self._run.clear()
            self._half = None

    def _counts(self, view: View, plan: Plan, kind: Kind) -> bool:
        """Notes a step; whether it says what others of its kind take. Among steps of several requests that
        wait for margins those that do not are few, and cold."""
        steps = self._stretches.step(plan.course)
        if len(view) == 1 or kind in (Kind.PLAIN, Kind.PROBE):
            return True
        return steps > COLD and (kind is not Kind.AHEAD or plan.course is not Course.FREE)

    def _book(self, view: View, plan: Plan, expected_ms: float) -> None:
        """Holds its course to the steps that were timed since the last time; each should take so long."""
        times = [self._host.in_units(ms) for ms in self._run]
        self._run.clear()
        # What interrupts a step now and then is nobody's.
        took = [min(ms, SLOW * expected_ms) for ms in times if ms is not None]
        if not took:
            return
        said = plan.rate * max(0.0, sum(took) + len(took) * self._way_back_ms(view, plan))
        self._open = len(view) if view.drafted or len(plan.branches.request) else 0
        # Of others nothing is observed.
        made = 0.0 if self._open else len(took) * float((plan.verified > 0).sum())
        half, self._half = self._half, None
        if plan.course is not Course.PLAIN:
            if half is None or half.of != (plan.course, plan.even):
                self._half = _Half((plan.course, plan.even), said, made)
                return
            said, made = half.said + said, half.made + made
        self._courses.passed(len(view), plan.course, said, plan.even)
        self._courses.made(len(view), plan.course, made, plan.even)

    def _way_back_ms(self, view: View, plan: Plan) -> float:
        """What is booked of a step beside its own time: who waits to know more pays for the way back, and who
        comes back does not."""
        if plan.course is Course.FREE:
            return self._host.return_ms(len(view))
        return -self._host.way_back_ms(len(view)) if _returns(view, plan) else 0.0


@dataclass(slots=True)
class _Half:
    """The first of two steps of a course, which count together: whoever leaves plain steps drafts first, and
    the step in which all draft makes nothing.

    Attributes:
        of: the course, and its block.
        said, made: tokens.
    """

    of: tuple[Course, int]
    said: float
    made: float


def _returns(view: View, plan: Plan) -> bool:
    """Whether a step that could have been planned ahead was not."""
    return _SAYS[plan.course] is Kind.AHEAD and not view.blind


def _settled(view: View, market: Market, *, drafted: bool) -> Plan | None:
    """The plan of a market that leaves nothing to choose; None of another one."""
    if market.plain and not drafted:
        return _plain(view, market)
    if market.even and _fits(view, plan := solve_evenly(view, market)):
        return plan
    return None


def _fits(view: View, plan: Plan) -> bool:
    return view.tokens + plan.all_tokens <= view.most


def _plain(view: View, market: Market) -> Plan:
    nothing, ones = np.zeros(len(view), np.int64), np.ones(len(view), np.int64)
    return market.plan(nothing, ones)
