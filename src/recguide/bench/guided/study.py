"""What policies go by in a study: tables of the acceptance that is served, and every policy by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recguide.bench.guided.served import Text
from recguide.guidance.clock import Clock
from recguide.guidance.conditions import Conditions
from recguide.guidance.cost import CostTable
from recguide.guidance.fitting import fit, out_of_fold
from recguide.guidance.fixed import Fixed
from recguide.guidance.paper import BLOCKS, Paper
from recguide.guidance.policy import Policy
from recguide.guidance.price import Price
from recguide.guidance.records import Rounds
from recguide.guidance.rho import calibrated_rho, round_ms
from recguide.guidance.value import ValueTable

LEARNING = 400
"""Steps until `price` knows what forwards and the host take in all courses: most where many requests run, of
which few draft."""


@dataclass(frozen=True, slots=True)
class Way:
    """A policy, made afresh for a load, and how its requests share forwards; or a method without policy.

    Attributes:
        learns: steps in which it learns what nobody tells it, such as the host's time; they do not count.
    """

    name: str
    policy: Callable[[int], Policy]
    batching: str = "ragged"
    method: str | None = None
    learns: int = 0

    def of(self, text: Text) -> Text:
        """The same text served this way."""
        return replace(text, params=replace(text.params, method=self.method))


class Study:
    """Tables of one acceptance, and what is compared on it.

    Args:
        rounds: of calibration, with every block tried from the same states.
        cost: of forwards.
        bins: of s.
        prefix: of a request, in tokens, for T_C(B).

    Attributes:
        table: V_B(s, z); `certainty` the same with all z taken together.
        clock: of the costs.
    """

    def __init__(self, rounds: Rounds, cost: CostTable, *, bins: int = 12, prefix: int = 1000) -> None:
        self.table = _table(rounds, bins)
        self.certainty = _table(_without_outcomes(rounds), bins)
        self.clock = Clock(cost)
        self._prefix = prefix
        self._rounds = {True: rounds, False: _without_outcomes(rounds)}
        self._values = {
            z: out_of_fold(of, BLOCKS, signal="entropy", bins=bins) for z, of in self._rounds.items()
        }
        self._rho: dict[tuple[int, bool], float] = {}

    def ladder(self) -> Sequence[Way]:
        """Table 6, every fixed block, AR, and ours."""
        fixed = [Way(f"fixed {block}", lambda _, block=block: Fixed(block)) for block in BLOCKS]
        return (
            Way("ar", lambda _: Fixed(1), method="ar"),
            Way("recipe", lambda _: Fixed()),
            *fixed,
            Way("paper, s, padded", self._certain, "padded"),
            Way("paper, s and z, padded", self.paper, "padded"),
            Way("paper, bucketed", self.paper, "bucketed"),
            Way("paper, ragged", self.paper),
            Way("price", lambda _: self.price(), learns=LEARNING),
        )

    def price(self) -> Price:
        return Price(self.table, self.clock)

    def paper(self, load: int) -> Paper:
        """Its block sizes alone; the overlap is for single requests."""
        return self._paper(load, self.table, outcomes=True)

    def _certain(self, load: int) -> Paper:
        return self._paper(load, self.certainty, outcomes=False)

    def _paper(self, load: int, table: ValueTable, *, outcomes: bool) -> Paper:
        key = load, outcomes
        if key not in self._rho:
            ms = round_ms(self.clock, load, BLOCKS, self._prefix)
            self._rho[key] = calibrated_rho(self._rounds[outcomes], BLOCKS, ms, values=self._values[outcomes])
        return Paper(table, self.clock, rho={load: self._rho[key]}, prefix=self._prefix, overlap=False)


def _table(rounds: Rounds, bins: int) -> ValueTable:
    return fit(rounds, Conditions("study", "study", "", {}, {}), bins=bins)


def _without_outcomes(rounds: Rounds) -> Rounds:
    """As if every round had followed the same block with the same outcome: only s tells them apart."""
    return replace(rounds, previous=np.full_like(rounds.previous, 16), full=np.zeros_like(rounds.full))


def shares(blocks: Mapping[int, int], sizes: Sequence[int] = BLOCKS) -> dict[str, float]:
    """Of drafts begun, in per cent, by the smallest of these sizes that holds them (the paper's Table 4)."""
    total = sum(blocks.values())
    found = dict.fromkeys(map(str, sizes), 0.0)
    for block, count in blocks.items():
        size = next((size for size in sizes if block <= size), sizes[-1])
        found[str(size)] += 100 * count / total
    return {size: round(share, 2) for size, share in found.items()}
