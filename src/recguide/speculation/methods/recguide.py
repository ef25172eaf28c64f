"""RecGuide's predictive draft-verify overlap (paper §5.1)."""

from recguide.speculation.methods.method import Method
from recguide.speculation.rows import Branch, BranchKind, Draft

DELTA = 0.5
"""δ: a drafted slot with a margin below it is risky."""

CORRECTIONS = 2
"""Only the earliest risky slots get a branch: later ones are less reliable and worth less."""


def branches(draft: Draft) -> tuple[Branch, ...]:
    """Corrections at the two earliest risky slots; a continuation when at most two are risky.

    The whole block is scanned, since the count of risky slots decides on the continuation.
    """
    block = len(draft.tokens)
    risky = [slot for slot in range(1, block) if draft.margins[slot] < DELTA]
    corrections = tuple(
        Branch(BranchKind.CORRECTION, slot, head=draft.candidates[0][slot]) for slot in risky[:CORRECTIONS]
    )
    if len(risky) > CORRECTIONS:
        return corrections
    return (*corrections, Branch(BranchKind.CONTINUATION, block))


RECGUIDE = Method("recguide", branches=branches)
