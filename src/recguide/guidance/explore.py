"""Rounds of every block from the same states, under histories of every kind: what calibration needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recguide.guidance.arrays import Ints
from recguide.guidance.history import History
from recguide.guidance.records import RoundRecord
from recguide.guidance.traffic import Traffic
from recguide.guidance.value import BLOCKS

ACTIONS = (1, *BLOCKS)
"""Blocks that are tried at every place; 1 is an AR step."""
FIRST = ACTIONS.index(16)
"""The block that is committed first."""
_STAY, _NEAR = 0.4, 0.3
"""The chain of committed blocks stays, moves to a neighbour, or jumps."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a draft of `block` slots at some place would have come to; fields as in RoundRecord."""

    block: int
    acceptance: int
    margins: tuple[float, ...]
    rank: int
    head: int
    entropies: tuple[float, ...]


class Walk:
    """A text decoded with blocks at random: every block is tried at each place, one of them is committed.

    Args:
        random: of the chain of committed blocks.
        length: tokens of the text.
        set, prompt: as in RoundRecord.

    Attributes:
        position: where the next blocks are to be tried.
        records: of everything tried.
    """

    def __init__(self, random: np.random.Generator, length: int, *, set: str, prompt: str) -> None:  # noqa: A002
        self._random, self._length = random, length
        self._set, self._prompt = set, prompt
        self._history, self._action = History(), FIRST
        self.position = 0
        self.records: list[RoundRecord] = []

    @property
    def done(self) -> bool:
        return self.position >= self._length - 1

    @property
    def blocks(self) -> tuple[int, ...]:
        """Those of ACTIONS that fit before the text's end."""
        return tuple(block for block in ACTIONS if self.position + block <= self._length)

    def tell(self, trials: Sequence[Trial]) -> None:
        """What came of `blocks`, in their order; one of them is committed."""
        self.records += [self._record(trial) for trial in trials]
        done = trials[min(self._action, len(trials) - 1)]
        self._history.add(done.block, done.acceptance, done.entropies)
        self.position += done.acceptance
        self._action = _next(self._random, self._action)

    def _record(self, trial: Trial) -> RoundRecord:
        return RoundRecord(
            set=self._set,
            prompt=self._prompt,
            position=self.position,
            block=trial.block,
            verified=trial.block,
            acceptance=trial.acceptance,
            margins=trial.margins,
            rank=trial.rank,
            head=trial.head,
            entropies=trial.entropies,
            signals=self._history.signals,
            previous=self._history.previous,
            full=self._history.full,
        )


def explore(traffic: Traffic, texts: int, *, seed: int = 0, name: str = "") -> list[RoundRecord]:
    """Walks through texts of `traffic`, one after another."""
    random = np.random.default_rng(seed)
    records: list[RoundRecord] = []
    for text in range(texts):
        walk = Walk(random, traffic.seat(0, text), set=name, prompt=f"{text}")
        while not walk.done:
            walk.tell([_trial(traffic, walk.position, block) for block in walk.blocks])
        records += walk.records
    return records


def decisions(block: int, acceptance: int) -> int:
    """How many of a round's decisions are causally valid and no bonus; an AR step's only one counts."""
    return 1 if block == 1 else min(acceptance, block - 1)


def _trial(traffic: Traffic, position: int, block: int) -> Trial:
    seat, at = np.zeros(1, np.int64), np.array([position], np.int64)
    drafted = traffic.draft(seat, at, block)
    wrong = np.flatnonzero(~drafted.right[0, 1:]) + 1
    acceptance = int(wrong[0]) if len(wrong) else block
    return Trial(
        block=block,
        acceptance=acceptance,
        margins=tuple(drafted.margins[0, 1:].tolist()),
        rank=int(drafted.ranks[0, acceptance]) if acceptance < block else 0,
        head=_head(traffic, seat, at + block) if acceptance == block else -1,
        entropies=tuple(traffic.entropy(seat, at, decisions(block, acceptance))[0].tolist()),
    )


def _head(traffic: Traffic, seat: Ints, position: Ints) -> int:
    return int(traffic.draft(seat, position, 1).right[0, 0])


def _next(random: np.random.Generator, action: int) -> int:
    u = random.random()
    if u < _STAY:
        return action
    if u < _STAY + _NEAR:
        return int(np.clip(action + random.choice((-1, 1)), 0, len(ACTIONS) - 1))
    return int(random.integers(len(ACTIONS)))
