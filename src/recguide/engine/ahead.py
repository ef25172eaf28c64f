"""One forward after another: the next is made ready while this one runs, where it is known but for tokens.

A request that emits one token a forward, by a plain step or at the end of its prefill, goes on with a plain
step a position further on, or with a draft; a draft goes on with its verification, where no branches run
beside it, and a verification with a draft, where no branch is reused. Only tokens, and how far a verification
has moved its request, are written in when the forward has landed, so a device waits for little more than a
copy. A request that its cap ends is left out, and newcomers join with their prompts. One that a stop token
ends runs once more for nothing, and what its row says is dropped. In a run of plain steps alone the input is
the last one's with little changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from recguide.engine.docket import BY_HOST
from recguide.engine.flight import Flight, Landed, Ready
from recguide.engine.planning import Planner, Rows
from recguide.engine.request import Request
from recguide.engine.runner import Runner
from recguide.engine.scheduler import Scheduled, Scheduler
from recguide.speculation import rows
from recguide.speculation.methods.method import no_branches
from recguide.speculation.rows import BranchKind, Layout, Phase
from recguide.speculation.step import StepOutput

Index = NDArray[np.intp]

UNKNOWN = 0
"""Stands for a token in the layouts of a forward that was made ready before its tokens were known."""

LIKELY = 3
"""Branches in a forward up to which none of them may be reused: that of more hardly ever comes true."""

_DRAFTS = Phase.DRAFT
"""Looked up once: an enumeration answers slowly."""


class RunAhead:
    """Makes the next forward ready while one runs, and starts it if it came true.

    Args:
        rows: lays a request out.
        mask: the model's mask token, None without one.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler, rows: Rows, mask: int | None) -> None:
        self._runner, self._scheduler, self._rows, self._mask = runner, scheduler, rows, mask
        self._made: Made | None = None

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
        if not any(_is_vague(one.layout) for one in flight.plan):
            return flight
        plan = [
            Scheduled(one.request, self._rows(one.request, at, 0, None))
            if _is_vague(one.layout) and one.request.finish_reason is None
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

    def _make(self, flight: Flight, planner: Planner) -> Made | None:
        flying = [one.request for one in flight.plan if one.request.finish_reason is None]
        newcomers = self._scheduler.newcomers(flying)
        if newcomers is None:
            return None
        again = None if newcomers else _again(flight)
        follows = None if again else what_follows(flight, self._mask)
        going_on = flight.plan if again else [] if follows is None else follows.plan
        if not going_on:
            return None
        plan = [*going_on, *self._prompts(newcomers, len(going_on))]
        tokens = sum([one.layout.query_tokens for one in plan])
        most = min(self._runner.most_in_graph, self._scheduler.max_batch_tokens)
        if tokens > most or not planner.foresee(plan):
            return None
        grown = self._scheduler.reserve(plan)
        if grown is None:
            return None
        if follows is not None:
            ready = self._runner.ready(plan, follows.steps)
            if any(ready.docket.places[at] == BY_HOST for at in follows.blocks):
                # It has more stop tokens than a graph has room for: no table holds its block.
                return None
            return Made.behind(follows, ready, flight.docket.wanted)
        assert again is not None, "one of both"
        return Made.another_step(self._runner.ready_again(again, grown))

    def _prompts(self, newcomers: Sequence[Request], index: int) -> list[Scheduled]:
        """Whole prompts of requests that nothing was planned for yet; `index` is the first one's place."""
        return [
            Scheduled(request, self._rows(request, at, request.prefill_end - request.cached, None))
            for at, request in enumerate(newcomers, index)
        ]


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
        drafts, of_drafts: drafts behind a verification, and the verdicts that say how far they move and where
            they begin; nothing may be reused there.
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

    @staticmethod
    def another_step(ready: Ready) -> Made:
        """Plain steps behind plain steps: each has one pick, and one verdict."""
        every = np.arange(len(ready.plan))
        return Made(ready, len(every), every, every, every)

    @staticmethod
    def behind(follows: Follows, ready: Ready, picks: int) -> Made:
        """`picks` of the forward that runs."""
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
        )

    def came_true(self, output: StepOutput) -> bool:
        """Whether all have picks, no branch is reused, and somebody goes on."""
        if output.bad[: self.picks].any():
            return False
        if len(self.of_drafts) and output.reused[self.of_drafts].max() >= 0:
            return False
        return len(self.words) > 0 or not output.stopped[self.emitting].all()

    def completed(self, output: StepOutput, runner: Runner) -> Ready:
        """It, with what is known now."""
        ready, picks = self.ready, output.tokens
        if len(self.drafts):
            moved = np.zeros(len(ready.flat.rows), np.int32)
            moved[self.drafts] = output.emitted[self.of_drafts]
            ready = runner.moved(ready, moved)
            seeds = ready.flat.structure.first_tokens[self.drafts]
            ready.inputs.set_tokens(seeds, output.last_tokens(self.of_drafts))
        if len(self.to):
            ready.inputs.set_tokens(self.to, picks[self.of])
        if len(self.words):
            ready.inputs.set_blocks(self.words, picks[self.of_words])
        return ready


# --- what follows -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Follows:
    """What follows a forward, request by request.

    Attributes:
        plan: each request's one row.
        steps, of_steps: which of the plan are plain steps, and the picks that are their tokens.
        blocks, of_blocks: which of it verify a draft, and the picks that are its first drafted tokens.
        drafts, of_drafts: which of it draft, and the verdicts behind which they do.
        emitting: all verdicts.
    """

    plan: list[Scheduled] = field(default_factory=list[Scheduled])
    steps: list[int] = field(default_factory=list[int])
    of_steps: list[int] = field(default_factory=list[int])
    blocks: list[int] = field(default_factory=list[int])
    of_blocks: list[int] = field(default_factory=list[int])
    drafts: list[int] = field(default_factory=list[int])
    of_drafts: list[int] = field(default_factory=list[int])
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

    def draft(self, request: Request, prefix: int, block: int, verdict: int, mask: int) -> None:
        """`prefix` is what it will be but for the tokens that are emitted meanwhile."""
        self.drafts.append(len(self.plan))
        self.of_drafts.append(verdict)
        blank = rows.blank_draft(UNKNOWN, block, mask)
        self._add(request, rows.draft(len(self.plan), prefix, blank, adapter=True))

    def _add(self, request: Request, layout: Layout) -> None:
        self.plan.append(Scheduled(request, layout))


def _again(flight: Flight) -> Ready | None:
    """What another step would be made of, if all of a forward is steps and all go on."""
    steps = flight.steps
    return steps if steps is not None and steps.inputs.fewest_left > 1 and flight.is_whole else None


def what_follows(flight: Flight, mask: int | None) -> Follows | None:
    """What follows a forward for all of its requests that do not end with it; None if others may follow.

    A request that may end by its text is not run past that text, so what follows is not foreseen. Policies
    are asked elsewhere, and say no more than that a plain step follows another.
    """
    if sum([len(one.layout.branches) for one in flight.plan]) > LIKELY:
        return None
    follows = Follows()
    for scheduled, spans, place in zip(flight.plan, flight.docket.spans, flight.docket.places, strict=True):
        request, layout = scheduled.request, scheduled.layout
        if request.finish_reason is not None:
            continue
        if place == BY_HOST or request.params.stop or not request.method.verifies:
            return None
        if layout.emits_one:
            follows.emitting.append(place)
            _after_a_token(follows, scheduled, spans[0].start, place, mask)
        elif request.policy is not None or mask is None:
            return None
        elif layout.phase is _DRAFTS:
            (row,) = layout.rows
            drafted = len(row.tokens) - 1
            if request.method.branches is not no_branches or len(row.masked) != drafted:
                return None
            follows.block(request, row.prefix, row.tokens[0], drafted, spans[0].start, mask)
        elif layout.draft is not None and _may_be_followed_by_a_draft(scheduled):
            follows.emitting.append(place)
            follows.draft(request, request.cached, request.block, place, mask)
        else:
            return None
    return follows


def _after_a_token(follows: Follows, scheduled: Scheduled, pick: int, place: int, mask: int | None) -> None:
    """Adds what follows one token: a plain step, or the draft of a request that no policy plans for."""
    request, row = scheduled.request, scheduled.layout.rows[0]
    left, prefix = request.remaining - 1, request.cached + len(row.tokens)
    if left < 1:
        return
    drafts = mask is not None and request.policy is None and request.method.drafts
    block = min(request.block, left) if drafts else 1
    if mask is None or block < 2:
        follows.step(request, prefix, pick)
    else:
        follows.draft(request, prefix - 1, block, place, mask)


def _may_be_followed_by_a_draft(verification: Scheduled) -> bool:
    """Whether the next draft is a whole block however this ends, unless a branch is reused."""
    request, layout = verification.request, verification.layout
    whole = request.remaining - len(layout.block) >= request.block
    return whole and not any(branch.kind is BranchKind.ANY for branch in layout.branches)


def _is_vague(layout: Layout) -> bool:
    """Whether those that read a layout ask it for tokens that were unknown when it was made ahead."""
    return layout.phase is _DRAFTS or len(layout.block) > 1
