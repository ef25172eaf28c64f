"""The oracle: a bound for policies without branches. It knows how far every draft would get.

It drafts what will be emitted, or the best of some blocks, and verifies what will be emitted, for the
requests where that pays at the step's price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.clock import Clock
from recguide.guidance.hull import hulls
from recguide.guidance.market import base_of
from recguide.guidance.sweep import Increments, best_profit, best_rate
from recguide.guidance.traffic import WIDEST
from recguide.guidance.unlearning import Unlearning
from recguide.guidance.view import Branches, Plan, View

Reach = Callable[[], Ints]
"""[R] the acceptance that a draft of WIDEST slots begun now would have, for the requests of the step."""


class Oracle(Unlearning):
    """Args: clock: the cost table's; blocks: that it may draft; None is whatever will be emitted."""

    def __init__(self, clock: Clock, blocks: Sequence[int] | None = None) -> None:
        self._clock = clock
        self._of = None if blocks is None else np.array(blocks)
        self.reach: Reach | None = None

    @property
    def name(self) -> str:
        return "oracle"

    def decide(self, view: View) -> Plan:
        assert self.reach is not None, "the simulation says how far drafts get"
        reach = np.minimum(np.minimum(self.reach(), view.remaining), WIDEST)
        begins = view.draft == 0
        block = np.where(begins, self._blocks(view, reach), 0)
        block = np.where(block > 1, np.minimum(block, view.remaining), 0)
        verified = np.where(block > 0, 0, np.where(begins, 1, np.minimum(view.draft, reach)))
        return Plan(block, verified, Branches.none())

    def _blocks(self, view: View, reach: Ints) -> Ints:
        """[R] slots to draft, 1 for AR."""
        options = (
            reach[:, None] if self._of is None else np.broadcast_to(self._of, (len(view), len(self._of)))
        )
        emitted = np.minimum(options, reach[:, None])
        one = np.ones((len(view), 1))
        use = np.concatenate([one, (options + emitted) / 2], axis=1)
        made = np.concatenate([one, np.where(emitted > 1, emitted / 2, -np.inf)], axis=1)
        found = hulls(use, made)
        read = float(view.prefix_tokens + view.prefix.sum())

        def mean(n: Floats, x: Floats) -> Floats:
            return self._clock.mean_ms(n, read, x)

        there = found.tokens > 0
        of = np.nonzero(there)[0]
        increments = Increments(
            found.tokens[there], found.gain[there], view.prefix[of].astype(np.float64), np.ones(len(of))
        )
        cut = best_rate(base_of(view), increments, mean)
        taken = np.bincount(
            of[best_profit(base_of(view), increments, mean, cut.gain / cut.ms)], minlength=len(view)
        )
        item = found.item[np.arange(len(view)), taken]
        return np.concatenate([one.astype(np.int64), options], axis=1)[np.arange(len(view)), item]
