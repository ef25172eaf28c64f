"""Fills docs/performance.md from the result files and draws its pictures; --check only says whether it would.

A block of the page between `<!-- table: NAME -->` and `<!-- end -->` is replaced; everything else stays.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recguide.bench import figures
from recguide.bench.tables import markdown_table
from recguide.bench.targets import Result, read_results

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "docs" / "figures"
BLOCK = re.compile(r"(<!-- table: (?P<name>[\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NOTHING = "*Not measured yet.*"


@dataclass(frozen=True, slots=True)
class Table:
    """Which of a result file's rows a table shows, by a key that they alone have, and their columns."""

    key: str
    columns: Mapping[str, str]

    def of(self, rows: Sequence[Mapping[str, Any]]) -> str:
        return markdown_table([row for row in rows if self.key in row], self.columns)


FORWARD_COST = Table(
    "kind",
    {
        "kind": "forward",
        "requests": "requests",
        "query_tokens": "N",
        "ms": "ms",
        "over_floor": "x floor",
        "products_ms": "products alone",
        "plain_ms": "unfused torch",
        "vllm_ms": "vLLM",
    },
)
SINGLE_REQUEST = Table(
    "method",
    {
        "method": "method",
        "block": "B",
        "tpf": "TPF",
        "acceptance": "A",
        "coverage": "coverage",
        "reuse": "reuse",
        "query_tokens_per_forward": "N",
        "tokens_per_s": "tokens/s",
        "speedup": "x AR",
        "efficiency": "efficiency",
        "acceptance_is": "acceptance",
    },
)
PLAIN_DECODING = Table(
    "engine",
    {
        "engine": "engine",
        "load": "C",
        "ms_per_step": "ms a step",
        "tokens_per_s": "tokens/s",
        "efficiency": "efficiency",
        "vllm_ms": "vLLM's ms",
    },
)
EXACT_TEXTS = Table(
    "condition",
    {
        "condition": "condition",
        "method": "method",
        "texts": "texts",
        "tokens": "tokens",
        "differing_texts": "texts that differ",
        "compared_logprobs": "log-probabilities",
        "differing_logprobs": "texts whose differ",
        "preemptions": "preemptions",
    },
)
EXACT_COST = Table(
    "exact_over_default",
    {
        "method": "method",
        "load": "C",
        "exact_tokens_per_s": "exact, tokens/s",
        "default_tokens_per_s": "default, tokens/s",
        "exact_over_default": "ratio",
    },
)
ROUND_PROFILE = Table("part", {"part": "part", "ms": "ms", "share": "share", "launches": "launches"})

SHAPES = ("nld-8b", "nld-14b")

TABLES: Mapping[str, tuple[str, Table]] = {
    **{f"forward_cost-{model}": (f"forward_cost-{model}", FORWARD_COST) for model in SHAPES},
    **{
        f"{name}-{model}": (f"single_request-{model}", table)
        for name, table in (("single_request", SINGLE_REQUEST), ("plain_decoding", PLAIN_DECODING))
        for model in (*SHAPES, "smollm2-135m")
    },
    "exact_texts": ("exact_mode", EXACT_TEXTS),
    "exact_cost": ("exact_mode", EXACT_COST),
    **{f"round_profile-{model}": (f"round_profile-{model}", ROUND_PROFILE) for model in SHAPES},
}
"""Block of the page → the result file, and what is shown of its rows."""


PICTURES: Mapping[str, tuple[str, str]] = {
    "forward_cost.svg": ("forward_cost-", "Milliseconds of a forward by query tokens"),
    "round.svg": ("round_profile-", "Milliseconds of a forward by part"),
}
"""Block of the page → how its results' names begin, and what the picture shows."""


def fill(page: str, results: Sequence[Result]) -> str:
    """The page with every block's table or picture; KeyError for a block that no result makes."""
    by_name = {result.name: result for result in results}

    def body(name: str) -> str:
        if name in PICTURES:
            prefix, shown = PICTURES[name]
            return f"![{shown}](figures/{name})" if any(n.startswith(prefix) for n in by_name) else NOTHING
        source, table = TABLES[name]
        result = by_name.get(source)
        return NOTHING if result is None else f"{table.of(result.rows)}\n\n{origin(result)}"

    return BLOCK.sub(lambda match: f"{match[1]}{body(match['name'])}\n{match[3]}", page)


def origin(result: Result) -> str:
    """Where a table comes from, and how its targets stand."""
    met = sum(target.met for target in result.targets)
    targets = f"{met} of {len(result.targets)} targets met. " if result.targets else ""
    facts = result.provenance
    return (
        f"{targets}{facts['device']}, torch {facts.get('torch', '?')}, commit {facts['commit']}: "
        f"[{result.name}.json](../benchmarks/results/{result.name}.json)"
    )


def draw(results: Sequence[Result], folder: Path) -> list[Path]:
    """The pictures that there are results for."""
    forwards = {
        r.name.removeprefix("forward_cost-"): r.rows for r in results if r.name.startswith("forward_cost-")
    }
    rounds = {
        f"{r.settings['model']}, {r.settings['method']}": {
            row["part"]: row["ms"] for row in r.rows if "part" in row
        }
        for r in results
        if r.name.startswith("round_profile-")
    }
    drawn: list[Path] = []
    if forwards:
        drawn.append(folder / "forward_cost.svg")
        figures.roofline(drawn[-1], dict(sorted(forwards.items(), reverse=True)))
    if rounds:
        drawn.append(folder / "round.svg")
        figures.round_bars(drawn[-1], rounds)
    return drawn


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if it would")
    options = parser.parse_args()
    results, faults = read_results(ROOT / "benchmarks" / "results")
    for fault in faults:
        print(fault, file=sys.stderr)
    page = PAGE.read_text(encoding="utf-8")
    filled = fill(page, results)
    if options.check:
        return int(bool(faults) or filled != page)
    PAGE.write_text(filled, encoding="utf-8")
    for picture in draw(results, FIGURES):
        print(picture.relative_to(ROOT))
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
