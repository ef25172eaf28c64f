"""Rounds with branches of a request that runs alone: their few shapes are packed once.

What runs beside a verification is known only when its draft is, so such a forward cannot be made ready ahead.
But from round to round the same shapes come again: so many branches of these kinds and lengths. Each has an
input of its own. While a draft runs all are put where its verification will stand, and when it has landed
only tokens and branches are written in, before anything else is done about it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from recguide.engine.docket import BY_HOST
from recguide.engine.errors import is_lack_of_memory
from recguide.engine.flight import Flight, Ready
from recguide.engine.inputs import Inputs
from recguide.engine.request import Request
from recguide.engine.rounds import Decision, Verdict
from recguide.engine.runner import Runner
from recguide.engine.scheduler import Scheduled, Scheduler
from recguide.speculation.methods.method import no_branches
from recguide.speculation.rows import Branch, BranchKind, Draft, fit_branches
from recguide.speculation.step import Judged

KEPT = 16
"""Shapes."""

Shape = tuple[int, tuple[tuple[BranchKind, int], ...]]
"""Slots of the block, and kind and slots of each branch."""


class StandingRounds:
    """Starts verifications of shapes that have been met.

    Args: mask: the model's mask token, None without one.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler, mask: int | None) -> None:
        self._runner, self._scheduler, self._mask = runner, scheduler, mask
        self._inputs: OrderedDict[Shape, Inputs] = OrderedDict()
        self._ready: dict[Shape, Ready] = {}
        self._request: Request | None = None
        """Whose inputs these are."""
        self._alone: Request | None = None

    def look(self, flight: Flight) -> None:
        """Packs the verification that runs, for those of its shape that follow."""
        self._alone = None
        if not self._runs_alone(flight):
            return
        (one,) = flight.plan
        self._alone = one.request
        if self._request is not one.request:
            self._request = one.request
            self._ready.clear()
        block, branches = len(one.layout.block), one.layout.branches
        shape = _shape(block, branches)
        if branches and one.layout.draft is not None and shape not in self._ready:
            self._pack(shape, one)
        if not block:
            self._place(one.request.cached)

    def go(self, decisions: Sequence[Decision | None]) -> Flight | None:
        """Starts what follows a decision on the request that is alone, if that is a verification like one
        before."""
        request, self._alone = self._alone, None
        crowd = self._scheduler
        if request is None or self._mask is None or crowd.waiting or len(crowd.running) != 1:
            return None
        (verdict,) = decisions
        if not isinstance(verdict, Verdict) or verdict.draft is None or verdict.draft.masked:
            return None
        draft = verdict.draft
        prefix, left = request.cached + len(verdict.tokens), request.remaining - len(verdict.tokens)
        block = len(draft.tokens)
        if verdict.stopped or left < block or prefix + block > request.table.capacity:
            return None
        branches = fit_branches(request.method.branches(draft), request.block, left)
        ready = self._ready.get(_shape(block, branches))
        if ready is None:
            return None
        if _prefix(ready) != prefix:
            ready = self._runner.placed(ready, prefix)
        spans = ready.docket.spans[0]
        heads = [span.start for span in spans[1:]]
        judged = Judged(draft.tokens, spans[0].start, left, False, request.stops, branches, heads)
        stems = [0, *[branch.slot for branch in branches]]
        tokens = _tokens(draft, branches, self._mask)
        return self._runner.go(self._runner.packed_again(ready, stems, tokens, judged))

    def forget(self) -> None:
        """Nobody waits for the forward that runs."""
        self._alone = None

    def _runs_alone(self, flight: Flight) -> bool:
        """Whether one request runs, and a verification with branches that its method chooses may follow."""
        if len(flight.plan) != 1 or not self._runner.has_graphs or flight.docket.places[0] == BY_HOST:
            return False
        request = flight.plan[0].request
        method, chooses = request.method, request.policy is None
        if not (chooses and method.verifies and method.branches is not no_branches):
            return False
        # One that may end by its text is not run past that text.
        if request.params.stop or request.finish_reason is not None:
            return False
        return self._scheduler.reserve(flight.plan) is not None

    def _place(self, prefix: int) -> None:
        """Puts all shapes where the draft that runs will be verified."""
        for shape, ready in self._ready.items():
            self._ready[shape] = self._runner.placed(ready, prefix)

    def _pack(self, shape: Shape, verification: Scheduled) -> None:
        try:
            ready = self._runner.standing([verification], self._inputs.get(shape))
        except (MemoryError, RuntimeError) as error:
            if not is_lack_of_memory(error):
                raise
            return  # nobody has to wait for longer than without
        if ready is None or ready.docket.places[0] == BY_HOST:
            return
        self._ready[shape] = ready
        self._inputs[shape] = ready.inputs
        self._inputs.move_to_end(shape)
        if len(self._inputs) > KEPT:
            dropped, _ = self._inputs.popitem(last=False)
            self._ready.pop(dropped, None)


def _shape(block: int, branches: Sequence[Branch]) -> Shape:
    return block, tuple([(branch.kind, branch.block) for branch in branches])


def _prefix(ready: Ready) -> int:
    return int(ready.flat.begins[1, 0])


def _tokens(draft: Draft, branches: Sequence[Branch], mask: int) -> list[int]:
    """Those of a verification and its branches, in packed order."""
    tokens = list(draft.tokens)
    for branch in branches:
        known = () if branch.head is None else (branch.head,)
        tokens += (*known, *(mask,) * (branch.block - len(known)))
    return tokens
