"""RecGuide's predictive draft-verify overlap (paper §5.1)."""

from collections.abc import Sequence

from recguide.speculation.methods.method import Method
from recguide.speculation.rows import BranchKind, Site

DELTA = 0.5
"""δ: a drafted slot with a margin below it is risky."""

CORRECTIONS = 2
"""Only the earliest risky slots get a branch: later ones are less reliable and worth less."""

_CORRECTION, _CONTINUATION = BranchKind.CORRECTION, BranchKind.CONTINUATION
"""Looked up once: an enumeration answers slowly."""


def branches(margins: Sequence[float], candidates: Sequence[int]) -> list[Site]:
    """Corrections at the two earliest risky slots; a continuation when at most two are risky.

    The whole block is scanned, since the count of risky slots decides on the continuation.
    """
    risky = [slot for slot, margin in enumerate(margins) if margin < DELTA and slot]
    sites: list[Site] = [(_CORRECTION, slot, candidates[slot]) for slot in risky[:CORRECTIONS]]
    if len(risky) <= CORRECTIONS:
        sites.append((_CONTINUATION, len(margins), None))
    return sites


RECGUIDE = Method("recguide", branches=branches)
