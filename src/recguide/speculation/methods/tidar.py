"""TiDAR, quadratic self-speculation: a next draft runs for every acceptance the verification may have."""

from collections.abc import Sequence

from recguide.speculation.methods.method import Method
from recguide.speculation.rows import Branch, BranchKind


def branches(margins: Sequence[float], _candidates: Sequence[int]) -> tuple[Branch, ...]:
    """A branch for every outcome A = 1..B, so that one of them is always reused: O(B²) query tokens."""
    return tuple(Branch(BranchKind.ANY, slot) for slot in range(1, len(margins) + 1))


TIDAR = Method("tidar", branches=branches)
