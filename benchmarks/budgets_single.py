"""One request: `price` against the paper's overlap at B = 16, and what each further branch adds (Table 5).

Published shapes have random weights and a replayed acceptance (see `recguide.bench.acceptance`); the demo
model drafts for real. Every way decodes the same texts, one text after another, so that all ways see the same
minutes. Costs of forwards are measured first, values calibrated on other texts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from recguide import LLM
from recguide.bench.acceptance.process import LABEL, fitted
from recguide.bench.acceptance.traffic import ReplayTraffic
from recguide.bench.decoding import Decoding, Sum, decode, spread
from recguide.bench.forwards import measure
from recguide.bench.guided.demo import Prompts, rounds_of
from recguide.bench.guided.figures import bars
from recguide.bench.guided.overlap import Overlap
from recguide.bench.guided.served import whole_pages
from recguide.bench.guided.study import Study
from recguide.bench.results import Target, write_result
from recguide.bench.tables import text_table
from recguide.bench.targets import short_table
from recguide.bench.workload import random_prompts, replay_engine
from recguide.core import SamplingParams
from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.guidance.explore import explore
from recguide.guidance.policy import Policy
from recguide.guidance.records import Rounds
from recguide.models.loading import load
from recguide.training.prompts import read_prompts

RESULTS = Path(__file__).parent / "results"
GSM8K = Path(__file__).parents[2] / "shared" / "data" / "prompts" / "gsm8k_test.jsonl.gz"
DEMO = "smollm2-135m"
PROMPT = 744
MODEL_LEN = 8192
"""Enough for the longest prefix that forwards are timed with."""
PAPER = "paper: and a continuation"
TABLE_5 = {
    "nld-8b": {"linear": 595, "first correction": 799, "second correction": 811, PAPER: 903},
    "nld-14b": {"linear": 470, "first correction": 605, "second correction": 612, PAPER: 702},
}
"""Tokens a second at C = 1, B = 16, on a B200 in SGLang; beside ours, not a target."""
ASKED = {"nld-8b": 1.08, DEMO: 1.15}
"""Price over the paper's overlap at B = 16."""
AR_EVERY = 4
COLUMNS = {
    "way": "way",
    "texts": "texts",
    "tokens_per_s": "tok/s",
    "over_paper": "x paper",
    "acceptance": "A",
    "reuse": "reuse",
    "query_tokens": "N",
    "ms_per_forward": "ms/forward",
    "published": "paper's",
}


@dataclass(frozen=True, slots=True)
class Subject:
    """What decodes what; `rounds` are those of calibration."""

    engine: Engine
    study: Study
    prompts: Sequence[Sequence[int]]
    acceptance: str
    whole: bool
    device: torch.device
    figures: Mapping[str, Any]


def ways(study: Study) -> dict[str, Policy | None]:
    """Table 5's ladder, further branches, larger blocks, ours; None is plain decoding."""
    return {
        "ar": None,
        "linear": Overlap(16, 0, continuation=False),
        "first correction": Overlap(16, 1, continuation=False),
        "second correction": Overlap(16, 2, continuation=False),
        PAPER: Overlap(16, 2, continuation=True),
        "third correction": Overlap(16, 3, continuation=True, always=True),
        "fourth correction": Overlap(16, 4, continuation=True, always=True),
        "paper's branches, B = 32": Overlap(32, 2, continuation=True),
        "four corrections, B = 32": Overlap(32, 4, continuation=True, always=True),
        "price": study.price(),
    }


def side_by_side(
    subject: Subject, policies: Mapping[str, Policy | None], tokens: int, seconds: float
) -> dict[str, Sum]:
    """Text after text until the time is used, each by every way; plain decoding takes every AR_EVERY-th."""
    sums = {name: Sum() for name in policies}
    for warm in (True, False):
        began = time.monotonic()
        for number in count():
            prompt = subject.prompts[number % len(subject.prompts)]
            for name, policy in policies.items():
                if policy is None and not warm and number % AR_EVERY:
                    continue
                found = _decode(subject, policy, prompt, number, min(tokens, 48) if warm else tokens)
                if not warm:
                    sums[name].add(found)
            if (
                warm
                or time.monotonic() - began > seconds
                or (not subject.whole and number + 1 == len(subject.prompts))
            ):
                break
    return sums


def _decode(
    subject: Subject, policy: Policy | None, prompt: Sequence[int], seed: int, tokens: int
) -> Decoding:
    if policy is not None:
        subject.engine.plan_by(policy)
    params = SamplingParams(
        seed=seed, max_tokens=tokens, ignore_eos=subject.whole, method="ar" if policy is None else None
    )
    return decode(subject.engine, [prompt], [params])


def rows_of(model: str, sums: Mapping[str, Sum]) -> list[dict[str, Any]]:
    speed = {name: one.tokens_per_s for name, one in sums.items()}
    published = TABLE_5.get(model, {})
    return [
        {
            "way": name,
            "texts": len(one.rates),
            "tokens": one.tokens,
            "tokens_per_s": speed[name],
            "tokens_per_s_spread": spread(one.rates) if one.rates else {},
            "over_paper": speed[name] / speed[PAPER] if speed[PAPER] else 0.0,
            "over_linear": speed[name] / speed["linear"] if speed["linear"] else 0.0,
            "acceptance": one.stats.mean_acceptance,
            "reuse": one.stats.reuse,
            "query_tokens": one.stats.query_tokens / max(1, one.stats.forwards),
            "ms_per_forward": one.wall_ms / max(1, one.steps),
            "published": published.get(name),
            "published_over_linear": published[name] / published["linear"] if name in published else None,
        }
        for name, one in sums.items()
    ]


def targets_of(model: str, rows: Sequence[Mapping[str, Any]], acceptance: str) -> list[Target]:
    price = next(row["over_paper"] for row in rows if row["way"] == "price")
    if model not in ASKED:
        return []
    name = f"{model}, C = 1, {acceptance}: price / paper's overlap at B = 16"
    return [Target.at_least(name, round(price, 4), ASKED[model])]


# --- the run ------------------------------------------------------------------------------------------------


def published_subject(options: argparse.Namespace) -> Subject:
    model = load(options.model, load_format="dummy")
    replay = fitted(options.model)
    config = EngineConfig(
        max_running=1, max_model_len=min(model.max_positions, MODEL_LEN), kv_cache_tokens=65_536
    )
    engine = replay_engine(model, replay.process, config)
    traffic = ReplayTraffic(replay.process, seats=1, length=options.tokens, seed=7)
    rounds = explore(traffic, 12 if options.quick else 150, name=replay.process.name)
    prompts = random_prompts(8, whole_pages(PROMPT, engine.runner.pool.page_size), model.vocabulary.size)
    study = _study(engine, model, rounds, options)
    return Subject(engine, study, prompts, LABEL, True, model.kv_shape.device, replay.as_object())


def demo_subject(options: argparse.Namespace) -> Subject:
    llm = LLM(options.model, max_running=16, kv_cache_tokens=65_536)
    texts = [prompt.text for prompt in read_prompts(options.prompts)]
    prompts = Prompts.of(llm.tokenizer, texts, options.texts, options.calibrated)
    rounds = rounds_of(llm, prompts.calibrated, options.tokens)
    study = _study(llm.engine, llm.model, rounds, options)
    return Subject(llm.engine, study, prompts.decoded, "real", False, llm.model.kv_shape.device, {})


def _study(engine: Engine, model: Any, rounds: Any, options: argparse.Namespace) -> Study:  # noqa: ANN401
    cost = measure(engine, model, 1024).table
    return Study(Rounds.of(rounds), cost, bins=2 if options.quick else 12)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="nld-8b", help="published shape, or smollm2-135m")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds of decoding, start-up left out")
    parser.add_argument("--tokens", type=int, help="new tokens of a text (512; 192 for the demo model)")
    parser.add_argument("--texts", type=int, help="of the demo model, at most (200)")
    parser.add_argument("--calibrated", type=int, help="prompts that the demo model is calibrated on (96)")
    parser.add_argument("--prompts", type=Path, default=GSM8K, help="prompts for the demo model")
    parser.add_argument("--quick", action="store_true", help="small and short, on any device")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--figures", type=Path, help="folder of the picture", default=RESULTS)
    options = parser.parse_args(arguments)
    options.tokens = options.tokens or (48 if options.quick else 192 if options.model == DEMO else 512)
    options.texts = options.texts or (2 if options.quick else 200)
    options.calibrated = options.calibrated or (6 if options.quick else 96)
    options.output = options.output or RESULTS / f"budgets_single-{options.model}.json"
    return options


def main() -> None:
    options = parse()
    subject_of: Callable[[argparse.Namespace], Subject] = (
        demo_subject if options.model == DEMO else published_subject
    )
    subject = subject_of(options)
    sums = side_by_side(subject, ways(subject.study), options.tokens, options.budget)
    rows = rows_of(options.model, sums)
    targets = targets_of(options.model, rows, subject.acceptance)
    settings = {
        "model": options.model,
        "acceptance": subject.acceptance,
        "replay": subject.figures,
        "tokens": options.tokens,
        "seconds": options.budget,
        "rounds_of_calibration": subject.study.table.rounds,
    }
    write_result(options.output, settings=settings, rows=rows, targets=targets, device=subject.device)
    print(text_table(rows, COLUMNS), "\n")
    print(short_table(targets))
    values = {row["way"]: row["tokens_per_s"] for row in rows}
    title = f"{options.model}, one request, {subject.acceptance} acceptance".replace(
        "acceptance acceptance", "acceptance"
    )
    figure = options.figures / f"{options.output.stem}.svg"
    bars(values, "tokens a second", title, figure, {"the paper's overlap": values[PAPER]})


if __name__ == "__main__":
    main()
