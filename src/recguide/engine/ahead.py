"""One forward after another: the next is made ready while this one runs, where it is known but for tokens.

A request that emits one token a forward, by a plain step or at the end of its prefill, goes on with a plain
step a position further on, or with a draft; a draft goes on with its verification, where no branches run
beside it, and a verification with a draft, where no branch is reused. Policies are asked before the outcome
is known, and may rather wait for it. Only tokens, and how far a verification has moved its request, are
written in when the forward has landed, so a device waits for little more than a copy. Prefills go on beside
them, and newcomers join. One that ends runs once more for nothing, and what its row says is dropped. In a run
of plain steps alone the input is the last one's with little changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from recguide.engine.docket import BY_HOST, Docket
from recguide.engine.flight import Flight, Landed, Ready
from recguide.engine.plan import Turn, prefill
from recguide.engine.planning import Flying, Planner, Rows
from recguide.engine.request import Request
from recguide.engine.runner import Runner
from recguide.engine.scheduler import Scheduled, Scheduler, chunks, prefill_share
from recguide.guidance.view import LIKELY
from recguide.speculation import rows
from recguide.speculation.methods.method import no_branches
from recguide.speculation.rows import BranchKind, Layout, Phase
from recguide.speculation.step import StepOutput

Index = NDArray[np.intp]

UNKNOWN = 0
"""Stands for a token in the layouts of a forward that was made ready before its tokens were known."""

_PREFILLS, _DRAFTS = Phase.PREFILL, Phase.DRAFT
"""Looked up once: an enumeration answers slowly."""


class RunAhead:
    """Makes the next forward ready while one runs, and starts it if it came true.

    Args:
        rows: lays a request out.
        mask: the model's mask token, None without one.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler, rows: Rows, mask: int | None) -> None:
        self._runner, self._scheduler, self._rows, self._mask = runner, scheduler, rows, mask
        self._made: Made | DraftAlone | None = None

    def look(self, flight: Flight, planner: Planner) -> bool:
        """Makes what may follow a forward that runs; false if too little is known of that."""
        self._made = None
        if self._runner.has_graphs:
            self._made = self._make(flight, planner)
        return self._made is not None

    def go(self, landed: Landed) -> Flight | None:
        """Starts what was made if it came true."""
        made, output = self._made, landed.output
        if made is None or output is None or not made.came_true(output):
            return None
        return self._runner.go(made.completed(output, self._runner))

    def laid_out(self, flight: Flight) -> Flight:
        """The same forward with the tokens in its layouts that were unknown when it was made."""
        if not any(map(_is_vague, flight.plan)):
            return flight
        plan = [
            Scheduled(one.request, self._rows(one.request, at, 0, _as_laid_out(one.layout)))
            if _is_vague(one) and one.request.finish_reason is None
            else one
            for at, one in enumerate(flight.plan)
        ]
        return replace(flight, plan=plan)

    @property
    def plan(self) -> Sequence[Scheduled]:
        """What was made, until it is forgotten."""
        return () if self._made is None else self._made.ready.plan

    def forget(self) -> None:
        """Nobody waits for what was made; it has changed nothing."""
        self._made = None

    def _make(self, flight: Flight, planner: Planner) -> Made | DraftAlone | None:
        again = _again(flight)
        if again is not None and not self._scheduler.is_joined(len(flight.plan)):
            if planner.steps_on(flight.plan):
                return self._another_step(again)
        else:
            again = None
        prefills = self._scheduler.prefills_behind(flight.plan)
        if prefills is None:
            return None
        flying = flying_of(flight, self._mask)
        if flying is None:
            return None
        most = min(self._runner.most_in_graph, self._scheduler.max_batch_tokens)
        needs = [(request, request.prefill_end - cached) for request, cached in prefills]
        share = prefill_share(needs, most)
        beside = [(min(need, share), cached) for (_, need), (_, cached) in zip(needs, prefills, strict=True)]
        turns = planner.foresee([one for one in flying if one is not None], beside, most - share)
        if turns is None:
            return None
        follows = what_follows(flying, flight.docket, turns, self._mask)
        if again is not None and len(follows.steps) == len(follows.plan):
            return self._another_step(again)
        rest = most - follows.tokens
        if rest < share:
            return None
        plan = [*follows.plan, *_prefills(prefills, chunks(needs, rest), len(follows.plan))]
        if not plan or self._scheduler.reserve(plan) is None:
            return None
        ready = self._runner.ready(plan, follows.steps, moves=bool(follows.drafts))
        if any(ready.docket.places[at] == BY_HOST for at in (*follows.blocks, *follows.late)):
            # It has more stop tokens than a graph has room for: no table holds its block.
            return None
        picks = flight.docket.wanted
        if len(plan) == len(flight.plan) == len(follows.drafts) == 1:
            return DraftAlone(ready.staying(), picks, self._runner.until(ready), bool(follows.late))
        return Made.behind(follows, ready, picks, goes_on=bool(prefills))

    def _another_step(self, again: Ready) -> Made | None:
        grown = self._scheduler.reserve(again.plan)
        return None if grown is None else Made.another_step(self._runner.ready_again(again, grown))


def _prefills(
    prefills: Sequence[tuple[Request, int]], tokens: Iterable[tuple[Request, int]], index: int
) -> Iterator[Scheduled]:
    """Rows of so many tokens of each behind what it will have cached; `index` is the first one's place."""
    cached = dict(prefills)
    for at, (request, chunk) in enumerate(tokens, index):
        yield Scheduled(request, prefill(request, at, cached[request], chunk))


# --- a forward that lacks some of its tokens ----------------------------------------------------------------

_NONE = np.zeros(0, np.intp)


@dataclass(frozen=True, slots=True)
class Made:
    """A forward that follows one that runs, and what of it is still unknown.

    Attributes:
        ready: it, packed.
        picks: of the one that runs; none of them may be bad.
        emitting: its verdicts; where each of them ends its request, nothing has to run.
        to, of: unknown tokens of the batch, and which picks they are.
        words, of_words: unknown tokens of the blocks to settle, and which picks they are.
        drafts, of_drafts: drafts and plain steps behind verdicts that say how far they move and where they
            begin; nothing may be reused there.
        late: the plain steps among these, of which what is left is unknown, too.
        goes_on: somebody runs whatever came of the forward that runs.
    """

    ready: Ready
    picks: int
    emitting: Index
    to: Index
    of: Index
    words: Index = field(default_factory=lambda: _NONE)
    of_words: Index = field(default_factory=lambda: _NONE)
    drafts: Index = field(default_factory=lambda: _NONE)
    of_drafts: Index = field(default_factory=lambda: _NONE)
    late: Index = field(default_factory=lambda: _NONE)
    goes_on: bool = False

    @staticmethod
    def another_step(ready: Ready) -> Made:
        """Plain steps behind plain steps: each has one pick, and one verdict."""
        every = np.arange(len(ready.plan))
        return Made(ready, len(every), every, every, every)

    @staticmethod
    def behind(follows: Follows, ready: Ready, picks: int, *, goes_on: bool) -> Made:
        """`picks` of the forward that runs; `goes_on`: prefills run as well."""
        first = ready.flat.structure.first_tokens
        to: list[int] = first[follows.steps].tolist()
        of = list(follows.of_steps)
        words: list[int] = []
        for at, pick in zip(follows.blocks, follows.of_blocks, strict=True):
            drafted = len(ready.plan[at].layout.block) - 1
            to += range(first[at] + 1, first[at] + 1 + drafted)
            of += range(pick, pick + drafted)
            begin = ready.inputs.room.settle.block_at(ready.docket.places[at]) + 1
            words += range(begin, begin + drafted)
        return Made(
            ready,
            picks,
            emitting=np.array(follows.emitting, np.intp),
            to=np.array(to, np.intp),
            of=np.array(of, np.intp),
            words=np.array(words, np.intp),
            of_words=np.array(of[len(follows.steps) :], np.intp),
            drafts=np.array(follows.drafts, np.intp),
            of_drafts=np.array(follows.of_drafts, np.intp),
            late=np.array(follows.late, np.intp),
            goes_on=goes_on or bool(follows.blocks),
        )

    def came_true(self, output: StepOutput) -> bool:
        """Whether all have picks, no branch is reused, and somebody goes on."""
        # Counting takes NumPy a fraction of `any` and `all`.
        if np.count_nonzero(output.bad[: self.picks]):
            return False
        if len(self.of_drafts) and np.count_nonzero(output.reused[self.of_drafts] >= 0):
            return False
        return self.goes_on or bool(np.count_nonzero(output.stopped[self.emitting]) < len(self.emitting))

    def completed(self, output: StepOutput, runner: Runner) -> Ready:
        """It, with what is known now."""
        ready, picks = self.ready, output.tokens
        if len(self.drafts):
            moved = np.zeros(len(ready.flat.rows), np.int32)
            moved[self.drafts] = output.emitted[self.of_drafts]
            ready = runner.moved(ready, moved)
            seeds = output.last_tokens(self.of_drafts)
            ready.inputs.tokens[ready.flat.structure.first_tokens[self.drafts]] = seeds
            if len(self.late):
                places = [ready.docket.places[at] for at in self.late.tolist()]
                ready.inputs.count_down(places, moved[self.late])
        if len(self.to):
            ready.inputs.tokens[self.to] = picks[self.of]
        if len(self.words):
            ready.inputs.blocks[self.words] = picks[self.of_words]
        return ready


@dataclass(frozen=True, slots=True)
class DraftAlone:
    """A draft, or a plain step, behind the verification of a request that runs alone: what `Made` is of many,
    number by number, in a fraction of its time.

    Attributes:
        ready: it, packed, whose row begins where its input says.
        picks: of the one that runs.
        until: the furthest prefix that the work which is listed serves.
        late: whether it is a plain step, of which what is left is unknown, too.
    """

    ready: Ready
    picks: int
    until: int
    late: bool

    def came_true(self, output: StepOutput) -> bool:
        _, _, stopped, _, reused, *_ = output.verdicts[0].tolist()
        return not stopped and reused < 0 and not any(output.bad[: self.picks].tolist())

    def completed(self, output: StepOutput, runner: Runner) -> Ready:
        _, emitted, _, _, _, *tokens = output.verdicts[0].tolist()
        ready = self.ready
        ready.inputs.tokens[0] = tokens[emitted - 1]
        prefixes = ready.flat.begins[1]
        prefixes += emitted
        if self.late:
            ready.inputs.count_down([0], emitted)
        if prefixes[0] > self.until:
            runner.list_work(ready)
        return ready


# --- what follows -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Follows:
    """What follows a forward, request by request.

    Attributes:
        plan: each request's one row.
        tokens: of all of them.
        steps, of_steps: which of the plan are plain steps, and the picks that are their tokens.
        blocks, of_blocks: which of it verify a draft, and the picks that are its first drafted tokens.
        drafts, of_drafts: which of it draft, or take a step behind a verification, and the verdicts behind
            which they do.
        late: those of `drafts` that are such steps.
        emitting: all verdicts.
    """

    plan: list[Scheduled] = field(default_factory=list[Scheduled])
    tokens: int = 0
    steps: list[int] = field(default_factory=list[int])
    of_steps: list[int] = field(default_factory=list[int])
    blocks: list[int] = field(default_factory=list[int])
    of_blocks: list[int] = field(default_factory=list[int])
    drafts: list[int] = field(default_factory=list[int])
    of_drafts: list[int] = field(default_factory=list[int])
    late: list[int] = field(default_factory=list[int])
    emitting: list[int] = field(default_factory=list[int])

    def step(self, request: Request, prefix: int, pick: int) -> None:
        self.steps.append(len(self.plan))
        self.of_steps.append(pick)
        self._add(request, rows.step(len(self.plan), prefix, UNKNOWN))

    def block(self, request: Request, prefix: int, seed: int, drafted: int, pick: int, mask: int) -> None:
        self.blocks.append(len(self.plan))
        self.of_blocks.append(pick)
        tokens = (seed, *(UNKNOWN,) * drafted)
        self._add(request, rows.verify(len(self.plan), prefix, tokens, (), mask=mask, adapter=True))

    def behind(self, request: Request, prefix: int, block: int, verdict: int, mask: int) -> None:
        """A draft, or a plain step where `block` is less than 2, behind a verdict.

        `prefix` is what it will be but for the tokens that are emitted meanwhile.
        """
        at = len(self.plan)
        if block < 2:
            self.late.append(at)
            layout = rows.step(at, prefix, UNKNOWN)
        else:
            layout = rows.draft(at, prefix, rows.blank_draft(UNKNOWN, block, mask), adapter=True)
        self.drafts.append(at)
        self.of_drafts.append(verdict)
        self._add(request, layout)

    def _add(self, request: Request, layout: Layout) -> None:
        self.plan.append(Scheduled(request, layout))
        self.tokens += layout.query_tokens


def _again(flight: Flight) -> Ready | None:
    """What another step would be made of, if all of a forward is steps and all go on."""
    steps = flight.steps
    return steps if steps is not None and steps.inputs.fewest_left > 1 and flight.is_whole else None


def flying_of(flight: Flight, mask: int | None) -> list[Flying | None] | None:
    """What a forward does for each of its requests, None for those that end with it or prefill on.

    None for all if what follows is not known: a host makes some of its picks, or branches run beside
    verifications that are likely to be reused, or that only their drafts can tell.
    """
    if sum([len(one.layout.branches) for one in flight.plan]) > LIKELY:
        return None
    flying: list[Flying | None] = []
    for scheduled, place in zip(flight.plan, flight.docket.places, strict=True):
        request, layout = scheduled.request, scheduled.layout
        if request.finish_reason is not None:
            flying.append(None)
        elif place == BY_HOST or not request.method.verifies:
            return None
        elif layout.block and request.remaining < 2:
            flying.append(None)
        elif layout.emits_one:
            flying.append(Flying(scheduled, 0, 0))
        elif layout.phase is _PREFILLS and not layout.block:
            flying.append(None)
        elif mask is None:
            return None
        elif layout.phase is _DRAFTS:
            (row,) = layout.rows
            chooses = request.policy is None and request.method.branches is not no_branches
            if chooses or len(row.masked) != len(row.tokens) - 1:
                return None
            flying.append(Flying(scheduled, len(row.tokens), 0))
        elif layout.draft is not None and _may_be_followed_by_a_draft(scheduled, len(flight.plan) == 1):
            flying.append(Flying(scheduled, 0, len(layout.block)))
        else:
            return None
    return flying


def what_follows(
    flying: Sequence[Flying | None], docket: Docket, turns: Mapping[Request, Turn], mask: int | None
) -> Follows:
    """The rows of those that go on; `turns` are those of requests that policies plan for."""
    follows = Follows()
    for one, spans, place in zip(flying, docket.spans, docket.places, strict=True):
        if one is None:
            if place >= 0:
                follows.emitting.append(place)
            continue
        request, row, pick = one.request, one.scheduled.layout.rows[0], spans[0].start
        if one.drafts:
            assert mask is not None, "a model without a mask token drafts nothing"
            drafted = min(one.drafts, request.remaining) - 1
            follows.block(request, row.prefix, row.tokens[0], drafted, pick, mask)
            continue
        follows.emitting.append(place)
        block = min(_block(request, turns), request.remaining - one.moves)
        if one.verifies:
            assert mask is not None, "a model without a mask token verifies nothing"
            follows.behind(request, request.cached, block, place, mask)
        elif mask is None or block < 2:
            follows.step(request, request.cached + len(row.tokens), pick)
        else:
            follows.behind(request, request.cached + len(row.tokens) - 1, block, place, mask)
    return follows


def _block(request: Request, turns: Mapping[Request, Turn]) -> int:
    """Slots of the draft that it begins with, if it may; less than 2 for none."""
    if request.policy is not None:
        return turns[request].block
    return request.block if request.method.drafts else 1


def _may_be_followed_by_a_draft(verification: Scheduled, alone: bool) -> bool:
    """Whether nothing else follows unless a branch is reused.

    A branch of kind ANY fits every outcome. Near the cap a method's next draft depends on what is left, which
    a request that runs alone waits for; of others it is guessed.
    """
    request, layout = verification.request, verification.layout
    if request.policy is not None:
        return True
    whole = request.remaining - len(layout.block) >= request.block
    kinds = [branch.kind for branch in layout.branches]
    return (whole or not (alone or kinds)) and BranchKind.ANY not in kinds


def _is_vague(one: Scheduled) -> bool:
    """Whether those that read a layout ask it for tokens, or the draft, that were unknown when it was made
    ahead. Of a draft in hand no more than its seed may be verified, where the cap has come nearer."""
    return one.layout.phase is _DRAFTS or one.request.draft is not None


def _as_laid_out(layout: Layout) -> Turn | None:
    """The turn that leads to a layout like this one; a method has chosen its branches, and does so again."""
    if layout.branches:
        return None
    slots = len(layout.rows[0].tokens)
    return Turn(slots, 0) if layout.phase is _DRAFTS else Turn(0, slots)
