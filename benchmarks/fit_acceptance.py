"""Fits the acceptance processes nld-8b and nld-14b to what is published of those models decoding on policy.

The law of rounds is computed exactly (recguide.bench.acceptance.law), so what is left over are the process's
own residuals. They are written beside the parameters and printed with every figure that the process makes.

Sources: the paper, "Reciprocal Guidance": Tables 1-3 and 5; linyewei526/Nemotron-Labs-Diffusion: acceptance
by block size (8B), native points (14B), top-1 probabilities. Greedy decoding.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import rankdata

from recguide.bench.acceptance.doubt import mean_p1
from recguide.bench.acceptance.law import RoundLaw, round_law
from recguide.bench.acceptance.process import ENTROPY_LINKS, FOLDER, THIRD_HIT, AcceptanceReplay, Fitted
from recguide.bench.acceptance.sample import sample_rounds
from recguide.core import Vocabulary


@dataclass(frozen=True)
class Figure:
    """A published figure, how far off a fit may be before it hurts, and where it stands."""

    value: float
    tolerance: float
    source: str


def transitions(tolerance: float, source: str) -> dict[str, Figure]:
    """Table 1 of the paper: 8B, B = 32; intervals of A short [1, 8], medium (8, 16], long (16, 32]."""
    rows = {
        "short": {"short": 0.7030, "long": 0.1160},
        "medium": {"short": 0.5839, "long": 0.1919},
        "long": {"short": 0.2083, "long": 0.6666},
    }
    return {
        f"{now} to {then}": Figure(value, tolerance, source)
        for now, row in rows.items()
        for then, value in row.items()
    }


P1 = {
    "mean p1, accepted": Figure(0.954, 0.005, "8B B16 PyTorch, nine sets"),
    "mean p1, first rejected": Figure(0.569, 0.01, "8B B16 PyTorch, nine sets"),
}
PUBLISHED: Mapping[str, Mapping[str, Figure]] = {
    "nld-8b": {
        "A at B = 8": Figure(6.6, 0.1, "8B PyTorch, eight sets, prefill taken out"),
        "A at B = 16": Figure(9.93, 0.1, "paper Table 2, LinearSS"),
        "A at B = 32": Figure(12.5, 0.15, "8B PyTorch, eight sets, prefill taken out"),
        "full blocks at B = 16": Figure(0.406, 0.01, "8B, six sets, canonical B16"),
        **transitions(0.03, "paper Table 1"),
        "correction coverage": Figure(0.3611, 0.005, "paper Table 3"),
        "correction reuse": Figure(0.2204, 0.005, "paper Table 3"),
        "second correction's reuse": Figure(
            0.0267, 0.03, "paper Table 5, 799 to 811, if forwards cost alike; else more"
        ),
        "continuation coverage": Figure(0.3904, 0.005, "paper Table 3"),
        "continuation reuse": Figure(0.3824, 0.005, "paper Table 3"),
        "A of TiDAR at B = 16": Figure(6.69, 0.05, "paper Table 2, TiDAR, one forward a round"),
        **P1,
    },
    "nld-14b": {
        "A at B = 8": Figure(6.67, 0.1, "14B SGLang, B8, C = 64 and 128"),
        "A at B = 16": Figure(10.10, 0.1, "paper Table 2, LinearSS"),
        "A at B = 32": Figure(12.96, 0.15, "14B SGLang, B32, C = 1, 2 and 4"),
        **transitions(0.06, "paper Table 1, which is 8B's; 14B's are not published"),
        "correction coverage": Figure(0.3262, 0.005, "paper Table 3"),
        "correction reuse": Figure(0.2054, 0.005, "paper Table 3"),
        "second correction's reuse": Figure(
            0.0208, 0.03, "paper Table 5, 605 to 612, if forwards cost alike; else more"
        ),
        "continuation coverage": Figure(0.4015, 0.005, "paper Table 3"),
        "continuation reuse": Figure(0.3690, 0.005, "paper Table 3"),
        "A of TiDAR at B = 16": Figure(7.47, 0.05, "paper Table 2, TiDAR, one forward a round"),
        **{
            name: Figure(p.value, p.tolerance, f"{p.source}; 14B's are not published")
            for name, p in P1.items()
        },
    },
}

START: Mapping[str, tuple[float, float, float]] = {
    # parameter: where the search begins, and its bounds
    "dwell_easy": (120.0, 20.0, 600.0),
    "dwell_hard": (60.0, 10.0, 300.0),
    "hazard_easy": (0.004, 1e-4, 0.05),
    "hazard_hard": (0.12, 0.02, 0.5),
    "hazard_slope": (0.1, 0.01, 0.4),
    "alarm": (0.05, 0.001, 0.3),
    "recall": (0.65, 0.3, 0.95),
    "second_hit": (0.61, 0.3, 0.9),
    "continuation_hazard": (1.3, 0.1, 20.0),
    "blind_hazard": (2.0, 1.0, 10.0),
    "sure_right": (13.0, 0.5, 60.0),
    "sure_wrong": (0.4, 0.02, 5.0),
}
HABIT = 0.1
"""How strongly a parameter that no figure decides keeps to where it began (in units of its range)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=FOLDER)
    folder = parser.parse_args().output
    for name, published in PUBLISHED.items():
        result = fit(name, published)
        result.save(folder)
        show(result)


def fit(name: str, published: Mapping[str, Figure]) -> Fitted:
    """Least squares over the logarithms of the parameters, residuals in units of tolerance."""
    start, low, high = (np.log([row[i] for row in START.values()]) for i in range(3))

    def residuals(logs: Sequence[float]) -> list[float]:
        process = _process(name, logs)
        found = figures_of(process)
        misses = [(found[key] - figure.value) / figure.tolerance for key, figure in published.items()]
        return [*misses, *(HABIT * (np.asarray(logs) - start) / (high - low))]

    best = least_squares(residuals, start, bounds=(low, high), x_scale=0.1)
    process = _process(name, best.x, digits=5)
    found = figures_of(process)
    return Fitted(
        process,
        {
            key: {
                "published": figure.value,
                "process": round(found[key], 4),
                "residual": round(found[key] - figure.value, 4) + 0.0,  # no minus zero
            }
            for key, figure in published.items()
        },
        {**{key: figure.source for key, figure in published.items()}, "third_hit": THIRD_HIT},
        {name: foretold(process.linked(name)) for name in ENTROPY_LINKS},
    )


def foretold(process: AcceptanceReplay) -> dict[str, float]:
    """How well the verifier's entropy of the two rounds before tells that a draft is worth being long."""
    rounds = sample_rounds(process, Vocabulary(1000, eos=()), 32, texts=400, rounds=24)
    signal = -(rounds.entropy[:, 1:-1] + rounds.entropy[:, :-2]).flatten().numpy()
    later = rounds.acceptance[:, 2:].flatten().numpy()
    return {
        "entropy_link": process.entropy_link,
        **{f"A > {length}": round(_area(signal, later > length), 3) for length in (8, 16)},
    }


def _area(signal: NDArray[np.float32], positive: NDArray[np.bool_]) -> float:
    """Area under the receiver operating characteristic: P(signal of a positive > that of a negative)."""
    ranks = rankdata(signal)
    many = positive.sum()
    return float((ranks[positive].sum() - many * (many + 1) / 2) / (many * (len(signal) - many)))


def figures_of(process: AcceptanceReplay) -> dict[str, float]:
    """What the process makes of everything that may be published."""
    laws = {block: round_law(process, block) for block in (8, 16, 32)}
    sixteen = laws[16]
    return {
        **{f"A at B = {block}": law.mean_acceptance for block, law in laws.items()},
        "full blocks at B = 16": sixteen.full,
        **_moves(laws[32]),
        "correction coverage": sixteen.correction_coverage,
        "correction reuse": process.second_hit * sixteen.correction_coverage,
        "second correction's reuse": process.second_hit * sixteen.second,
        "continuation coverage": sixteen.continued,
        "continuation reuse": sixteen.continued_hit,
        "A of TiDAR at B = 16": round_law(process.blind(), 16).mean_acceptance,
        "mean p1, accepted": mean_p1(process, risky=process.alarm, right=True),
        "mean p1, first rejected": mean_p1(process, risky=process.recall, right=False),
    }


def _moves(law: RoundLaw) -> dict[str, float]:
    names, table = ("short", "medium", "long"), law.transitions()
    return {
        f"{now} to {then}": float(table[i, j]) for i, now in enumerate(names) for j, then in enumerate(names)
    }


def _process(name: str, logs: Sequence[float], digits: int = 17) -> AcceptanceReplay:
    values = {key: float(f"{value:.{digits}g}") for key, value in zip(START, np.exp(logs), strict=True)}
    return AcceptanceReplay(name=name, **values)


def show(result: Fitted) -> None:
    print(f"\n{result.process}")
    for name, row in result.figures.items():
        print(f"  {name:<28}{row['published']:>9.4f}{row['process']:>9.4f}{row['residual']:>+9.4f}")
    print("  ", dict(result.entropy))


if __name__ == "__main__":
    main()
