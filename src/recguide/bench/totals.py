"""What the rounds of many choices did in all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recguide.core import Completion, Generation, RoundStats


@dataclass(frozen=True, slots=True)
class Totals:
    """Round statistics of `choices` choices, added up.

    The first token of every choice comes from prefill, so none of the forwards counted made it.
    """

    stats: RoundStats
    choices: int

    @property
    def tpf(self) -> float:
        """Tokens after the first of each choice per forward without prefill."""
        return _share(self.stats.tokens - self.choices, self.stats.forwards)

    @property
    def tpf_with_prefill(self) -> float:
        return _share(self.stats.tokens - self.choices, self.stats.forwards + self.stats.prefill_forwards)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def total(generations: Iterable[Generation]) -> Totals:
    return add_up([completion for generation in generations for completion in generation.completions])


def add_up(completions: Iterable[Completion]) -> Totals:
    stats, choices = RoundStats(), 0
    for completion in completions:
        stats.add(completion.stats)
        choices += 1
    return Totals(stats, choices)
