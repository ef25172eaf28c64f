"""What traffic says against the table, round by round: drafts fail more, or less, than calibrated.

A shift in log odds for all drafts and one for each block, each with its precision: the logistic regression
of failures on the table's odds, one step a round. Slots behind the first mismatch say nothing, so a block
that passed whole says no more than "at least". There are two such regressions: of what is known before a
draft is made, which plans rest on, and of what is known with its margins, which decides what is verified.
Precisions are capped: what is old is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PRIOR = 4.0
"""Precision of "as the table says" for all drafts; a block's own shift departs less readily."""
PRIOR_BLOCK = 12.0
CAP = 200.0
"""Precision at most: some 400 rounds of ordinary drafts."""
STRIDE = 1.0
"""A shift moves by that much at most at once."""
FARTHEST = 12.0
"""And never further than that."""


@dataclass(slots=True)
class Shift:
    """A logistic intercept that is followed online."""

    precision: float = PRIOR
    value: float = 0.0

    def add(self, surprise: float, information: float) -> None:
        """Σ (failed − p) and Σ p·(1 − p) over slots with failure probabilities p."""
        self.precision = min(CAP, self.precision + information)
        stride = min(max(surprise / self.precision, -STRIDE), STRIDE)
        self.value = min(max(self.value + stride, -FARTHEST), FARTHEST)


class Shifts:
    """Log odds by which drafts fail more than the table says, for each block."""

    def __init__(self, blocks: Sequence[int]) -> None:
        self._all = Shift()
        self._block = {block: Shift(PRIOR_BLOCK) for block in blocks}

    def of(self, block: int) -> float:
        return self._all.value + self._block[block].value

    def add(self, block: int, surprise: float, information: float) -> None:
        self._all.add(surprise, information)
        self._block[block].add(surprise, information)


class Learner:
    """Attributes: before, given: shifts before margins are known, and given them; continuation, step: of slot
    0 of a continuation beside a block and beside an AR step.
    """

    def __init__(self, blocks: Sequence[int]) -> None:
        self.before, self.given = Shifts(blocks), Shifts(blocks)
        self.continuation, self.step = Shift(), Shift()
