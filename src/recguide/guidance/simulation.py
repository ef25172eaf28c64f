"""Simulation: the engine's rounds over drawn or recorded acceptances, with a cost table for a clock.

It calls the policies that the engine calls, on the same views, and where the host is told to take less for
steps that are planned ahead, lets them plan so. What it leaves out: memory, that hosts may be in a hurry, and
that plain steps which run ahead are planned once for several. The host's time, and that of a newcomer's
prefill, is what it is told. Deterministic by the traffic's and the arrivals' seeds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.batching import Batching
from recguide.guidance.clock import Clock
from recguide.guidance.history import History
from recguide.guidance.host import Host, Kind, kind_of
from recguide.guidance.load import Load
from recguide.guidance.oracle import Oracle
from recguide.guidance.policy import Policy
from recguide.guidance.tally import Tally, kind
from recguide.guidance.traffic import WIDEST, Traffic
from recguide.guidance.view import LIKELY, Branches, Head, Outcome, Plan, View, behind

NO_TIME = Host()


def simulate(
    traffic: Traffic, policy: Policy, clock: Clock, load: Load, batching: Batching, host: Host = NO_TIME
) -> Tally:
    """All texts to their end."""
    return _Run(traffic, policy, clock, load, batching, host).run()


class _Run:
    def __init__(
        self, traffic: Traffic, policy: Policy, clock: Clock, load: Load, batching: Batching, host: Host
    ) -> None:
        self._traffic, self._policy, self._clock, self._host = traffic, policy, clock, host
        self._plain = False
        self._foreseen: tuple[View, Plan] | None = None
        """What was planned for the seats before the outcome of the forward before was known."""
        self._load, self._batching = load, batching
        seats = load.seats
        self._active = np.zeros(seats, np.bool_)
        self._position = np.zeros(seats, np.int64)
        self._length = np.zeros(seats, np.int64)
        self._draft = np.zeros(seats, np.int64)
        self._right = np.zeros((seats, WIDEST), np.bool_)
        self._margins = np.zeros((seats, WIDEST))
        self._ranks = np.zeros((seats, WIDEST), np.int64)
        self._waited = np.zeros(seats, np.int64)
        self._born = np.zeros(seats)
        self._counted = np.zeros(seats, np.bool_)
        self._fresh = np.zeros(seats, np.bool_)
        """Seats whose text began behind that forward."""
        self._history = [History() for _ in range(seats)]
        self._now, self._ended, self._next = 0.0, 0, 0
        self._queue: deque[float] = deque(self._arrivals())
        self._tally = Tally()
        self._seats = np.zeros(0, np.int64)
        if isinstance(policy, Oracle):
            policy.reach = self._reach

    def run(self) -> Tally:
        load = self._load
        while self._ended < load.texts:
            self._admit()
            if not self._active.any():
                self._pass(self._queue[0] - self._now)
                continue
            self._forward(np.flatnonzero(self._active))
            if load.arrivals_per_s is None and self._next == load.texts:
                break  # a closed loop is one as long as every seat is taken
        return self._tally

    @property
    def _counting(self) -> bool:
        return self._ended >= self._load.warm_up * self._load.texts

    def _arrivals(self) -> Floats:
        load = self._load
        if load.arrivals_per_s is None:
            return np.zeros(load.texts)
        random = np.random.default_rng(load.seed)
        return np.cumsum(random.exponential(1e3 / load.arrivals_per_s, load.texts))

    def _admit(self) -> None:
        for seat in np.flatnonzero(~self._active).tolist():
            if not self._queue or self._queue[0] > self._now:
                return
            born = self._queue.popleft()
            self._length[seat] = self._traffic.seat(seat, self._next)
            self._position[seat] = 0
            if self._load.arrivals_per_s is None:
                # The first texts are under way already: or all would end together.
                first = self._next < self._load.seats
                self._position[seat] = self._length[seat] * self._next // self._load.seats if first else 0
                born = self._now
            self._active[seat], self._born[seat], self._fresh[seat] = True, born, True
            self._counted[seat] = self._counting
            self._draft[seat] = self._waited[seat] = 0
            self._history[seat] = History()
            self._next += 1

    def _pass(self, ms: float) -> None:
        self._now += ms
        if self._counting:
            self._tally.ms += ms

    def _forward(self, seats: Ints) -> None:
        self._seats = seats
        view = self._view(seats)
        newcomers_ms = self._host.newcomer * int(self._fresh[seats].sum())
        seen, plan = self._planned(seats, view)
        run, tokens = self._batching(view, plan, self._waited[seats])
        self._foresee(view, plan, all_run=len(run) == len(seats))
        self._waited[seats] += 1
        self._waited[seats[run]] = 0
        is_whole = len(run) == len(seats) and tokens == view.tokens + plan.all_tokens
        seats, view, seen, plan = seats[run], view.only(run), seen.only(run), plan.only(run)
        prefix, pairs = view.prefix.sum(), (plan.query_tokens * view.prefix).sum()
        ms = float(self._clock.ms(np.array(tokens), float(prefix), float(pairs)))
        waited = self._host_ms(seen, plan)
        ms += waited + newcomers_ms
        counting = self._counting
        self._pass(ms)
        outcome = self._round(seats, view, plan, counting)
        if counting:
            self._count(plan, tokens)
        if is_whole and not newcomers_ms:  # else it is not the policy's
            self._policy.timed(seen, plan, ms, waited)
        self._policy.observe(view, plan, outcome)
        self._end(seats)

    def _planned(self, seats: Ints, view: View) -> tuple[View, Plan]:
        """What is planned, and by what. Whoever is new takes a step beside what was foreseen, and whoever has
        less left than was guessed drafts no more than that."""
        foreseen, self._foreseen = self._foreseen, None
        fresh = self._fresh[seats]
        self._fresh[:] = False
        if foreseen is None or len(foreseen[0]) != len(seats):
            return view, self._policy.decide(view)
        seen, plan = foreseen
        if (view.draft > 0)[seen.draft == 0].any():  # a branch was reused
            return view, self._policy.decide(view)
        block = np.where(fresh, 0, np.minimum(plan.block, view.remaining))
        steps = fresh | ((plan.block > 0) & (block < 2))
        block, verified = np.where(steps, 0, block), np.where(steps, 1, plan.verified)
        return seen, replace(plan, block=block, verified=verified)

    def _foresee(self, view: View, plan: Plan, *, all_run: bool) -> None:
        """Lets the policy plan ahead, where that costs the host another time and all requests' rounds go on;
        else it gets ready for the next step."""
        if self._host.ahead is not None and all_run and len(plan.branches.request) <= LIKELY:
            seen = behind(view, plan)
            ahead = self._policy.ahead(seen)
            if ahead is not None:
                self._foreseen = seen, ahead
                return
        self._policy.prepare(view)

    def _host_ms(self, view: View, plan: Plan) -> float:
        """Plain steps run ahead of the host behind other plain steps, whoever comes or goes."""
        kind = kind_of(view, plan)
        plain, self._plain = self._plain, kind is Kind.PLAIN
        waits = self._plain and not plain and not view.blind
        return self._host.ms(len(view), Kind.DRAFTS if waits else kind)

    def _reach(self) -> Ints:
        """[R] how far drafts get that begin now."""
        drafted = self._traffic.draft(self._seats, self._position[self._seats], WIDEST)
        return 1 + np.cumprod(drafted.right[:, 1:], axis=1).sum(1)

    def _view(self, seats: Ints) -> View:
        histories = [self._history[seat] for seat in seats.tolist()]
        return View(
            draft=self._draft[seats],
            margins=self._margins[seats],
            signals=np.array([history.signals for history in histories]),
            previous=np.array([history.previous for history in histories], np.int64),
            full=np.array([history.full for history in histories], np.bool_),
            idle=np.array([history.idle for history in histories], np.int64),
            prefix=self._load.prefix + self._position[seats],
            remaining=self._length[seats] - self._position[seats],
            runs_ahead=self._host.ahead is not None,
        )

    # --- a round --------------------------------------------------------------------------------------------

    def _round(self, seats: Ints, view: View, plan: Plan, counting: bool) -> Outcome:
        slots = np.arange(WIDEST)
        verified = plan.verified
        passed = self._right[seats] & (view.draft > 0)[:, None] & (slots < verified[:, None])
        passed[:, 0] = True
        acceptance = np.where(verified > 0, np.cumprod(passed, axis=1).sum(1), 0)
        at = np.minimum(acceptance, WIDEST - 1)
        rank = np.where(acceptance < view.draft, self._ranks[seats, at], 0)
        heads = np.full(len(seats), -1, np.int64)
        start = self._position[seats]
        reused = self._match(seats, plan.branches, acceptance, verified, rank, heads)
        self._remember(seats, start, verified, acceptance)
        emitted = np.minimum(acceptance, view.remaining)
        self._position[seats] += emitted
        if counting:
            self._tally.tokens += int(emitted.sum())
        self._redraft(seats, plan, reused, counting)
        return Outcome(acceptance, rank, heads)

    def _match(
        self, seats: Ints, branches: Branches, acceptance: Ints, verified: Ints, rank: Ints, heads: Ints
    ) -> Ints:
        """[R] index of the branch that is reused, −1 for none; fills in `heads`."""
        reused = np.full(len(acceptance), -1, np.int64)
        if not len(branches.request):
            return reused
        of = branches.request
        in_place = branches.slot == acceptance[of]
        whole = in_place & (branches.head == Head.CONTINUATION) & (acceptance[of] == verified[of])
        correct = in_place & (branches.head >= 1) & (branches.head == rank[of])
        numbers = np.flatnonzero(whole)
        if len(numbers):
            rows = of[numbers]
            starts = self._position[seats[rows]] + acceptance[rows]
            right = self._traffic.draft(seats[rows], starts, 1).right[:, 0]
            heads[rows] = right
            reused[rows[right]] = numbers[right]
        reused[of[correct]] = np.flatnonzero(correct)
        return reused

    def _remember(self, seats: Ints, start: Ints, verified: Ints, acceptance: Ints) -> None:
        entropies = self._traffic.entropy(seats, start, WIDEST)
        valid = np.where(verified == 1, 1, np.minimum(acceptance, verified - 1))
        rows = zip(seats.tolist(), verified.tolist(), acceptance.tolist(), valid.tolist(), strict=True)
        for row, (seat, slots, accepted, decisions) in enumerate(rows):
            if slots:
                self._history[seat].add(slots, accepted, entropies[row, :decisions].tolist())

    def _redraft(self, seats: Ints, plan: Plan, reused: Ints, counting: bool) -> None:
        """The drafts in hand after the round: those begun, and those of branches that came true."""
        branch_block = plan.branches.block[reused] if len(plan.branches.block) else np.zeros_like(reused)
        self._draft[seats] = np.where(plan.block > 0, plan.block, np.where(reused >= 0, branch_block, 0))
        for block in np.unique(self._draft[seats]).tolist():
            if not block:
                continue
            mine = seats[self._draft[seats] == block]
            drafted = self._traffic.draft(mine, self._position[mine], block)
            self._right[mine, :block] = drafted.right
            self._margins[mine, :block] = drafted.margins
            self._ranks[mine, :block] = drafted.ranks
        if counting:
            used = plan.branches.head[reused[reused >= 0]]
            self._tally.reused.update(map(kind, used.tolist()))

    def _count(self, plan: Plan, tokens: int) -> None:
        tally = self._tally
        tally.forwards += 1
        tally.query_tokens += tokens
        tally.blocks.update(plan.block[plan.block > 0].tolist())
        tally.verified.update(plan.verified[plan.verified > 0].tolist())
        tally.branches.update(map(kind, plan.branches.head.tolist()))
        tally.prices.append((self._now, plan.price, tokens))

    def _end(self, seats: Ints) -> None:
        for seat in seats[self._position[seats] >= self._length[seats]].tolist():
            self._active[seat] = False
            self._ended += 1
            if self._counted[seat]:
                self._tally.rates.append(
                    1e3 * int(self._length[seat]) / (self._now - float(self._born[seat]))
                )
