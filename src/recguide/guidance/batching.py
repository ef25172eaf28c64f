"""How a step's requests share forwards: as they come, by block, or padded to the largest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from recguide.core import ParameterError
from recguide.guidance.arrays import Ints
from recguide.guidance.view import Plan, View

Batching = Callable[[View, Plan, Ints], tuple[Ints, int]]
"""(view, plan, forwards that each request has waited [R]) → whose rows run, and the forward's N."""


def ragged(view: View, plan: Plan, waited: Ints) -> tuple[Ints, int]:
    """Everyone, mixed blocks and phases, no padding."""
    del waited
    return np.arange(len(view)), view.tokens + int(plan.query_tokens.sum())


def bucketed(view: View, plan: Plan, waited: Ints) -> tuple[Ints, int]:
    """Requests of one planned block (paper §5.3), that of who has waited longest: none starves."""
    block = np.maximum(plan.block, view.draft)
    eldest = np.flatnonzero(waited == waited.max())
    counts = np.bincount(block)
    chosen = block[eldest[np.argmax(counts[block[eldest]])]]
    run = np.flatnonzero(block == chosen)
    return run, view.tokens + int(plan.query_tokens[run].sum())


def padded(view: View, plan: Plan, waited: Ints) -> tuple[Ints, int]:
    """Everyone, each row as long as the longest: what an engine without ragged rows does."""
    del waited
    return np.arange(len(view)), view.tokens + width(plan) * (len(view) + len(plan.branches.block))


def width(plan: Plan) -> int:
    """Slots of the longest row."""
    longest = int(np.maximum(plan.block, plan.verified).max(initial=0))
    return max(longest, int(plan.branches.block.max(initial=0)))


BATCHINGS = {"ragged": ragged, "bucketed": bucketed, "padded": padded}


def batching_named(name: str) -> Batching:
    if name not in BATCHINGS:
        raise ParameterError("batching", f"{name!r} is not one of {', '.join(BATCHINGS)}")
    return BATCHINGS[name]
