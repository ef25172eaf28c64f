"""Whether two endpoints answered the same: greedy texts of the same request beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recguide.bench.load.record import Record

EXAMPLES = 3
_CONTEXT = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """One request answered differently, from character `at` on; the texts begin a little before."""

    prompt: int
    at: int
    one: str
    other: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """compared: requests that both answered to the end; examples: a few of those that differ."""

    compared: int
    equal: int
    examples: tuple[Difference, ...]


def agreement(one: Sequence[Record], other: Sequence[Record]) -> Agreement:
    """Pairs requests of the same turn and number, which asked the same."""
    others = {(record.turn, record.number): record for record in other if record.error is None}
    pairs = [
        (record, others[key])
        for record in one
        if record.error is None and (key := (record.turn, record.number)) in others
    ]
    different = [(a, b) for a, b in pairs if a.text != b.text]
    return Agreement(
        compared=len(pairs),
        equal=len(pairs) - len(different),
        examples=tuple(_difference(a, b) for a, b in different[:EXAMPLES]),
    )


def _difference(one: Record, other: Record) -> Difference:
    both = zip(one.text, other.text, strict=False)
    shorter = min(len(one.text), len(other.text))
    at = next((place for place, (a, b) in enumerate(both) if a != b), shorter)
    window = slice(max(0, at - _CONTEXT), at + _CONTEXT)
    return Difference(one.prompt, at, one.text[window], other.text[window])
