"""A forward on its way: what was launched, and what comes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from recguide.attention.packing import Flat
from recguide.core import light
from recguide.engine.buckets import Bucket
from recguide.engine.docket import Docket
from recguide.engine.inputs import Inputs
from recguide.engine.scheduler import Scheduled
from recguide.speculation.rows import Phase
from recguide.speculation.step import StepOutput


@dataclass(frozen=True, slots=True)
class Forward:
    """What a forward was, for who measures it.

    Attributes:
        bucket: its graph's; None if it ran without one.
        phases: requests in each phase.
        by_host: requests whose picks or verdict the host made.
        query_tokens, wanted: its tokens and logits, without padding.
        prefix_tokens: cached tokens that it read, once for each request.
        input: the bucket's input, to time the same forward again; None if none was kept.
    """

    bucket: Bucket | None
    phases: Counter[Phase]
    by_host: int
    query_tokens: int
    wanted: int
    prefix_tokens: int
    input: Tensor | None = None

    @property
    def requests(self) -> int:
        return self.phases.total()


@light
class Ready:
    """A forward that is laid out and packed on the host, and not on its way yet.

    Attributes:
        bucket: of its graph; None runs without one.
        steps: whether it is plain steps of which another may follow; all but the first of them share one
            plan, whose rows stand where the second stood.
    """

    plan: Sequence[Scheduled]
    docket: Docket
    flat: Flat
    bucket: Bucket | None
    inputs: Inputs
    steps: bool = False

    def staying(self) -> Ready:
        """The same, whose rows stand wherever they do in its input from now on."""
        flat = self.flat
        assert flat.structure.in_turn, "rows stand in an input as they are packed"
        flat = flat.beginning(self.inputs.begins(len(flat.rows)))
        return Ready(self.plan, self.docket, flat, self.bucket, self.inputs, self.steps)


@light
class Landed:
    """What came of a forward.

    Attributes:
        logits: [at least W, vocab], those of the plan's wanted slots first; valid until the next launch.
        output: the device's picks and verdicts, None if there are none; valid until the next one lands.
    """

    logits: Tensor
    output: StepOutput | None


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched forward.

    Attributes:
        plan: whose rows run, in the order of the rows.
        docket: who decides what.
        query_tokens, prefix_tokens: N and M, without padding.
        began: seconds of `time.perf_counter` when the device got its first work; without a graph the last may
            come much later.
        land: waits for the forward and returns what came of it.
        drop: waits for it where it runs already.
        steps: what it was made of if it is plain steps of which another may follow.
        first: as in Landing.
    """

    plan: Sequence[Scheduled]
    docket: Docket
    query_tokens: int
    prefix_tokens: int
    began: float
    land: Callable[[], Landed]
    drop: Callable[[], object]
    steps: Ready | None = None
    first: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all of its requests want the outcome."""
        return all(scheduled.request.finish_reason is None for scheduled in self.plan)

    @property
    def awaited(self) -> bool:
        """Whether any of its requests still wants the outcome."""
        return any(scheduled.request.finish_reason is None for scheduled in self.plan)
