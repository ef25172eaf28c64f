"""Asks policies what the next forward is, and tells them what came of it (architecture §4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from operator import mul
from typing import NamedTuple

import numpy as np

from recguide.core import MAX_BLOCK, light
from recguide.engine.plan import Turn
from recguide.engine.request import Request
from recguide.engine.rounds import Verdict
from recguide.engine.scheduler import Scheduled
from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.batching import batching_named, width
from recguide.guidance.history import History
from recguide.guidance.policy import Policy
from recguide.guidance.view import Branches, Outcome, Plan, View
from recguide.speculation.rows import BranchKind, Layout, Phase

BRANCHES = 16
"""Of a request in a forward at most: that is what the device has room for."""

_PREFILLS, _VERIFIES = Phase.PREFILL, Phase.VERIFY
"""Looked up once: an enumeration answers slowly."""

Rows = Callable[[Request, int, int, Turn | None], Layout]
"""(request, its index in the batch, prefill tokens at most, what was planned) → its rows."""


_STEP = Turn(0, 1)


class _Given(NamedTuple):
    """N, M and X of rows that no policy chooses."""

    tokens: int = 0
    prefix_tokens: int = 0
    pairs: int = 0

    def and_(self, tokens: int, prefix: int) -> _Given:
        return _Given(self.tokens + tokens, self.prefix_tokens + prefix, self.pairs + tokens * prefix)


@light
class Decided:
    """What one policy saw and planned; `requests` [R] are the view's.

    Attributes:
        teaches: whether the outcome says something of drafts.
    """

    policy: Policy
    requests: list[Request]
    view: View
    plan: Plan
    teaches: bool


@light
class Planned:
    """One step of all policies.

    Attributes:
        decided: by each policy that some request has.
        turns: of the requests that may run.
        whole: what all of the forward is planned by, as long as planned; None if there is no such plan.
        price, rate: μ and ρ, 0 where no policy prices.
    """

    decided: Sequence[Decided] = ()
    turns: dict[Request, Turn] = field(default_factory=dict[Request, Turn])
    whole: Decided | None = None
    price: float = 0.0
    rate: float = 0.0


class Flying(NamedTuple):
    """A request whose forward runs, and what it does in it.

    Attributes:
        drafts: slots of the draft that it makes, 0 for none.
        verifies: slots of the draft that it verifies; 0 if it makes one, or emits one token. No branch beside
            it is reused.
    """

    scheduled: Scheduled
    drafts: int
    verifies: int

    @property
    def request(self) -> Request:
        return self.scheduled.request

    @property
    def is_plain(self) -> bool:
        return not self.drafts and not self.verifies

    @property
    def forks(self) -> bool:
        return bool(self.scheduled.layout.branches)

    @property
    def moves(self) -> int:
        """Tokens that it emits, or about as many: half of a block that is verified."""
        return (1 + self.verifies) // 2 if self.verifies else int(not self.drafts)


class _Foreseen(NamedTuple):
    """What was planned for these requests before the outcome of a forward was known."""

    planned: Planned
    requests: list[Request]

    def came_true(self, decoding: Sequence[Request]) -> bool:
        """Whether plain steps were planned for them that they may take; whoever prefills beside them."""
        chosen = [request for request in decoding if request.policy is not None]
        if chosen != self.requests or any(request.draft is not None for request in chosen):
            return False
        return all(map(_is_step, self.planned.turns.values()))


class Planner:
    """A scheduler's planner.

    Args:
        policy: by its name.
        batching: how requests that policies plan for share forwards.
        rows: lays a request out.
        most: query tokens of a forward at most.
        runs_ahead: a forward may be made ready while another one runs.

    Attributes:
        planned: what was decided last.
    """

    def __init__(
        self, policy: Callable[[str], Policy], batching: str, rows: Rows, most: int, *, runs_ahead: bool
    ) -> None:
        self.planned = Planned()
        self._policy = policy
        self._batching, self._pads = batching_named(batching), batching == "padded"
        self._all_run = batching == "ragged"
        self._runs_ahead = runs_ahead and self._all_run
        self._follows = False
        """What follows the step that is planned may be planned while it runs."""
        self._rows = rows
        self._most = most
        self._foreseen: _Foreseen | None = None
        self._standing: tuple[Sequence[Scheduled], _Foreseen] | None = None
        """Plain steps that went on with the plan that they had, and that."""
        self._waits = False
        """Policies were asked what follows the forward that runs, and are ready for the step that waits."""

    # --- a scheduler's planner ------------------------------------------------------------------------------

    def begin(self, decoding: Sequence[Request], prefill: Sequence[tuple[Request, int]], room: int) -> None:
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is not None and foreseen.came_true(decoding):
            chosen, self.planned = foreseen.requests, foreseen.planned
        else:
            everyone = [*decoding, *[request for request, _ in prefill]]
            self._follows = self._runs_ahead and not any(map(_is_picked_by_host, everyone))
            chosen, given = _chosen(decoding, prefill)
            planned = self._decide(dict.fromkeys(chosen), given, room) if chosen else Planned()
            assert planned is not None, "a policy always says what to do about what it knows"
            self.planned = planned
        for request in chosen:
            request.waited = 0 if request in self.planned.turns else request.waited + 1

    def __call__(self, request: Request, index: int, chunk: int) -> Layout | None:
        turn = self.planned.turns.get(request)
        if turn is None and request.policy is not None and not chunk:
            return None
        return self._rows(request, index, chunk, turn)

    # --- one step ahead -------------------------------------------------------------------------------------

    def steps_on(self, plan: Sequence[Scheduled]) -> bool:
        """Whether plain steps, behind which others like them follow, go on with the plan that they have."""
        if self._stands(plan):
            return True
        chosen = [one.request for one in plan if one.request.policy is not None]
        self._foreseen = None
        if chosen:
            same = self._going_on(chosen)
            if same is None:
                return False
            self._foreseen = _Foreseen(same, chosen)
            self._standing = plan, self._foreseen
        return True

    def foresee(
        self, flying: Sequence[Flying], prefill: Sequence[tuple[int, int]], room: int
    ) -> dict[Request, Turn] | None:
        """Plans for what follows a forward before its outcome is known; None where a policy waits for it.

        Plain steps go on with the plan that they have for as long as policies let them.

        Args:
            flying: who goes on.
            prefill: the tokens of each that prefills beside them, and what it has cached; no policy is asked.
            room: tokens that decoding may take.
        """
        self._foreseen = None
        chosen = [one for one in flying if one.request.policy is not None]
        requests = [one.request for one in chosen]
        if not chosen:
            return {}
        same = self._going_on(requests) if all(one.is_plain for one in chosen) else None
        planned = same or self._ahead(flying, chosen, prefill, room)
        if planned is None:
            return None
        self._foreseen = _Foreseen(planned, requests)
        return planned.turns

    def _ahead(
        self,
        flying: Sequence[Flying],
        chosen: Sequence[Flying],
        prefill: Sequence[tuple[int, int]],
        room: int,
    ) -> Planned | None:
        if not self._all_run:
            return None
        given = _Given()
        for one in flying:
            if one.request.policy is None:
                given = given.and_(_tokens_behind(one), one.request.prefill_end)
        for tokens, cached in prefill:
            given = given.and_(tokens, cached)
        self._waits = True
        planned = self._decide({one.request: one for one in chosen}, given, room)
        self._waits = planned is None
        return planned

    def _stands(self, plan: Sequence[Scheduled]) -> bool:
        """Whether the same requests go on once more with the same plan."""
        if self._standing is None or self._standing[1].planned is not self.planned:
            return False
        before, foreseen = self._standing
        # Steps that are another step of the last ones are the same objects.
        if len(plan) != len(before) or plan[0] is not before[0] or plan != before:
            return False
        if not self._again(foreseen.requests):
            return False
        self._foreseen = foreseen
        return True

    def _again(self, chosen: Sequence[Request]) -> bool:
        """Whether all policies let so many of their requests take one more plain step."""
        decided = self.planned.decided
        if len(decided) == 1:
            return decided[0].policy.again(len(chosen))
        counts = Counter(request.policy for request in chosen)
        return all(each.policy.again(counts[each.requests[0].policy]) for each in decided)

    def _going_on(self, chosen: Sequence[Request]) -> Planned | None:
        """The plan by which these requests take plain steps, if it holds for one more.

        Those that have just begun go along with the others of their policies; those that have ended are left
        behind.
        """
        turns = self.planned.turns
        begun = [request for request in chosen if request not in turns]
        if begun and not {request.policy for request in begun} <= {request.policy for request in turns}:
            return None
        if not self._again(chosen):
            return None
        if not begun:
            return self.planned
        return replace(self.planned, turns={request: turns.get(request, _STEP) for request in chosen})

    def prepare(self) -> None:
        """Lets policies get ready for the step after the one that runs."""
        if self._waits:
            self._waits = False
            return
        for decided in self.planned.decided:
            decided.policy.prepare(decided.view)

    def forget(self) -> None:
        """What was to come before is not coming: nothing is foreseen."""
        self._foreseen = None

    def adopt(self) -> None:
        """What was foreseen runs."""
        self.planned = Planned() if self._foreseen is None else self._foreseen.planned
        self._foreseen = None

    # --- deciding -------------------------------------------------------------------------------------------

    def _decide(self, chosen: Mapping[Request, Flying | None], given: _Given, room: int) -> Planned | None:
        """What policies plan for these requests, for those whose forward runs before its outcome is known;
        None if one of them waits for that.

        `room`: tokens that decoding may take; prefill gives way to that.
        """
        most = given.tokens + room
        decided: list[Decided] = []
        turns: dict[Request, Turn] = {}
        groups = _by_policy(chosen)
        last = next(reversed(groups), None)
        for name, requests in groups.items():
            policy = self._policy(name)
            flying = [one for request in requests if (one := chosen[request]) is not None]
            if flying:
                view = _view_behind(flying, given, most)
                ahead = policy.ahead(view)
                if ahead is None:
                    return None
            else:
                view = _view(requests, given, most, runs_ahead=self._follows)
                ahead = policy.decide(view)
            plan = fitted(ahead, [request.largest for request in requests])
            teaches = len(plan.branches.request) > 0 or view.drafted
            decided.append(Decided(policy, requests, view, plan, teaches))
            if self._all_run and name == last:
                _take_turns(turns, requests, plan, range(len(requests)), 0)
                break
            waited = np.array([request.waited for request in requests])
            run, tokens = self._batching(view, plan, waited)
            _take_turns(turns, requests, plan, run.tolist(), width(plan) if self._pads else 0)
            read = view.prefix[run]
            given = _Given(
                tokens,
                given.prefix_tokens + int(read.sum()),
                given.pairs + int((read * plan.query_tokens[run]).sum()),
            )
        plans = [each.plan for each in decided if each.plan.rate]
        price, rate = (plans[0].price, plans[0].rate) if plans else (0.0, 0.0)
        is_whole = len(decided) == 1 and len(turns) == len(decided[0].requests) and not self._pads
        return Planned(decided, turns, decided[0] if is_whole else None, price, rate)


def fitted(plan: Plan, largest: Sequence[int]) -> Plan:
    """The same with no block beyond a request's largest [R], and no more branches than there is room."""
    branches = plan.branches
    crowded = len(branches.request) > BRANCHES and np.bincount(branches.request).max() > BRANCHES
    if not crowded and min(largest) == MAX_BLOCK:
        return plan
    most = np.array(largest)
    block = np.minimum(plan.block, most)
    none = (plan.block > 0) & (block < 2)
    short = np.minimum(branches.block, most[branches.request])
    kept = (short >= 2) & (_place(branches) < BRANCHES)
    return replace(
        plan,
        block=np.where(none, 0, block),
        verified=np.where(none, 1, plan.verified),
        branches=replace(branches, block=short).only(kept),
    )


def _place(branches: Branches) -> Ints:
    """[K] how many branches of its request go before each: a continuation, better ranks, earlier slots."""
    order = np.lexsort((branches.slot, branches.head, branches.request))
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) - np.searchsorted(branches.request, branches.request)
    return place


def _chosen(
    decoding: Sequence[Request], prefill: Sequence[tuple[Request, int]]
) -> tuple[list[Request], _Given]:
    """Requests that policies plan for, and what the others bring.

    A request whose prefill ends in this forward is among them: its last token emits, so it is like the seed
    of an AR step.
    """
    chosen = [request for request in decoding if request.policy is not None]
    given = _Given()
    if len(chosen) < len(decoding):
        others = [request for request in decoding if request.policy is None]
        tokens = [request.block if request.draft is None else len(request.draft.tokens) for request in others]
        read = [request.cached for request in others]
        given = _Given(sum(tokens), sum(read), sum(map(mul, tokens, read)))
    for request, tokens in prefill:
        opens = _opens(request, tokens)
        given = given.and_(tokens - opens, request.cached)
        if opens:
            chosen.append(request)
    return chosen, given


def _opens(request: Request, tokens: int) -> bool:
    """Whether so many tokens end a prefill that a continuation may stand beside."""
    ends = request.cached + tokens == request.prefill_end and not request.emitted
    return ends and request.policy is not None and request.remaining > 0 and not request.is_scoring


def _by_policy(requests: Iterable[Request]) -> dict[str, list[Request]]:
    groups: dict[str, list[Request]] = {}
    for request in requests:
        assert request.policy is not None, "only requests with a policy are chosen"
        groups.setdefault(request.policy, []).append(request)
    return groups


def _view(requests: Sequence[Request], given: _Given, most: int, *, runs_ahead: bool) -> View:
    """What a policy sees."""
    drafts = [() if request.draft is None else request.draft.margins for request in requests]
    facts = [
        (len(draft), history.previous, history.full, history.idle, request.prefill_end, request.remaining)
        for request, history, draft in zip(requests, _histories(requests), drafts, strict=True)
    ]
    return _seen(requests, facts, drafts, given, most, runs_ahead=runs_ahead)


def _view_behind(flying: Sequence[Flying], given: _Given, most: int) -> View:
    """What it sees of requests whose forward runs: see `guidance.view.View.blind`."""
    requests = [one.request for one in flying]
    facts: list[tuple[int, int, int, int, int, int]] = []
    drafts: list[Sequence[float]] = []
    for one, history in zip(flying, _histories(requests), strict=True):
        request, draft = one.request, one.scheduled.layout.draft
        step = one.is_plain
        previous, full = (1, False) if step else (history.previous, history.full)
        if one.forks:
            previous, full = one.verifies, False
        prefix, left = request.prefill_end + one.moves, max(1, request.remaining - one.moves)
        facts.append((one.drafts, previous, full, history.idle + step, prefix, left))
        drafts.append(draft.margins[: one.verifies] if draft is not None and one.verifies else ())
    seen = _seen(requests, facts, drafts, given, most)
    verifying = np.array([0 if one.forks else one.verifies for one in flying], np.int64)
    return replace(seen, blind=True, verifying=verifying)


def _histories(requests: Sequence[Request]) -> list[History]:
    return [request.history for request in requests if request.history is not None]


def _seen(
    requests: Sequence[Request],
    facts: Sequence[tuple[int, ...]],
    margins: Sequence[Sequence[float]],
    given: _Given,
    most: int,
    *,
    runs_ahead: bool = True,
) -> View:
    columns = np.ascontiguousarray(np.array(facts, np.int64).T)
    draft, previous, full, idle, prefix, remaining = columns
    return View(
        draft=draft,
        margins=_margins(margins),
        signals=np.array([history.signals for history in _histories(requests)], np.float64),
        previous=previous,
        full=full > 0,
        idle=idle,
        prefix=prefix,
        remaining=remaining,
        tokens=given.tokens,
        prefix_tokens=given.prefix_tokens,
        pairs=given.pairs,
        most=most,
        runs_ahead=runs_ahead,
    )


def _margins(drafts: Sequence[Sequence[float]]) -> Floats:
    """[R, W], 0 beyond each."""
    lengths = [len(draft) for draft in drafts]
    width = max(1, max(lengths))
    if min(lengths) == width:
        return np.array(drafts, np.float64)
    margins = np.zeros((len(drafts), width))
    for row, length in enumerate(lengths):
        if length:
            margins[row, :length] = drafts[row]
    return margins


def _take_turns(
    turns: dict[Request, Turn], requests: Sequence[Request], plan: Plan, run: Sequence[int], padded_to: int
) -> None:
    """Adds the turns of those that run, and says how much room they need."""
    branches = plan.branches
    of: dict[int, list[tuple[int, int, int]]] = {}
    if len(branches.request):
        columns = (branches.request, branches.slot, branches.head, branches.block)
        for row, slot, head, block in zip(*(column.tolist() for column in columns), strict=True):
            of.setdefault(row, []).append((slot, head, block))
    blocks, verified = plan.block.tolist(), plan.verified.tolist()
    for row in run:
        request, mine = requests[row], of.get(row)
        if mine is None:
            turns[request] = Turn(blocks[row], verified[row], (), padded_to)
            longest = max(blocks[row], verified[row])
        else:
            turns[request] = Turn(blocks[row], verified[row], tuple(mine), padded_to)
            longest = max(verified[row], *[block for _, _, block in mine])
        # It may be passed over, and then the draft in hand is verified another time.
        request.block = longest if request.draft is None else max(longest, len(request.draft.tokens))


def _is_picked_by_host(request: Request) -> bool:
    """Whether nobody's next step is known before the host has seen this one's logits."""
    return request.by_logits or request.is_scoring or not request.method.verifies


def _is_step(turn: Turn) -> bool:
    return turn.verified == 1 and not turn.block and not turn.branches


def _tokens_behind(one: Flying) -> int:
    """Query tokens that a request without a policy may take next."""
    return one.drafts or (one.request.block if one.request.method.drafts else 1)


# --- what came of it ----------------------------------------------------------------------------------------


def remember(history: History, verdict: Verdict) -> None:
    """Tells a request's history of a verified round."""
    if verdict.layout.phase is _VERIFIES:
        history.add(len(verdict.layout.block), verdict.acceptance, verdict.entropies)


def observe(
    planned: Planned,
    verdicts: dict[Request, Verdict],
    step_ms: float | None,
    waited_ms: float = 0.0,
    *,
    late: bool = False,
) -> None:
    """Tells policies what came of their plans, of those requests that ran as planned, and how long it took.

    Plain steps alone say nothing of drafts, and there are many of them. The time of a step that
    policies share is nobody's, nor is one that is padded, or that newcomers have joined whom the policy did
    not see. Without `step_ms` it took some time that says nothing.
    """
    whole = planned.whole
    seen = whole is not None and (whole.view.tokens > 0 or verdicts.keys() <= planned.turns.keys())
    if step_ms is not None and whole is not None and seen:
        whole.policy.timed(whole.view, whole.plan, step_ms, waited_ms, late=late)
    for decided in planned.decided:
        if not decided.teaches:
            continue
        rows = [row for row, request in enumerate(decided.requests) if _as_planned(verdicts.get(request))]
        if not rows:
            continue
        found = [(request, verdicts[request]) for request in map(decided.requests.__getitem__, rows)]
        outcome = Outcome(
            acceptance=np.array([verdict.acceptance for _, verdict in found], np.int64),
            rank=np.array([rank(verdict) for _, verdict in found], np.int64),
            head=np.array([head(request, verdict) for request, verdict in found], np.int64),
        )
        view, plan = decided.view, decided.plan
        if len(rows) < len(decided.requests):
            chosen = np.array(rows, np.int64)
            view, plan = view.only(chosen), plan.only(chosen)
        if view.blind:  # by now the drafts are known
            view = replace(view, margins=_margins([_margins_of(verdict) for _, verdict in found]))
        decided.policy.observe(view, plan, outcome)


def _margins_of(verdict: Verdict) -> Sequence[float]:
    return () if verdict.layout.draft is None else verdict.layout.draft.margins


def _as_planned(verdict: Verdict | None) -> bool:
    """A prefill without a continuation is none of a policy's plans."""
    if verdict is None:
        return False
    return verdict.layout.phase is not Phase.PREFILL or bool(verdict.layout.branches)


def rank(verdict: Verdict) -> int:
    """As in guidance.view.Outcome."""
    draft, slot = verdict.layout.draft, verdict.acceptance
    if draft is None or slot >= len(draft.tokens) or len(verdict.tokens) < slot:
        return 0
    said = verdict.tokens[slot - 1]
    return next((rank for rank, row in enumerate(draft.candidates, 1) if row[slot] == said), 0)


def head(request: Request, verdict: Verdict) -> int:
    """As in guidance.view.Outcome, before or after the verdict is applied; nothing is said of an end."""
    covered = verdict.covered
    if covered is None or covered.kind is not BranchKind.CONTINUATION:
        return -1
    if verdict.reused is not None:
        return 1
    ends = verdict.stopped or request.finish_reason is not None or len(verdict.tokens) == request.remaining
    return -1 if ends else 0
