"""Makes the value table that is assumed without one: what the published statistics of NLD-8B say of drafts.

The acceptance process fitted to them (fit_acceptance.py) is explored as calibration explores a model: every
block from the same states, under histories of every kind. Writes src/recguide/guidance/prior.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from recguide.bench.acceptance.process import LABEL, THIRD_HIT, fitted
from recguide.bench.acceptance.traffic import ReplayTraffic
from recguide.guidance import value
from recguide.guidance.conditions import Conditions
from recguide.guidance.explore import explore
from recguide.guidance.fitting import fit
from recguide.guidance.records import Rounds

PLACE = Path(value.__file__).with_name("prior.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--process", default="nld-8b")
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--bins", type=int, default=12)
    parser.add_argument("--output", type=Path, default=PLACE)
    args = parser.parse_args()
    traffic = ReplayTraffic(fitted(args.process).process, seats=1, length=args.length, seed=0)
    rounds = Rounds.of(explore(traffic, args.texts, name=args.process))
    settings = {"acceptance": LABEL, "third_hit": THIRD_HIT, "texts": args.texts, "length": args.length}
    conditions = Conditions(args.process, args.process, "", {}, settings)
    table = fit(rounds, conditions, bins=args.bins)
    table.save(args.output)
    print(
        f"{len(rounds)} rounds; V of {table.blocks} without history: {table.values()[len(table.edges) + 1]}"
    )


if __name__ == "__main__":
    main()
