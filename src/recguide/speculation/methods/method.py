"""What sets one decoding method apart from another: a value given to the one loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from recguide.speculation.rows import Draft, Site

Branches = Callable[[Sequence[float], Sequence[int]], Sequence[Site]]
"""(margins, best candidates) of a draft's slots, slot 0 included → where branches run."""


def no_branches(_margins: Sequence[float], _candidates: Sequence[int]) -> Sequence[Site]:
    return ()


@dataclass(frozen=True, slots=True)
class Method:
    """A decoding method.

    Attributes:
        name: what users call it.
        drafts: False makes every round an AR step.
        verifies: False emits a finished draft as it is.
        branches: the branches to run beside the verification of a draft.
        refines: None fills a block in one draft forward; else how a draft with picked tokens, their
            confidences (p1) and a threshold keeps some slots and leaves others masked.
        threshold: what `refines` gets from a request that names none.
        refuses: sampling parameters that the method cannot honour, refused unless at their default.
    """

    name: str
    drafts: bool = True
    verifies: bool = True
    branches: Branches = no_branches
    refines: Callable[[Draft, tuple[float, ...], float], Draft] | None = None
    threshold: float = 0.0
    refuses: frozenset[str] = field(default=frozenset({"threshold"}))

    @property
    def weighs_drafts(self) -> bool:
        """Whether what follows depends on how likely a draft's tokens are, not on the tokens alone."""
        return self.branches is not no_branches or self.refines is not None
