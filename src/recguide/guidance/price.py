"""The policy `price`: every query token costs what it is worth elsewhere (architecture §4).

Each step solves twice, and does not iterate. First plans: the hulls of all requests' menus are merged in the
order of Δy/Δn, and the cut with the most Y(N)/T(N, M, X) gives the rate ρ, the price μ, and what a draft in
hand is worth (`market`); while a forward runs that is made for the next. Then the step itself, at these
(`step`, and `few` for a few requests).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recguide.guidance.beliefs import Beliefs
from recguide.guidance.clock import Clock
from recguide.guidance.few import FEW, solve_few
from recguide.guidance.market import MarketMaker
from recguide.guidance.markets import Markets
from recguide.guidance.step import solve
from recguide.guidance.value import ValueTable
from recguide.guidance.view import Outcome, Plan, View

PROBE_SHARE = 0.02
"""Of query tokens, at most, that AR requests spend to see whether drafts are worth it by now."""
PROBE_BLOCK = 8
PROBE_COST = 2 * PROBE_BLOCK
"""Its draft and its verification."""
PROBED_OF = 16
"""One request of so many probes when some do."""
PROBE_AFTER = 16
"""AR steps of a request before it may probe."""
KEPT = 8
"""Plain steps that one decision is good for."""


class Price:
    """Args: table: value and branch probabilities; clock: the cost table's."""

    def __init__(self, table: ValueTable, clock: Clock) -> None:
        self._beliefs, self._clock = Beliefs(table), clock
        self._markets = Markets(MarketMaker(self._beliefs, clock), clock)
        self._probes = 0.0
        self._kept = 0

    @property
    def name(self) -> str:
        return "price"

    def decide(self, view: View) -> Plan:
        beliefs, clock = self._beliefs, self._clock
        cell = beliefs.cell(view)
        market = self._markets.now(view, cell)
        if len(view) <= FEW and view.candidates == 1:
            plan = solve_few(view, cell.tolist(), beliefs, market, clock)
        else:
            plan = solve(view, cell, beliefs.in_hand(view, cell), beliefs, market, clock.of_step(view))
        self._kept = 0
        return self._probing(view, plan)

    def prepare(self, view: View) -> None:
        self._markets.prepare(view, self._beliefs.cell(view))

    def again(self, requests: int) -> bool:
        """Until a probe is due, but no more than KEPT times."""
        due = self._probes >= _together(requests) * PROBE_COST
        if due or self._kept >= KEPT:
            return False
        self._kept += 1
        self._save(requests, requests)
        return True

    def observe(self, view: View, plan: Plan, outcome: Outcome) -> None:
        self._beliefs.observe(view, plan, outcome)

    def _save(self, requests: int, query_tokens: int) -> None:
        most = 2.0 * _together(requests) * PROBE_COST
        self._probes = min(most, self._probes + PROBE_SHARE * query_tokens)

    def _probing(self, view: View, plan: Plan) -> Plan:
        """Lets requests that have gone longest without a draft make one, if the budget has it.

        Under load several do so at once: the steps in between are plain ones, which run ahead.
        """
        together = _together(len(view))
        self._save(len(view), plan.all_tokens)
        if self._probes < together * PROBE_COST or view.idle.max() < PROBE_AFTER:
            return plan
        steps = (plan.verified == 1) & (view.draft == 0) & (view.remaining >= PROBE_BLOCK)
        idle = np.where(steps, view.idle, 0)
        eldest = np.argsort(-idle, kind="stable")[:together]
        eldest = eldest[idle[eldest] >= PROBE_AFTER]
        self._probes -= len(eldest) * PROBE_COST
        block, verified = plan.block.copy(), plan.verified.copy()
        block[eldest], verified[eldest] = PROBE_BLOCK, 0
        branches = plan.branches.only(~np.isin(plan.branches.request, eldest))
        return replace(plan, block=block, verified=verified, branches=branches)


def _together(requests: int) -> int:
    """How many requests probe at once."""
    return max(1, requests // PROBED_OF)
