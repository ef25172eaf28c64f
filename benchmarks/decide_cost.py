"""What a step's choice of budgets costs the host: `price` at up to 256 requests, and making the policy.

Requests stand where traffic puts them: half hold a draft, histories and caps differ. Medians over many views,
each the best of a few runs: what the choice takes, not what else the machine does.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from recguide.bench.results import Target
from recguide.bench.targets import concluded
from recguide.guidance.clock import Clock
from recguide.guidance.ideal import ideal_cost
from recguide.guidance.price import Price
from recguide.guidance.value import prior
from recguide.guidance.view import View

RESULTS = Path(__file__).parent / "results"
LOADS = (1, 16, 64, 128, 256)
MOST_MS, MOST_START_MS = 0.5, 300.0
COLUMNS = {"load": "C", "decide_ms": "decide, ms", "prepare_ms": "while a forward runs, ms"}


def traffic(requests: int, seed: int) -> View:
    """A step of so many requests."""
    random = np.random.default_rng(seed)
    draft = np.where(random.random(requests) < 0.5, 0, random.choice([4, 8, 16, 32], requests))
    margins = 1 - random.exponential(0.12, (requests, max(1, int(draft.max())))).clip(0, 1)
    previous = random.choice([0, 1, 4, 8, 16, 32, 7, 12], requests)
    return View(
        draft=draft,
        margins=margins,
        signals=-random.exponential(0.4, (requests, 3)),
        previous=previous,
        full=(random.random(requests) < 0.3) & (previous > 1),
        idle=np.zeros(requests, np.int64),
        prefix=random.integers(200, 2000, requests),
        remaining=random.integers(1, 500, requests),
    )


def decide_row(policy: Price, load: int, views: int, runs: int) -> dict[str, Any]:
    times: list[tuple[float, float]] = []
    for seed in range(views):
        before, seen = traffic(load, seed), traffic(load, views + seed)
        runs_ms = [_timed(policy, before, seen) for _ in range(runs)]
        times.append((min(ms for ms, _ in runs_ms), min(ms for _, ms in runs_ms)))
    prepare_ms, decide_ms = (median(column) for column in zip(*times, strict=True))
    return {"load": load, "decide_ms": decide_ms, "prepare_ms": prepare_ms}


def _timed(policy: Price, before: View, seen: View) -> tuple[float, float]:
    """Of what is done while a forward runs, and before the next is launched."""
    began = time.perf_counter()
    policy.prepare(before)
    prepared = time.perf_counter()
    policy.decide(seen)
    return 1e3 * (prepared - began), 1e3 * (time.perf_counter() - prepared)


def start_ms() -> float:
    """From tables to a policy that has decided once."""
    table, clock, seen = prior(), Clock(ideal_cost("ideal-8b")), traffic(1, 0)
    began = time.perf_counter()
    Price(table, clock).decide(seen)
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few views, loads up to 16")
    parser.add_argument("--output", type=Path, default=RESULTS / "decide_cost.json")
    options = parser.parse_args()
    views, runs = (2, 2) if options.quick else (60, 12)
    policy = Price(prior(), Clock(ideal_cost("ideal-8b")))
    loads = [load for load in LOADS if load <= 16] if options.quick else LOADS
    rows = [decide_row(policy, load, views, runs) for load in loads]
    begin = min(start_ms() for _ in range(3))
    targets = [Target.at_most("making a policy, ms", round(begin, 1), MOST_START_MS)]
    targets += [
        Target.at_most(f"{row['load']} requests: decide, ms", round(row["decide_ms"], 3), MOST_MS)
        for row in rows
        if row["load"] == 256
    ]
    settings = {"table": "prior", "cost": "ideal-8b", "views": views, "best_of": runs}
    print(concluded(options.output, COLUMNS, settings=settings, rows=rows, targets=targets))


if __name__ == "__main__":
    main()
