"""A process as traffic of a simulation: the law of `script`, drawn in bulk, not hashed slot by slot."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from recguide.bench.acceptance.doubt import SPAN
from recguide.bench.acceptance.process import AcceptanceReplay
from recguide.guidance.arrays import Bools, Floats, Ints
from recguide.guidance.traffic import WIDEST, Drafted

Process = Callable[[int], AcceptanceReplay]
"""The process of text number n: traffic may be mixed, or drift."""


class ReplayTraffic:
    """Texts of `length` tokens each.

    Everything that a text and drafts from any of its positions hold is drawn when it takes its seat, so that
    policies meet the same texts.

    Args:
        process: of all texts, or of text number n.
        seats: texts that are in progress at once at most.
        seed: of everything random.
    """

    def __init__(self, process: AcceptanceReplay | Process, *, seats: int, length: int, seed: int) -> None:
        self._process: Process = (lambda _: process) if isinstance(process, AcceptanceReplay) else process
        self._seed, self._length = seed, length
        places = length + WIDEST
        self._hard = np.zeros((seats, places), np.bool_)
        self._entropy = np.zeros((seats, places))
        self._draws = np.zeros((4, seats, places, WIDEST), np.float32)
        self._of: list[AcceptanceReplay] = [self._process(0)] * seats
        self._bounds = np.zeros((seats, 2, WIDEST))

    @property
    def length(self) -> int:
        return self._length

    def seat(self, seat: int, text: int) -> int:
        random = np.random.default_rng((self._seed, text))
        process = self._process(text)
        self._of[seat] = process
        self._bounds[seat] = process.hazards(WIDEST)
        self._hard[seat] = _states(process, random, self._hard.shape[1])
        self._entropy[seat] = _entropies(process, random, self._hard[seat])
        shape = self._draws.shape[2:]
        for kind in range(len(self._draws)):
            self._draws[kind, seat] = random.random(shape, np.float32)
        return self._length

    def draft(self, seats: Ints, positions: Ints, block: int) -> Drafted:
        slots = np.arange(block)
        hard = self._hard[seats[:, None], positions[:, None] + slots].astype(np.int64)
        drawn, doubt, size, other = self._draws[:, seats, positions, :block]
        right = drawn >= self._bounds[seats[:, None], hard, slots]
        alarm, recall, second, either, sure_right, sure_wrong = self._rates(seats)
        risky = doubt < np.where(right, alarm, recall)
        sure = 1 - SPAN * size ** np.where(right, sure_right, sure_wrong)
        margins = np.where(risky, SPAN * size, sure)
        ranks = np.where(other < second, 1, np.where(other < either, 2, 0)) * ~right
        return Drafted(right, margins.astype(np.float64), ranks.astype(np.int64))

    def entropy(self, seats: Ints, positions: Ints, slots: int) -> Floats:
        # The decision at slot i is about the token at i + 1.
        return self._entropy[seats[:, None], positions[:, None] + 1 + np.arange(slots)]

    def _rates(self, seats: Ints) -> NDArray[np.float64]:
        """[6, D, 1]"""
        names = ("alarm", "recall", "second_hit", "either_hit", "sure_right", "sure_wrong")
        every = np.array([[getattr(process, name) for process in self._of] for name in names])
        return every[:, seats, None]


def _states(process: AcceptanceReplay, random: np.random.Generator, places: int) -> Bools:
    """[places] whether each position is hard."""
    renewed = random.random(places) < process.renewal
    renewed[0] = True
    last = np.maximum.accumulate(np.where(renewed, np.arange(places), 0))
    return (random.random(places) < process.hard_share)[last]


def _entropies(process: AcceptanceReplay, random: np.random.Generator, hard: Bools) -> Floats:
    """[places] nats; the law of `script`."""
    odds = (process.hard_share / (1 - process.hard_share)) ** 0.5
    noise = 2 * (random.random((3, len(hard))).sum(0) - 1.5)
    link = process.entropy_link
    state = np.where(hard, link / odds, -link * odds)
    spread = process.entropy_spread
    return process.entropy_median * np.exp(spread * ((1 - link**2) ** 0.5 * noise + state))
