"""TiDAR, quadratic self-speculation: a next draft runs for every acceptance the verification may have."""

from collections.abc import Sequence

from recguide.speculation.methods.method import Method
from recguide.speculation.rows import BranchKind, Site

_ANY = BranchKind.ANY
"""Looked up once: an enumeration answers slowly."""


def branches(margins: Sequence[float], _candidates: Sequence[int]) -> list[Site]:
    """A branch for every outcome A = 1..B, so that one of them is always reused: O(B²) query tokens."""
    return [(_ANY, slot, None) for slot in range(1, len(margins) + 1)]


TIDAR = Method("tidar", branches=branches)
