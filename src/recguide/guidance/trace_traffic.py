"""Recorded rounds as traffic: drafts get as far as the nearest recorded draft of that size did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recguide.core import ParameterError
from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.records import RoundRecord
from recguide.guidance.traffic import WIDEST, Drafted

TOSS = 2_654_435_761


@dataclass(frozen=True, slots=True)
class _Text:
    """One prompt's rounds.

    Attributes:
        rounds: block → those of that block, by position; `places` their positions.
        entropy: [length + WIDEST + 1] of the decision about each position; 0 where none was recorded.
        heads: positions at which a continuation was right.
    """

    length: int
    rounds: Mapping[int, Sequence[RoundRecord]]
    places: Mapping[int, Ints]
    entropy: Floats
    heads: frozenset[int]


class TraceTraffic:
    """Text n is the n-th prompt of the trace, around and around.

    A draft whose place was not recorded takes the record before or after it, by a toss that its position
    decides: those before are long too often, as more places lie in long rounds, and those after too seldom,
    as short rounds meet them twice. What lies behind a recorded mismatch is wrong here too. Traces of
    calibration, which try every block at many places, serve best.
    """

    def __init__(self, records: Sequence[RoundRecord]) -> None:
        prompts: dict[tuple[str, str], list[RoundRecord]] = {}
        for record in records:
            if record.block > 1 and record.verified == record.block <= WIDEST:
                prompts.setdefault((record.set, record.prompt), []).append(record)
        if not prompts:
            raise ParameterError("trace", "holds no round with a block that was verified whole")
        self._texts = [_text(rounds) for rounds in prompts.values()]
        self._seats: dict[int, _Text] = {}

    @property
    def length(self) -> int:
        return max(text.length for text in self._texts)

    def seat(self, seat: int, text: int) -> int:
        self._seats[seat] = self._texts[text % len(self._texts)]
        return self._seats[seat].length

    def draft(self, seats: Ints, positions: Ints, block: int) -> Drafted:
        shape = (len(seats), block)
        right, margins = np.zeros(shape, np.bool_), np.ones(shape)
        ranks = np.zeros(shape, np.int64)
        for row, (seat, position) in enumerate(zip(seats.tolist(), positions.tolist(), strict=True)):
            text = self._seats[seat]
            record = _nearest(text, position, block)
            right[row] = np.arange(block) < record.acceptance
            right[row, 0] = position in text.heads
            size = min(block, record.block)
            margins[row, 1:size] = record.margins[: size - 1]
            if record.acceptance < size:
                ranks[row, record.acceptance] = record.rank
        return Drafted(right, margins, ranks)

    def entropy(self, seats: Ints, positions: Ints, slots: int) -> Floats:
        at = np.arange(1, slots + 1)
        rows = [
            self._seats[seat].entropy[np.minimum(position + at, len(self._seats[seat].entropy) - 1)]
            for seat, position in zip(seats.tolist(), positions.tolist(), strict=True)
        ]
        return np.stack(rows)


def _text(rounds: Sequence[RoundRecord]) -> _Text:
    by_block: dict[int, list[RoundRecord]] = {}
    length = max(record.position + record.acceptance for record in rounds)
    entropy = np.zeros(length + WIDEST + 1)
    for record in sorted(rounds, key=lambda record: record.position):
        by_block.setdefault(record.block, []).append(record)
        start = record.position + 1
        entropy[start : start + len(record.entropies)] = record.entropies
    places = {
        block: np.array([record.position for record in records], np.int64)
        for block, records in by_block.items()
    }
    heads = frozenset(record.position + record.block for record in rounds if record.head == 1)
    return _Text(length, by_block, places, entropy, heads)


def _nearest(text: _Text, position: int, block: int) -> RoundRecord:
    """Of the smallest recorded block that holds this one; of the largest if none does."""
    larger = [size for size in text.rounds if size >= block]
    size = min(larger) if larger else max(text.rounds)
    at = int(np.searchsorted(text.places[size], position))
    recorded = at < len(text.places[size]) and text.places[size][at] == position
    if not recorded and (position * TOSS >> 16) & 1:
        at = max(0, at - 1)
    return text.rounds[size][min(at, len(text.rounds[size]) - 1)]
