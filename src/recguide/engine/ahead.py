"""Plain steps, one forward after another: the next one is made ready while this one runs.

If no request ends, the next forward is this one a position further on, and only its tokens are not known yet.
They are written in when this one has landed, so a device waits for little more than a copy. From the third
step of a run on, the input is the last one's with little changed. If a request did end, or others came, what
was made ready is dropped: it has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recguide.engine.flight import Flight
from recguide.engine.scheduler import Scheduled
from recguide.speculation import rows
from recguide.speculation.rows import Phase
from recguide.speculation.step import StepOutput

UNKNOWN = 0
"""Stands for a token in the layouts of a forward that was made ready before its tokens were known."""


def steps_after(flight: Flight) -> Sequence[Scheduled] | None:
    """The plan after this one if no request ends; None unless all of it are plain steps and none is the last.

    A request that may end by its text is not run past that text, so its next step is not foreseen.
    """
    if flight.steps is not None:
        return flight.plan if flight.steps.inputs.fewest_left > 1 else None
    foreseen: list[Scheduled] = []
    for scheduled, place in zip(flight.plan, flight.docket.places, strict=True):
        request = scheduled.request
        layout = scheduled.layout
        plain = place >= 0 and layout.phase is Phase.VERIFY and len(layout.rows) == len(layout.block) == 1
        # What a method does next is laid out by its draft; a policy is asked.
        goes_on = request.policy is not None or not request.method.drafts
        if not (plain and goes_on and layout.draft is None) or request.params.stop or request.remaining < 2:
            return None
        foreseen.append(Scheduled(request, rows.step(len(foreseen), request.cached + 1, UNKNOWN)))
    return foreseen


def tokens_after(output: StepOutput, steps: int) -> NDArray[np.int32] | None:
    """The tokens that so many plain steps emitted; None if one ended its request, or had no pick."""
    if output.stopped[:steps].any() or output.bad[:steps].any():
        return None
    return output.tokens[:steps]
