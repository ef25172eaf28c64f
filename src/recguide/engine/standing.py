"""Rounds with branches of a request that runs alone: their few shapes are packed once.

What runs beside a verification is known only when its draft is, so such a forward cannot be made ready ahead.
But from round to round the same shapes come again: so many branches of these kinds and lengths. Each has an
input of its own. While a forward runs they are put where its request will stand, and when it has landed the
next draft is read from its output as it lies there, and written in with its branches. The verdict is made
later, when the verification runs, and comes to the same draft.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import sub

from recguide.attention.alone import SOON
from recguide.core import light
from recguide.engine.docket import BY_HOST, Docket
from recguide.engine.errors import is_lack_of_memory
from recguide.engine.flight import Flight, Landed
from recguide.engine.inputs import Inputs
from recguide.engine.request import Request
from recguide.engine.runner import Runner
from recguide.engine.scheduler import Scheduled, Scheduler
from recguide.engine.shaped import Shape, Shaped, shape_of
from recguide.speculation.methods.method import no_branches
from recguide.speculation.rows import Phase, fit_branches
from recguide.speculation.step import StepOutput

KEPT = 16
"""Shapes."""

AT_ONCE = 2
"""Lists that are made anew while a forward runs, at most."""

_DRAFTS = Phase.DRAFT
"""Looked up once: an enumeration answers slowly."""


@light
class _Awaited:
    """The forward of a request that is alone, and where its output says the next draft.

    Attributes:
        wanted: its picks; none of them may be bad.
        seed: of the draft that it makes; None if it verifies one.
        drafted: the picks of that draft's other slots; if it verifies, of the one that each branch makes.
    """

    request: Request
    wanted: int
    seed: int | None
    drafted: Sequence[slice]


class StandingRounds:
    """Starts verifications of shapes that have been met."""

    def __init__(self, runner: Runner, scheduler: Scheduler) -> None:
        self._runner, self._scheduler = runner, scheduler
        self._inputs: OrderedDict[Shape, Inputs] = OrderedDict()
        self._rounds: dict[Shape, Shaped] = {}
        self._request: Request | None = None
        """Whose rounds these are."""
        self._awaited: _Awaited | None = None

    def look(self, flight: Flight) -> None:
        """Packs the verification that runs, for those of its shape that follow."""
        self._awaited = None
        if not self._runs_alone(flight):
            return
        (one,) = flight.plan
        if self._request is not one.request:
            self._request = one.request
            self._rounds.clear()
        block, branches = len(one.layout.block), one.layout.branches
        shape = shape_of(block, branches)
        if branches and one.layout.draft is not None and shape not in self._rounds:
            self._pack(shape, one)
        self._awaited = _awaited(one, flight.docket)
        self._place(one.request, one.request.cached + block)

    def go(self, landed: Landed) -> Flight | None:
        """Starts what follows the forward that has landed, if that is a verification like one before."""
        awaited, self._awaited, output = self._awaited, None, landed.output
        if awaited is None or output is None or not self._is_alone(awaited.request):
            return None
        seed, emitted, number = awaited.seed, 0, 0
        if seed is None:
            _, emitted, _, _, number, *said = output.verdicts[0].tolist()
            if number < 0:
                return None
            seed = said[emitted - 1]
        request, drafted = awaited.request, awaited.drafted[number]
        if any(output.bad[: awaited.wanted].tolist()):
            return None
        prefix, left = request.cached + emitted, request.remaining - emitted
        block = 1 + drafted.stop - drafted.start
        if left < block or prefix + block > request.table.capacity:
            return None
        margins, candidates = _statistics(output, drafted)
        branches = fit_branches(request.method.branches(margins, candidates), request.block, left)
        shaped = self._rounds.get(shape_of(block, branches))
        if shaped is None:
            return None
        ready = shaped.write(prefix, left, seed, output.tokens[drafted], branches)
        if prefix > shaped.until:
            shaped.until = self._runner.list_work(ready)
        return self._runner.go(ready)

    def forget(self) -> None:
        """Nobody waits for the forward that runs."""
        self._awaited = None

    def _is_alone(self, request: Request) -> bool:
        crowd = self._scheduler
        return not crowd.waiting and len(crowd.running) == 1 and crowd.running[0] is request

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

    def _place(self, request: Request, prefix: int) -> None:
        """Gets all shapes ready for a request that may have so many tokens cached then."""
        table, anew = request.table.array, 0
        for shaped in self._rounds.values():
            if shaped.table is not table:
                shaped.read_from(table)
            # A list that serves nowhere else is made when it is known where.
            if -1 < shaped.until < prefix + SOON and anew < AT_ONCE:
                shaped.until = self._runner.list_work(shaped.standing_at(prefix + SOON))
                anew += 1

    def _pack(self, shape: Shape, verification: Scheduled) -> None:
        try:
            ready = self._runner.standing([verification], self._inputs.get(shape))
        except (MemoryError, RuntimeError) as error:
            if not is_lack_of_memory(error):
                raise
            return  # nobody has to wait for longer than without
        if ready is None or ready.docket.places[0] == BY_HOST:
            return
        self._rounds[shape] = Shaped(ready, self._runner.until(ready))
        self._inputs[shape] = ready.inputs
        self._inputs.move_to_end(shape)
        if len(self._inputs) > KEPT:
            dropped, _ = self._inputs.popitem(last=False)
            self._rounds.pop(dropped, None)


def _awaited(one: Scheduled, docket: Docket) -> _Awaited | None:
    """None if what runs neither makes a whole draft nor verifies one beside branches that make others."""
    (spans,), layout = docket.spans, one.layout
    if layout.phase is _DRAFTS:
        (row,) = layout.rows
        if len(row.masked) != len(row.tokens) - 1:
            return None
        return _Awaited(one.request, docket.wanted, row.tokens[0], spans)
    if layout.draft is None or not layout.branches:
        return None
    drafted = [
        slice(span.stop - branch.block + 1, span.stop)  # without slot 0, where that is predicted
        for branch, span in zip(layout.branches, spans[1:], strict=True)
    ]
    return _Awaited(one.request, docket.wanted, None, drafted)


def _statistics(output: StepOutput, drafted: slice) -> tuple[list[float], list[int]]:
    """Margins and best candidates of a block by its picks, as they stand in a `Draft`."""
    p1, p2 = output.reals[:2, drafted].tolist()
    return [1.0, *map(sub, p1, p2)], [0, *output.candidates[drafted].tolist()]
