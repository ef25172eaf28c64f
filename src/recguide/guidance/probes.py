"""Probes: requests that decode plainly try a draft now and then, to see whether drafts are worth it by now.

A probe among plain steps also costs the host's time of steps that are not plain any more, however many probe.
So they do it in company, and the more so, and the more seldom, the longer the host takes; and the more
seldom, the more of them came to nothing.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np

from recguide.guidance.clock import Clock
from recguide.guidance.host import HostClock, Kind
from recguide.guidance.view import Plan, View, stays_plain

PROBE_SHARE = 0.015
"""Of query tokens, at most, that probes cost; the host's time counts as the tokens of as many plain steps."""
FRUITLESS = 8
"""Times as seldom, at most: probe after probe of which nothing came doubles it."""
PROBE_BLOCK = 8
PROBE_COST = 2 * PROBE_BLOCK
"""Its draft and its verification."""
PROBED_OF = 16
"""One request of so many probes when some do."""
PROBE_AFTER = 16
"""AR steps of a request before it may probe."""
INTERRUPTED = 3
"""Steps that wait for the host: the drafts, their verification, and the plain step behind it."""


class Probes:
    """The budget. Args: clock: the cost table's; host: its time."""

    def __init__(self, clock: Clock, host: HostClock) -> None:
        self._clock, self._host = clock, host
        self._saved = 0.0
        self._seldom = 1

    def steps_left(self, requests: int) -> int:
        """Plain steps of these until they may probe; 0 if they may now."""
        lacks = _cost(requests, self._detour(requests)) - self._saved
        return max(0, ceil(lacks / (self._share * requests)))

    def among(self, view: View, plan: Plan, before: int = 0) -> Plan:
        """The plan, in which requests that have gone longest without a draft make one if budgeted.

        Args: before: query tokens of plain steps that were taken unasked since the last plan.
        """
        if plan.block.any():
            self._seldom = 1
        requests, detour = len(view), self._detour(len(view))
        most = 2.0 * _cost(requests, detour)
        self._saved = min(most, self._saved + self._share * (before + plan.all_tokens))
        if view.idle.max() < PROBE_AFTER:
            return plan
        plain = stays_plain(view, plan)
        if not plain:
            detour = 0.0
        together = _together(requests, detour)
        if self._saved < _cost(requests, detour):
            return plan
        steps = (plan.verified == 1) & (view.draft == 0) & (view.remaining >= PROBE_BLOCK)
        idle = np.where(steps, view.idle, 0)
        eldest = np.argsort(-idle, kind="stable")[:together]
        eldest = eldest[idle[eldest] >= PROBE_AFTER]
        if detour and 2 * len(eldest) < together:
            return plan
        self._saved -= len(eldest) * PROBE_COST + detour
        if plain:
            self._seldom = min(FRUITLESS, 2 * self._seldom)
        block, verified = plan.block.copy(), plan.verified.copy()
        block[eldest], verified[eldest] = PROBE_BLOCK, 0
        branches = plan.branches.only(~np.isin(plan.branches.request, eldest))
        return replace(plan, block=block, verified=verified, branches=branches)

    @property
    def _share(self) -> float:
        return PROBE_SHARE / self._seldom

    def _detour(self, requests: int) -> float:
        """Tokens that plain steps emit in the time that leaving them costs."""
        detour = self._host.probe_ms(requests)
        if not detour:
            return 0.0
        return (
            INTERRUPTED * requests * detour / (self._clock.at(requests) + self._host.ms(requests, Kind.PLAIN))
        )


def _cost(requests: int, detour: float) -> float:
    return _together(requests, detour) * PROBE_COST + detour


def _together(requests: int, detour: float) -> int:
    """How many requests probe at once: so many that the detour is no more than half of what they cost."""
    return min(requests, max(1, requests // PROBED_OF, ceil(detour / PROBE_COST)))
