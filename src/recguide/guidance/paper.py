"""The policy `paper`: eq. 3 chooses each request's block; at C = 1 drafts overlap verification (§5.1)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recguide.core import ParameterError
from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.clock import Clock
from recguide.guidance.fixed import recipe, whole_blocks
from recguide.guidance.rho import choices, round_ms, table_rho
from recguide.guidance.unlearning import Unlearning
from recguide.guidance.value import UNKNOWN, ValueTable, strata
from recguide.guidance.view import Branches, Head, Plan, View
from recguide.speculation.methods.recguide import CORRECTIONS, DELTA

BLOCKS = (8, 16, 32)


class Paper(Unlearning):
    """Eq. 2 and 3.

    Args:
        table: V_B(s, z); its signal says over which decisions s is taken.
        clock: T.
        rho: ρ_C by load; loads that it lacks get the table's own.
        prefix: at which T_C(B) is read.
        overlap: whether a single request gets branches.
        block: everyone's instead of eq. 3's, as in the paper's measurements at C = 1.
    """

    def __init__(
        self,
        table: ValueTable,
        clock: Clock,
        *,
        rho: Mapping[int, float] | None = None,
        prefix: int = 1000,
        overlap: bool = True,
        block: int | None = None,
    ) -> None:
        if table.signal == "record":
            raise ParameterError("value_table", "the paper's s is an entropy; calibrate with that signal")
        self._table, self._clock = table, clock
        self._rho = dict(rho or {})
        self._prefix, self._overlap, self._block = prefix, overlap, block
        self._values = table.values()[:, [table.blocks.index(block) for block in BLOCKS]]
        self._ms: dict[int, Floats] = {}

    @property
    def name(self) -> str:
        return "paper"

    def decide(self, view: View) -> Plan:
        block = self._blocks(view)
        overlaps = self._overlap and len(view) == 1
        branches = overlap(view, block) if overlaps else Branches.none()
        return whole_blocks(view, block, branches)

    def ahead(self, view: View) -> Plan | None:
        """Eq. 3 waits for what verification says, and branches for the margins of their draft."""
        drafted = view.draft > 0
        forks = self._overlap and len(view) == 1 and bool(drafted.any())
        chooses = self._block is None and not drafted.all()
        return None if forks or chooses else self.decide(view)

    def rho(self, load: int) -> float:
        if load not in self._rho:
            self._rho[load] = table_rho(self._table, BLOCKS, self._round_ms(load))
        return self._rho[load]

    def _blocks(self, view: View) -> Ints:
        """[R] B* of eq. 3; the recipe's block for a request without history."""
        if self._block is not None:
            return np.full(len(view), self._block, np.int64)
        load = len(view)
        cell = self._table.cell(view.signals, view.previous, view.full)
        best = np.array(BLOCKS)[choices(self._values[cell], self._round_ms(load), self.rho(load))]
        return np.where(strata(view.previous, view.full) == UNKNOWN, recipe(load), best)

    def _round_ms(self, load: int) -> Floats:
        if load not in self._ms:
            self._ms[load] = round_ms(self._clock, load, BLOCKS, self._prefix)
        return self._ms[load]


def overlap(view: View, block: Ints) -> Branches:
    """Corrections at the two earliest risky slots; a continuation if no more are risky (paper §5.1)."""
    found: list[tuple[int, int, int, int]] = []
    for row in np.flatnonzero(view.draft).tolist():
        size, left = min(int(view.draft[row]), int(view.remaining[row])), int(view.remaining[row])
        risky = 1 + np.flatnonzero(view.margins[row, 1:size] < DELTA)
        mine = [(slot, 1) for slot in risky[:CORRECTIONS].tolist()]
        if len(risky) <= CORRECTIONS and size == view.draft[row]:
            mine.append((size, int(Head.CONTINUATION)))
        sized = ((row, slot, head, min(int(block[row]), left - slot)) for slot, head in mine)
        found += [branch for branch in sized if branch[3] >= 2]
    if not found:
        return Branches.none()
    return Branches(*np.array(found, np.int64).T)
