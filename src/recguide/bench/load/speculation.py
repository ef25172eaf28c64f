"""Speculation as the answers report it, `metrics.speculative_decoding`, added up over requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Speculation:
    """Sums over answers.

    Attributes:
        answers: how many reported.
        rounds: verified drafts ("num_spec_steps").
        drafted, accepted: draft tokens offered, and those that matched.
        acceptance: A → rounds that emitted so many tokens; answers report accepted ones, A − 1.
    """

    answers: int
    rounds: int
    drafted: int
    accepted: int
    acceptance: Mapping[int, int]

    @classmethod
    def of(cls, reports: Iterable[Mapping[str, Any]]) -> Speculation | None:
        """None of no reports."""
        found = list(reports)
        histogram: Counter[int] = Counter()
        for report in found:
            for accepted, rounds in enumerate(_counts(report.get("acceptance_histogram"))):
                histogram[accepted + 1] += rounds
        return (
            cls(
                answers=len(found),
                rounds=_sum(found, "num_spec_steps"),
                drafted=_sum(found, "num_draft_tokens"),
                accepted=_sum(found, "num_accepted_draft_tokens"),
                acceptance=dict(sorted((+histogram).items())),
            )
            if found
            else None
        )

    @property
    def mean_acceptance(self) -> float:
        """Tokens that a round emitted."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0


def _sum(reports: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(value for report in reports if isinstance(value := report.get(name), int))


def _counts(value: object) -> list[int]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [item for item in items if isinstance(item, int)]
