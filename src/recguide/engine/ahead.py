"""One forward after another: the next is made ready while this one runs, if all that it lacks are tokens.

A request that emits one token a forward, by a plain step or at the end of its prefill, goes on with a plain
step a position further on. Its token is written in when this forward has landed, so a device waits for little
more than a copy. A request that its cap ends is left out, and newcomers join with their prompts. One that a
stop token ends runs once more for nothing, and what its row says is dropped. In a run of plain steps alone
the input is the last one's with little changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recguide.engine.flight import Flight, Landed, Ready
from recguide.engine.planning import Planner, Rows
from recguide.engine.request import Request
from recguide.engine.runner import Runner
from recguide.engine.scheduler import Scheduled, Scheduler
from recguide.speculation import rows
from recguide.speculation.step import StepOutput

Index = NDArray[np.intp]

UNKNOWN = 0
"""Stands for a token in the layouts of a forward that was made ready before its tokens were known."""


class RunAhead:
    """Makes the next forward ready while one runs, and starts it if it came true.

    Args: rows: lays a request out.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler, rows: Rows) -> None:
        self._runner, self._scheduler, self._rows = runner, scheduler, rows
        self._ready: tuple[Ready, Index] | None = None
        """What was made, and where in the forward that runs stand the picks that are its first tokens."""

    def look(self, flight: Flight, planner: Planner) -> bool:
        """Makes what follows a forward that runs; false if it takes more than its tokens to know that."""
        self._ready = None
        if self._runner.has_graphs:
            self._ready = self._made(flight, planner)
        return self._ready is not None

    def go(self, landed: Landed) -> Flight | None:
        """Starts what was made if there is a token for each of its steps."""
        if self._ready is None or landed.output is None:
            return None
        ready, places = self._ready
        tokens = tokens_after(landed.output, places)
        if tokens is None:
            return None
        ready.inputs.set_tokens(tokens)
        return self._runner.go(ready)

    @property
    def plan(self) -> Sequence[Scheduled]:
        """What was made, until it is forgotten."""
        return () if self._ready is None else self._ready[0].plan

    def forget(self) -> None:
        """Nobody waits for what was made; it has changed nothing."""
        self._ready = None

    def _made(self, flight: Flight, planner: Planner) -> tuple[Ready, Index] | None:
        flying = [one.request for one in flight.plan if one.request.finish_reason is None]
        newcomers = self._scheduler.newcomers(flying)
        foreseen = None if newcomers is None else steps_after(flight, alone=not newcomers)
        if newcomers is None or foreseen is None or not foreseen.plan:
            return None
        steps = len(foreseen.plan)
        plan = [*foreseen.plan, *self._prompts(newcomers, steps)]
        tokens = steps + sum([one.layout.query_tokens for one in plan[steps:]])
        most = min(self._runner.most_in_graph, self._scheduler.max_batch_tokens)
        if tokens > most or not planner.foresee(plan):
            return None
        grown = self._scheduler.reserve(plan)
        if grown is None:
            return None
        again = foreseen.again
        ready = self._runner.ready_again(again, grown) if again else self._runner.ready(plan, steps=steps)
        return ready, foreseen.places

    def _prompts(self, newcomers: Sequence[Request], index: int) -> list[Scheduled]:
        """Whole prompts of requests that nothing was planned for yet; `index` is the first one's place."""
        return [
            Scheduled(request, self._rows(request, at, request.prefill_end - request.cached, None))
            for at, request in enumerate(newcomers, index)
        ]


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Plain steps that follow a forward.

    Attributes:
        plan: the steps.
        places: where in that forward's plan, and so among its picks, their requests stand.
        again: what they are another step of, if all of that forward was steps and all go on.
    """

    plan: list[Scheduled]
    places: Index
    again: Ready | None = None


def steps_after(flight: Flight, *, alone: bool) -> Foreseen | None:
    """The plain steps of all requests of a forward that do not end with it; None if others may follow.

    A request that may end by its text is not run past that text, so its next step is not foreseen.

    Args:
        alone: whether nothing else will run beside them.
    """
    steps = flight.steps
    if alone and steps is not None and steps.inputs.fewest_left > 1 and flight.is_whole:
        return Foreseen(list(flight.plan), np.arange(len(flight.plan)), steps)
    plan: list[Scheduled] = []
    places: list[int] = []
    for at, (scheduled, place) in enumerate(zip(flight.plan, flight.docket.places, strict=True)):
        request, layout = scheduled.request, scheduled.layout
        one = place >= 0 and len(layout.rows) == len(layout.block) == 1 and layout.draft is None
        if not one:
            return None  # also if it has ended: picks and verdicts would not stand where requests do
        if request.finish_reason is not None:
            continue
        # What a method does next is laid out by its draft; a policy is asked.
        goes_on = request.policy is not None or not request.method.drafts
        if not goes_on or request.params.stop:
            return None
        if request.remaining > 1:
            prefix = request.cached + len(layout.rows[0].tokens)
            plan.append(Scheduled(request, rows.step(len(plan), prefix, UNKNOWN)))
            places.append(at)
    return Foreseen(plan, np.array(places, np.intp))


def tokens_after(output: StepOutput, places: Index) -> NDArray[np.int32] | None:
    """The tokens that go on; None if one had no pick, or none goes on."""
    if output.bad[places].any() or output.stopped[places].all():
        return None
    return output.tokens[places]
