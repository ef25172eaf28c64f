"""The paper's overlap taken apart: so many corrections at the earliest risky slots, a continuation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide.guidance.fixed import whole_blocks
from recguide.guidance.unlearning import Unlearning
from recguide.guidance.view import Branches, Head, Plan, View
from recguide.speculation.methods.recguide import DELTA


@dataclass(frozen=True, slots=True)
class Overlap(Unlearning):
    """A policy of one block size.

    Attributes:
        block: slots of every draft and branch.
        corrections: branches at the earliest risky slots, at most.
        continuation: whether there is one, where at most `corrections` slots are risky, or `always`.
    """

    block: int
    corrections: int
    continuation: bool
    always: bool = False

    @property
    def name(self) -> str:
        return f"overlap-{self.block}-{self.corrections}{'+' if self.continuation else ''}"

    def decide(self, view: View) -> Plan:
        found = [
            branch for row in np.flatnonzero(view.draft).tolist() for branch in self._branches(view, row)
        ]
        branches = Branches(*np.array(found, np.int64).T) if found else Branches.none()
        return whole_blocks(view, np.full(len(view), self.block, np.int64), branches)

    def ahead(self, view: View) -> Plan | None:
        """Branches wait for the margins of their draft."""
        forks = self.corrections or self.continuation
        return None if forks and view.drafted else self.decide(view)

    def _branches(self, view: View, row: int) -> list[tuple[int, int, int, int]]:
        """(request, slot, head, block) of one request's draft in hand."""
        left = int(view.remaining[row])
        size = min(int(view.draft[row]), left)
        risky = 1 + np.flatnonzero(view.margins[row, 1:size] < DELTA)
        mine = [(slot, 1) for slot in risky[: self.corrections].tolist()]
        goes_on = self.continuation and (self.always or len(risky) <= self.corrections)
        if goes_on and size == view.draft[row]:
            mine.append((size, int(Head.CONTINUATION)))
        sized = ((row, slot, head, min(self.block, left - slot)) for slot, head in mine)
        return [branch for branch in sized if branch[3] >= 2]
