"""Policies in simulation, on an engine without waste: aggregate tokens/s by load, beside earlier figures.

Acceptance is the replayed process of NLD-8B or 14B; the clock is the ideal engine (recguide.guidance.ideal),
so differences are those of policies alone. The value table is calibrated on other texts of the process.
Earlier figures: an independent simulation of the 8B, its process fitted to the same publications.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from recguide.bench.acceptance.process import LABEL, AcceptanceReplay, fitted
from recguide.bench.acceptance.traffic import ReplayTraffic
from recguide.bench.results import Target, write_result
from recguide.guidance.batching import Batching, bucketed, padded, ragged
from recguide.guidance.clock import Clock
from recguide.guidance.conditions import Conditions
from recguide.guidance.explore import explore
from recguide.guidance.fitting import fit
from recguide.guidance.fixed import Fixed
from recguide.guidance.ideal import ideal_cost
from recguide.guidance.load import Load
from recguide.guidance.oracle import Oracle
from recguide.guidance.paper import BLOCKS, Paper
from recguide.guidance.policy import Policy
from recguide.guidance.price import Price
from recguide.guidance.records import Rounds
from recguide.guidance.rho import calibrated_rho, round_ms
from recguide.guidance.simulation import simulate
from recguide.guidance.tally import Tally
from recguide.guidance.value import ValueTable, prior

LOADS = (2, 8, 16, 32, 64, 128)
PREFIX = 750
"""With texts of 512 tokens a mean prefix of some 1,000."""
TEXTS, WAVES = 256, 6
"""At least, and for each seat. With a quarter of that some policies' last texts, which run among empty seats,
moved ratios by 5 % either way."""
EARLIER = {
    "ar": (416, 1591, 2991, 5370, 8942, 13298),
    "recipe": (2483, 6285, 9288, 10805, 13757, 14105),
    "best fixed": (2483, 6285, 9288, 11616, 13757, 14105),
    "paper, padded": (2483, 5248, 8078, 11610, 13757, 14105),
    "paper, bucketed": (2483, 5186, 8078, 11344, 13757, 13795),
    "paper, ragged": (2483, 6472, 10245, 12523, 13709, 14087),
    "oracle of 8, 16, 32": (2563, 7229, 12257, 15280, 16884, 16591),
}


class Bench:
    def __init__(self, name: str, length: int, seed: int) -> None:
        self.process = fitted(f"nld-{name}").process
        self._clock, self._length, self._seed = Clock(ideal_cost(f"ideal-{name}")), length, seed
        traffic = ReplayTraffic(self.process, seats=1, length=length, seed=seed + 1)
        self._rounds = Rounds.of(explore(traffic, 150, name=name))
        self._table = fit(self._rounds, Conditions(name, name, "", {}, {}), bins=12)

    def run(
        self, policy: Policy, load: int, batching: Batching = ragged, of: AcceptanceReplay | None = None
    ) -> Tally:
        traffic = ReplayTraffic(of or self.process, seats=load, length=self._length, seed=self._seed)
        much = Load(seats=load, texts=max(TEXTS, WAVES * load), prefix=PREFIX)
        return simulate(traffic, policy, self._clock, much, batching)

    def paper(self, load: int, *, overlap: bool = False) -> Paper:
        ms = round_ms(self._clock, load, BLOCKS, 1000)
        rho = {load: calibrated_rho(self._rounds, BLOCKS, ms, bins=12)}
        return Paper(self._table, self._clock, rho=rho, overlap=overlap)

    def price(self, table: ValueTable | None = None) -> Price:
        return Price(table or self._table, self._clock)

    def row(self, load: int) -> dict[str, Any]:
        """Tokens per second of everything at one load."""
        found = {f"fixed {block}": self.run(Fixed(block), load).throughput for block in BLOCKS}
        price = self.run(self.price(), load)
        made: dict[str, Callable[[], float]] = {
            "ar": lambda: self.run(Fixed(1), load).throughput,
            "recipe": lambda: self.run(Fixed(), load).throughput,
            "best fixed": lambda: max(found.values()),
            "paper, padded": lambda: self.run(self.paper(load), load, padded).throughput,
            "paper, bucketed": lambda: self.run(self.paper(load), load, bucketed).throughput,
            "paper, ragged": lambda: self.run(self.paper(load), load).throughput,
            "price": lambda: price.throughput,
            "price, prior": lambda: self.run(self.price(prior()), load).throughput,
            "oracle": lambda: self.run(Oracle(self._clock), load).throughput,
            "oracle of 8, 16, 32": lambda: self.run(Oracle(self._clock, BLOCKS), load).throughput,
        }
        return {
            "load": load,
            **{name: round(make(), 1) for name, make in made.items()},
            "price's drafts": dict(sorted(price.blocks.items())),
            "price's branches": dict(price.branches),
            "price's reused": dict(price.reused),
        }

    def worthless(self, load: int) -> float:
        """Price over AR where every draft fails at once, learned online from the prior."""
        nothing = replace(self.process, hazard_easy=1e3, hazard_hard=1e3)
        plain = self.run(Fixed(1), load, of=nothing).throughput
        return self.run(self.price(prior()), load, of=nothing).throughput / plain

    def single(self) -> dict[str, float]:
        """One request: tokens per second of the paper's overlap at B = 16, and of the price."""
        return {
            "paper, B = 16": self.run(Paper(self._table, self._clock, block=16), 1).throughput,
            "price": self.run(self.price(), 1).throughput,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", choices=("8b", "14b"), default="8b")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    bench = Bench(args.model, args.length, args.seed)
    rows = [bench.row(load) for load in LOADS]
    for row, *earlier in zip(rows, *EARLIER.values(), strict=True):
        if args.model == "8b":
            row["earlier"] = dict(zip(EARLIER, earlier, strict=True))
        print({name: value for name, value in row.items() if isinstance(value, int | float)})
    single = bench.single()
    targets = [
        Target.at_least(
            f"price / max(best fixed, AR, paper) at C = {row['load']}",
            row["price"] / max(row["best fixed"], row["ar"], row["paper, ragged"], row["paper, bucketed"]),
            0.98,
        )
        for row in rows
    ]
    for name in ("recipe", "paper, bucketed"):
        targets.append(
            Target.at_least(f"price / {name}, mean", fmean(row["price"] / row[name] for row in rows), 1.10)
        )
    targets.append(Target.at_least("C = 1: price / paper", single["price"] / single["paper, B = 16"], 1.08))
    targets += [Target.at_least(f"worthless, C = {n}: price / AR", bench.worthless(n), 0.97) for n in (1, 64)]
    for target in targets:
        print(f"{target.name}: {target.value:.3f} (target {target.target})")
    if args.output is not None:
        settings = {
            "acceptance": LABEL,
            "process": bench.process.name,
            "cost": f"ideal-{args.model}",
            "length": args.length,
            "prefix": PREFIX,
            "texts": {"least": TEXTS, "each seat": WAVES},
            "seed": args.seed,
        }
        write_result(args.output, settings=settings, rows=[*rows, {"load": 1, **single}], targets=targets)


if __name__ == "__main__":
    main()
