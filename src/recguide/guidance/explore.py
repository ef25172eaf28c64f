"""Rounds of every block from the same states, under histories of every kind: what calibration needs."""

from __future__ import annotations

import numpy as np

from recguide.guidance.arrays import Ints
from recguide.guidance.history import History
from recguide.guidance.records import RoundRecord
from recguide.guidance.traffic import Traffic
from recguide.guidance.value import BLOCKS

_ACTIONS = (1, *BLOCKS)
_STAY, _NEAR = 0.4, 0.3
"""The chain of committed blocks stays, moves to a neighbour, or jumps."""


def explore(traffic: Traffic, texts: int, *, seed: int = 0, name: str = "") -> list[RoundRecord]:
    """Decodes texts with blocks at random; every block is tried at each place, one of them is committed.

    AR steps are among them, each with a continuation's slot 0.
    """
    random = np.random.default_rng(seed)
    records: list[RoundRecord] = []
    for text in range(texts):
        length = traffic.seat(0, text)
        history, position, action = History(), 0, 3
        while position < length - 1:
            tried = [_round(traffic, history, position, block, f"{text}", name) for block in _ACTIONS]
            tried = [record for record in tried if record.position + record.block <= length]
            records += tried
            done = tried[min(action, len(tried) - 1)]
            history.add(done.verified, done.acceptance, done.entropies)
            position += done.acceptance
            action = _next(random, action)
    return records


def _round(
    traffic: Traffic, history: History, position: int, block: int, prompt: str, name: str
) -> RoundRecord:
    seat, at = np.zeros(1, np.int64), np.array([position], np.int64)
    drafted = traffic.draft(seat, at, block)
    wrong = np.flatnonzero(~drafted.right[0, 1:]) + 1
    acceptance = int(wrong[0]) if len(wrong) else block
    decisions = 1 if block == 1 else min(acceptance, block - 1)
    return RoundRecord(
        set=name,
        prompt=prompt,
        position=position,
        block=block,
        verified=block,
        acceptance=acceptance,
        margins=tuple(drafted.margins[0, 1:].tolist()),
        rank=int(drafted.ranks[0, acceptance]) if acceptance < block else 0,
        head=_head(traffic, seat, at + block) if acceptance == block else -1,
        entropies=tuple(traffic.entropy(seat, at, decisions)[0].tolist()),
        signals=history.signals,
        previous=history.previous,
        full=history.full,
    )


def _head(traffic: Traffic, seat: Ints, position: Ints) -> int:
    return int(traffic.draft(seat, position, 1).right[0, 0])


def _next(random: np.random.Generator, action: int) -> int:
    u = random.random()
    if u < _STAY:
        return action
    if u < _STAY + _NEAR:
        return int(np.clip(action + random.choice((-1, 1)), 0, len(_ACTIONS) - 1))
    return int(random.integers(len(_ACTIONS)))
