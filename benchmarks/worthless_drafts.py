"""Drafts that are worth nothing: `price` against plain decoding with a random draft adapter.

No table knows it: `price` begins with the published statistics of good drafts and has 50 rounds to learn.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from recguide import LLM
from recguide.bench.forwards import measure
from recguide.bench.guided.figures import bars
from recguide.bench.guided.served import Served, Text, cycle, host_of, serve
from recguide.bench.results import Target
from recguide.bench.targets import concluded
from recguide.bench.workload import random_prompts
from recguide.core import ParameterError, SamplingParams
from recguide.guidance.clock import Clock
from recguide.guidance.cost import CostTable
from recguide.guidance.fixed import Fixed
from recguide.guidance.host import Kind
from recguide.guidance.price import Price
from recguide.guidance.value import prior
from recguide.models.folding import fold
from recguide.models.loading import Model, load

RESULTS = Path(__file__).parent / "results"
LOADS = (1, 64)
ROUNDS = 50
"""Rounds before anything is counted."""
KEEPS = 0.97
SPREAD = 0.02
"""Deviation of the adapter's random factors."""
COLUMNS = {
    "load": "C",
    "way": "way",
    "tokens_per_s": "tok/s",
    "query_tokens": "N",
    "steps": "steps",
    "drafts": "drafts begun",
    "acceptance": "A",
    "host_ms": "host, ms/step",
    "host_branches_ms": "with branches",
    "host_plain_ms": "plain steps",
}


def randomise(model: Model, seed: int = 0) -> None:
    """Makes the adapter say anything; ParameterError for a model without one."""
    if model.adapter is None:
        raise ParameterError("model", "has no draft adapter to spoil")
    generator = torch.Generator().manual_seed(seed)
    for weight in model.adapter.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data.copy_(SPREAD * noise)
    if any(delta.folded is not None for deltas in model.adapter.deltas for delta in deltas.values()):
        fold(model.adapter, model.decoder)


def rows_of(llm: LLM, texts: Sequence[Text], loads: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    cost = measure(llm.engine, llm.model, 1024).table
    clock = Clock(cost)
    plain = [replace(text, params=replace(text.params, method="ar")) for text in texts]
    each = seconds / (2 * len(loads))
    rows: list[dict[str, Any]] = []
    for seats in loads:
        ar = serve(llm.engine, Fixed(1), "ragged", cycle(plain), seats, seconds=each, skip=ROUNDS)
        price = Price(prior(), clock)
        ours = serve(llm.engine, price, "ragged", cycle(texts), seats, seconds=each, skip=ROUNDS)
        rows += [_row("ar", ar, cost), _row("price", ours, cost)]
    return rows


def _row(way: str, served: Served, cost: CostTable) -> dict[str, Any]:
    host = host_of(served, cost)
    return {
        "load": served.load,
        "way": way,
        "tokens_per_s": served.tokens_per_s,
        "query_tokens": served.mean_query_tokens,
        "steps": len(served.step_ms),
        "skipped": served.skipped,
        "drafts": served.drafts.total(),
        "acceptance": served.stats.mean_acceptance,
        "policy_ms": served.policy_ms,
        "host_ms": host.ms(served.load, Kind.DRAFTS),
        "host_branches_ms": host.ms(served.load, Kind.BRANCHES),
        "host_plain_ms": host.ms(served.load, Kind.PLAIN),
        "host_ahead_ms": host.ms(served.load, Kind.AHEAD),
    }


def targets_of(model: str, rows: Sequence[dict[str, Any]]) -> list[Target]:
    speed = {(row["load"], row["way"]): row["tokens_per_s"] for row in rows}
    return [
        Target.at_least(
            f"{model}, random adapter, C = {seats}: price / AR",
            round(speed[seats, "price"] / speed[seats, "ar"], 4),
            KEEPS,
        )
        for seats in sorted({row["load"] for row in rows})
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--budget", type=float, default=80.0, help="seconds of decoding, start-up left out")
    parser.add_argument("--loads", type=int, nargs="+", default=LOADS)
    parser.add_argument("--tokens", type=int, help="new tokens of a text (256)")
    parser.add_argument("--quick", action="store_true", help="short texts, on any device")
    parser.add_argument("--output", type=Path, default=RESULTS / "worthless_drafts.json")
    parser.add_argument("--figures", type=Path, help="folder of the picture", default=RESULTS)
    options = parser.parse_args()
    tokens = options.tokens or (24 if options.quick else 256)
    model = load(options.model)
    randomise(model)
    most = max(options.loads)
    llm = LLM(model, max_running=most, kv_cache_tokens=2 * most * 512 + 65_536)
    page = llm.engine.runner.pool.page_size
    prompts = random_prompts(most, page + 1 if options.quick else 2 * page + 1, model.vocabulary.size)
    texts = [Text(ids, SamplingParams(max_tokens=tokens, ignore_eos=True)) for ids in prompts]
    rows = rows_of(llm, texts, options.loads, options.budget)
    targets = targets_of(options.model, rows)
    settings = {"model": options.model, "adapter": "random", "tokens": tokens, "learning_rounds": ROUNDS}
    device = model.kv_shape.device
    print(concluded(options.output, COLUMNS, settings=settings, rows=rows, targets=targets, device=device))
    shown = {target.name.split(", ")[-1]: target.value for target in targets}
    file = options.figures / f"{options.output.stem}.svg"
    bars(shown, "price ÷ AR", f"{options.model} with a random draft adapter", file, {"asked": KEEPS})


if __name__ == "__main__":
    main()
