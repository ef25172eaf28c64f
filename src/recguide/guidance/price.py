"""The policy `price`: every query token costs what it is worth elsewhere (architecture §4).

Each step solves twice, and does not iterate. First plans: the hulls of all requests' menus are merged in the
order of Δy/Δn, and the cut with the most Y(N)/T(N, M, X) gives the rate ρ, the price μ, and what a draft in
hand is worth. Then the step itself, at these (`step`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.beliefs import Beliefs
from recguide.guidance.clock import Clock
from recguide.guidance.merged import Merged
from recguide.guidance.step import Market, base_of, solve
from recguide.guidance.sweep import Cut, Swept
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

LASTING = 0.75
"""How far a request's stretch, easy or hard, outlasts the round that is planned: 1 for ever, 0 not at all.
In simulation 0.5 to 1 are alike, and 0 makes 1 to 6 % less."""


class Price:
    """Args: table: value and branch probabilities; clock: the cost table's."""

    def __init__(self, table: ValueTable, clock: Clock) -> None:
        self._beliefs, self._clock = Beliefs(table), clock
        self._full_slope = clock.slope_ms(1e6)
        self._merged = Merged(self._beliefs.menus)
        self._probes = 0.0

    @property
    def name(self) -> str:
        return "price"

    def decide(self, view: View) -> Plan:
        beliefs = self._beliefs
        cell = beliefs.cell(view)
        plan = solve(view, cell, beliefs.in_hand(view, cell), beliefs, self._market(view, cell))
        return self._probing(view, plan)

    def observe(self, view: View, plan: Plan, outcome: Outcome) -> None:
        self._beliefs.observe(view, plan, outcome)

    def _market(self, view: View, cell: Ints) -> Market:
        clock, menus = self._clock, self._beliefs.menus
        read = float(view.prefix_tokens + view.prefix.sum())

        def mean(n: Floats, x: Floats) -> Floats:
            return clock.mean_ms(n, read, x)

        def exact(n: Floats, x: Floats) -> Floats:
            return np.where(n <= view.most, clock.ms(n.astype(np.int64), read, x), np.inf)

        cut = self._plans(view, cell).best(mean)
        rate = cut.gain / cut.ms
        price = _price(cut, rate * clock.slope_ms(cut.tokens))
        floor = min(price, rate * clock.slope_ms(float(view.tokens + len(view)))) / 2
        requests = np.bincount(cell)
        cells = np.flatnonzero(requests)
        member = (np.cumsum(requests > 0) - 1)[cell]
        token = self._token(cells, requests[cells], price)
        worth = menus.worth(price, cells, token)
        return Market(price, rate, floor, token[member], worth[member], exact, self._weight)

    def _token(self, cells: Ints, requests: Ints, price: float) -> Floats:
        """[cells] what an emitted token counts; its mean over the tokens of these requests is about 1.

        A request has to get through its hard stretches too, and is seated for as long as they take: with all
        seats taken, more tokens a second means less time per token, which is a rent per forward, the same for
        all, and the price of its query tokens. So tokens count what they cost, as far as a stretch lasts.
        That is eq. 3's common ρ.
        """
        menus = self._beliefs.menus
        rent = float(menus.net(price, cells) @ requests) / float(requests.sum())
        cost, pace = menus.cost(price, rent, cells)
        made = pace * requests
        return (cost * made.sum() / (cost @ made)) ** LASTING

    def _plans(self, view: View, cell: Ints) -> Swept:
        """The hulls of all requests' menus, merged."""
        if self._merged.menus is not self._beliefs.menus:
            self._merged = Merged(self._beliefs.menus)
        prefix = view.prefix.astype(np.float64)
        return self._merged.sweep(base_of(view), cell, prefix, self._weight(prefix))

    def _weight(self, prefix: Floats) -> Floats:
        """Where arithmetic is full, a query token costs μ_N + μ_X·prefix."""
        ratio = self._clock.pair_ms / self._full_slope if self._full_slope > 0 else 0.0
        return 1 + ratio * prefix

    def _probing(self, view: View, plan: Plan) -> Plan:
        """Lets requests that have gone longest without a draft make one, if the budget has it.

        Under load several do so at once: the steps in between are plain ones, which run ahead.
        """
        together = max(1, len(view) // PROBED_OF)
        cost = together * PROBE_COST
        self._probes = min(2.0 * cost, self._probes + PROBE_SHARE * float(plan.query_tokens.sum()))
        if self._probes < cost:
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


def _price(cut: Cut, smooth: float) -> float:
    """μ: where T is smooth it is ρ·T_N; at a kink it lies between its neighbours' Δy/Δn."""
    return min(max(smooth, cut.following), cut.last)
