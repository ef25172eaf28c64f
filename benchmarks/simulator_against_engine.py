"""Does the simulator say what the engine does? The demo model's throughput by load, simulated and served.

The simulator goes by the rounds of a calibration on the very prompts that are served, the measured costs of
forwards, and the host's time: what steps of that policy at that load took beyond their forwards, in the mean
over those of a kind, and for each text that began. Everything else (acceptance, branches, plans, histories,
which steps are plain) it works out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recguide import LLM
from recguide.bench.forwards import measure
from recguide.bench.guided.demo import Prompts, rounds_of
from recguide.bench.guided.figures import bars
from recguide.bench.guided.served import Served, Text, cycle, host_of, serve
from recguide.bench.guided.study import Study
from recguide.bench.results import Target
from recguide.bench.targets import concluded
from recguide.core import SamplingParams
from recguide.guidance.batching import ragged
from recguide.guidance.clock import Clock
from recguide.guidance.cost import CostTable
from recguide.guidance.fixed import Fixed
from recguide.guidance.host import Host, Kind
from recguide.guidance.load import Load
from recguide.guidance.policy import Policy
from recguide.guidance.records import RoundRecord, Rounds
from recguide.guidance.simulation import simulate
from recguide.guidance.trace_traffic import TraceTraffic
from recguide.training.prompts import read_prompts

RESULTS = Path(__file__).parent / "results"
GSM8K = Path(__file__).parents[2] / "shared" / "data" / "prompts" / "gsm8k_test.jsonl.gz"
LOADS = (1, 4, 16, 64)
WITHIN = 0.10
COLUMNS = {
    "load": "C",
    "policy": "policy",
    "engine": "engine, tok/s",
    "simulator": "simulator",
    "ratio": "ratio",
    "host_ms": "host, ms/step",
    "host_branches_ms": "with branches",
    "host_plain_ms": "plain steps",
    "host_ahead_ms": "planned ahead",
    "host_newcomer_ms": "a newcomer",
    "steps": "steps",
}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is served and what the simulator knows of it."""

    llm: LLM
    texts: Sequence[Text]
    records: Sequence[RoundRecord]
    cost: CostTable
    study: Study
    prefix: int


def rows_of(subject: Subject, loads: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    policies: dict[str, Callable[[], Policy]] = {
        "fixed-16": lambda: Fixed(16),
        "price": subject.study.price,
    }
    each = seconds / (len(loads) * len(policies))
    rows: list[dict[str, Any]] = []
    for seats in loads:
        for name, policy in policies.items():
            served = _served(subject, policy(), seats, each)
            host = host_of(served, subject.cost)
            said = _simulated(subject, policy(), seats, host)
            rows.append(
                {
                    "load": seats,
                    "policy": name,
                    "engine": served.tokens_per_s,
                    "simulator": said,
                    "ratio": said / served.tokens_per_s,
                    "host_ms": host.ms(seats, Kind.DRAFTS),
                    "host_branches_ms": host.ms(seats, Kind.BRANCHES),
                    "host_plain_ms": host.ms(seats, Kind.PLAIN),
                    "host_ahead_ms": host.ms(seats, Kind.AHEAD),
                    "host_newcomer_ms": host.newcomer,
                    "policy_ms": served.policy_ms,
                    "steps": len(served.step_ms),
                    "query_tokens": served.mean_query_tokens,
                }
            )
    return rows


def _served(subject: Subject, policy: Policy, seats: int, seconds: float) -> Served:
    return serve(subject.llm.engine, policy, "ragged", cycle(subject.texts), seats, seconds=seconds)


def _simulated(subject: Subject, policy: Policy, seats: int, host: Host) -> float:
    texts = max(len(subject.texts), 3 * seats)
    much = Load(seats=seats, texts=texts, prefix=subject.prefix)
    clock = Clock(subject.cost)
    return simulate(TraceTraffic(subject.records), policy, clock, much, ragged, host).throughput


def subject_of(options: argparse.Namespace) -> Subject:
    llm = LLM(
        options.model,
        max_running=max(options.loads),
        max_batch_tokens=max(1024, 16 * max(options.loads)),
        kv_cache_tokens=max(options.loads) * 1024 + 65_536,
    )
    found = [prompt.text for prompt in read_prompts(options.prompts)]
    prompts = Prompts.of(llm.tokenizer, found, options.texts, 0).decoded
    records = rounds_of(llm, prompts, options.tokens)
    cost = measure(llm.engine, llm.model, 1024).table
    texts = [Text(ids, SamplingParams(max_tokens=options.tokens)) for ids in prompts]
    study = Study(Rounds.of(records), cost, bins=2 if options.quick else 12, prefix=options.tokens)
    prefix = round(sum(map(len, prompts)) / len(prompts))
    return Subject(llm, texts, records, cost, study, prefix)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of decoding, start-up left out")
    parser.add_argument("--loads", type=int, nargs="+", default=LOADS)
    parser.add_argument("--texts", type=int, help="prompts (128)")
    parser.add_argument("--tokens", type=int, help="new tokens of a text at most (192)")
    parser.add_argument("--prompts", type=Path, default=GSM8K)
    parser.add_argument("--quick", action="store_true", help="few and short, on any device")
    parser.add_argument("--output", type=Path, default=RESULTS / "simulator_against_engine.json")
    parser.add_argument("--figures", type=Path, help="folder of the picture", default=RESULTS)
    options = parser.parse_args(arguments)
    options.texts = options.texts or (6 if options.quick else 128)
    options.tokens = options.tokens or (40 if options.quick else 192)
    return options


def main() -> None:
    options = parse()
    subject = subject_of(options)
    rows = rows_of(subject, options.loads, options.budget)
    targets = [
        Target.at_most(
            f"C = {row['load']}, {row['policy']}: |simulator / engine - 1|",
            round(abs(row["ratio"] - 1), 4),
            WITHIN,
        )
        for row in rows
    ]
    settings = {
        "model": options.model,
        "texts": options.texts,
        "tokens": options.tokens,
        "seconds": options.budget,
        "cost": subject.cost.as_object(),
    }
    device = subject.llm.model.kv_shape.device
    print(concluded(options.output, COLUMNS, settings=settings, rows=rows, targets=targets, device=device))
    ratios = {f"C = {row['load']}, {row['policy']}": row["ratio"] for row in rows}
    figure = options.figures / f"{options.output.stem}.svg"
    bars(ratios, "simulator ÷ engine", f"{options.model}: throughput", figure, {"-10 %": 0.9, "+10 %": 1.1})


if __name__ == "__main__":
    main()
