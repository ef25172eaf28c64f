"""What a step's rounds were, counted: metrics and dashboard read every step, so it is done at C's speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from recguide.engine.reports import RoundReport

_block, _emitted = attrgetter("verified"), attrgetter("emitted")
_outcome = attrgetter("drafted_by", "acceptance")
_fate = attrgetter("branches", "covered", "reused")


@dataclass(frozen=True, slots=True)
class RoundTally:
    """Rounds added up.

    Attributes:
        blocks: rounds by verified slots.
        acceptance: rounds with a draft by A.
        drafts: those rounds by what made the draft.
        branches: branches by (kind, outcome): missed, covered (in place only) or reused.
        emitted: tokens returned.
    """

    blocks: Counter[int]
    acceptance: Counter[int]
    drafts: Counter[str]
    branches: Counter[tuple[str, str]]
    emitted: int

    @classmethod
    def of(cls, rounds: Sequence[RoundReport]) -> RoundTally:
        acceptance, drafts = Counter[int](), Counter[str]()
        for (drafted_by, accepted), count in Counter(map(_outcome, rounds)).items():
            if drafted_by is not None:
                acceptance[accepted] += count
                drafts[drafted_by] += count
        branches = Counter[tuple[str, str]]()
        for (kinds, covered, reused), count in Counter(map(_fate, rounds)).items():
            _add_branches(branches, kinds, covered, reused, count)
        return cls(Counter(map(_block, rounds)), acceptance, drafts, branches, sum(map(_emitted, rounds)))


def _add_branches(
    branches: Counter[tuple[str, str]],
    kinds: Sequence[str],
    covered: str | None,
    reused: str | None,
    count: int,
) -> None:
    """At most one branch of a round lies in the outcome's place, and only that one can be reused."""
    for kind in kinds:
        branches[kind, "missed"] += count
    if covered is not None:
        branches[covered, "missed"] -= count
        branches[covered, "covered" if reused is None else "reused"] += count
