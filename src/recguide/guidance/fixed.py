"""The policy `fixed`: one block for everyone, chosen by load or once and for all; no branches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide.core import MAX_BLOCK, ParameterError
from recguide.guidance.arrays import Ints
from recguide.guidance.unlearning import Unlearning
from recguide.guidance.view import Branches, Plan, View

RECIPE = ((4, 32), (32, 16))
"""The official recipe: B = 32 for at most 4 requests, 16 for at most 32 …"""
RECIPE_REST = 8
"""… and 8 for more."""


@dataclass(frozen=True, slots=True)
class Fixed(Unlearning):
    """Attributes: block: None follows the recipe; 1 is plain AR."""

    block: int | None = None

    def __post_init__(self) -> None:
        if self.block is not None and not 1 <= self.block <= MAX_BLOCK:
            raise ParameterError("block", f"must lie in [1, {MAX_BLOCK}] (got {self.block!r})")

    @property
    def name(self) -> str:
        return "recipe" if self.block is None else f"fixed-{self.block}"

    def decide(self, view: View) -> Plan:
        block = recipe(len(view)) if self.block is None else self.block
        return whole_blocks(view, np.full(len(view), block, np.int64), Branches.none())

    def ahead(self, view: View) -> Plan | None:
        return self.decide(view)

    def again(self, requests: int) -> bool:
        """What it plans depends on the load alone."""
        return (recipe(requests) if self.block is None else self.block) < 2


def recipe(load: int) -> int:
    """The official block at this load."""
    return next((block for most, block in RECIPE if load <= most), RECIPE_REST)


def whole_blocks(view: View, block: Ints, branches: Branches) -> Plan:
    """Drafts of these blocks where none is in hand, and verification of all slots where one is."""
    block = np.where(view.draft > 0, 0, np.minimum(block, view.remaining))
    step = (view.draft == 0) & (block < 2)
    verified = np.where(step, 1, np.minimum(view.draft, view.remaining))
    return Plan(np.where(step, 0, block), verified, branches)
