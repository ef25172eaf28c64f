"""A policy that plans anything that is allowed, and an engine whose requests it plans for."""

from __future__ import annotations

import numpy as np

from recguide.core import CANDIDATES
from recguide.guidance.view import Branches, Head, Plan

LARGEST = 12


class Wayward:
    """Plans at random; `blocks` counts what it has begun."""

    name = "wayward"

    def __init__(self, seed):
        self._random = np.random.default_rng(seed)
        self.told = []
        self.took = []

    def decide(self, view):
        rows = [
            self._request(*facts) for facts in zip(view.draft.tolist(), view.remaining.tolist(), strict=True)
        ]
        return self._plan(rows)

    def _plan(self, rows):
        branches = [(row, *branch) for row, (_, _, mine) in enumerate(rows) for branch in mine]
        return Plan(
            block=np.array([block for block, _, _ in rows], np.int64),
            verified=np.array([verified for _, verified, _ in rows], np.int64),
            branches=Branches(*np.array(branches, np.int64).T) if branches else Branches.none(),
            price=0.25,
            rate=1.5,
        )

    def ahead(self, view):
        """Half of the time it waits."""
        if self._random.integers(2):
            return None
        rows = [
            self._request(draft, left, ahead=True)
            for draft, left in zip(view.draft.tolist(), view.remaining.tolist(), strict=True)
        ]
        return self._plan([(block, verified, []) for block, verified, _ in rows])

    def prepare(self, view):
        """Nothing has to be."""

    def again(self, requests):
        del requests
        return False

    def observe(self, view, plan, outcome):
        assert view.margins.shape[1] >= view.draft.max(), "what is told of a draft has its margins"
        self.told.append((view, plan, outcome))

    def timed(self, view, plan, ms, waited_ms, *, late=False):
        del view, late
        self.took.append((plan, ms, waited_ms))

    def _request(self, draft, remaining, *, ahead=False):
        """(block, verified, branches)"""
        number = self._random.integers
        if draft and ahead:
            return 0, min(draft, remaining), []
        if not draft:
            if remaining >= 2 and number(2):
                return int(number(2, min(LARGEST, remaining) + 1)), 0, []
            return 0, 1, self._branch(1, Head.CONTINUATION, remaining)
        verified = int(number(1, min(draft, remaining) + 1)) if number(3) else min(draft, remaining)
        branches = [
            branch
            for slot in range(1, min(verified, draft - 1) + 1)
            for rank in range(1, CANDIDATES + 1)
            if not number(4)
            for branch in self._branch(slot, rank, remaining)
        ]
        if verified == draft:
            branches += self._branch(draft, Head.CONTINUATION, remaining)
        return 0, verified, branches

    def _branch(self, slot, head, remaining):
        most = min(LARGEST, remaining - slot)
        return (
            [(slot, int(head), int(self._random.integers(2, most + 1)))]
            if most >= 2 and self._random.integers(3)
            else []
        )


def wayward(machine, seed=0):
    """The engine's own policy, replaced; returns it."""
    policy = Wayward(seed)
    machine._policies._made[machine.config.policy] = policy
    return policy
