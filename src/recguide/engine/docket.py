"""What of a forward the device decides: picks of every wanted slot, and verdicts on blocks."""

from __future__ import annotations

from collections.abc import Sequence

from recguide.core import light
from recguide.engine.scheduler import Scheduled
from recguide.speculation.step import Judged, SettleShape

BY_HOST, NO_BLOCK = -2, -1


@light
class Docket:
    """A forward's requests and who decides about them.

    Attributes:
        spans: for each request, where the wanted slots of each of its rows lie among the W logits.
        blocks: slots of each block that the device settles.
        places: for each request, its index in `blocks`; NO_BLOCK if it has none; BY_HOST if picks or verdict
            are the host's affair.
    """

    spans: list[list[slice]]
    blocks: list[int]
    places: list[int]

    @property
    def wanted(self) -> int:
        """W."""
        return self.spans[-1][-1].stop


def spans_of(plan: Sequence[Scheduled]) -> list[list[slice]]:
    """For each request, where the wanted slots of each of its rows lie among the W logits."""
    at = 0
    each: list[list[slice]] = []
    for scheduled in plan:
        rows = scheduled.layout.rows
        if len(rows) == 1:
            end = at + len(rows[0].wanted)
            each.append([slice(at, end)])
            at = end
            continue
        spans: list[slice] = []
        for row in rows:
            end = at + len(row.wanted)
            spans.append(slice(at, end))
            at = end
        each.append(spans)
    return each


def docket_of(plan: Sequence[Scheduled], room: SettleShape | None) -> tuple[Docket, list[Judged]]:
    """Who decides, given the device's room for blocks, None where it decides nothing; and what it settles."""
    spans = spans_of(plan)
    judged: list[Judged] = []
    places: list[int] = []
    for scheduled, rows in zip(plan, spans, strict=True):
        request, layout = scheduled.request, scheduled.layout
        if room is None or request.by_logits or layout.scored:
            places.append(BY_HOST)
        elif not layout.block:
            places.append(NO_BLOCK)
        else:
            block = Judged(
                layout.block,
                rows[0].start,
                request.remaining,
                not request.method.verifies,
                request.stops,
                layout.branches,
                [span.start for span in rows[1:]] if layout.branches else (),
            )
            if room.fits(block):
                places.append(len(judged))
                judged.append(block)
            else:
                places.append(BY_HOST)
    return Docket(spans, [len(one.block) for one in judged], places), judged


def room_for(plan: Sequence[Scheduled]) -> SettleShape:
    """Room for the blocks of a plan, and hardly more."""
    judged = [scheduled for scheduled in plan if scheduled.layout.block]
    return SettleShape(
        requests=max(1, len(judged)),
        block=max([1, *(len(scheduled.layout.block) for scheduled in judged)]),
        stops=max([1, *(len(scheduled.request.stops) for scheduled in judged)]),
        branches=max([1, *(len(scheduled.layout.branches) for scheduled in judged)]),
    )
