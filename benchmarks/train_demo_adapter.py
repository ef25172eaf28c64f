"""Trains the demo model's draft adapter: continuations, training, measurement, as the shipped one was made.

    python benchmarks/adapter_prompts.py PROMPTS.jsonl.zst MIXTURE.jsonl.zst
    torchrun --nproc-per-node 2 benchmarks/train_demo_adapter.py --prompts MIXTURE.jsonl.zst --output FOLDER \
        --measure gsm8k=FILE --measure humaneval=FILE --measure mt-bench=FILE --measure ifeval=FILE

Interrupted, or stopped by --max-seconds, the same call goes on where it was. The shipped adapter had two
stages. The first came of three such calls with the peak rates 8e-3 (--steps 5158, stopped after 1,880 steps,
about 270 seconds on two H200s: the loss jumped twice), 3e-3 (--steps 5158) and 4.5e-3 (--steps 6908). The
default, 3e-3 throughout, is untried. The second went on from the first's folder:

    torchrun --nproc-per-node 2 benchmarks/train_demo_adapter.py --start-from FIRST --output SECOND ... \
        --lr 2e-3 --steps 2700 --warmup 0.03 --blocks 8:0.2,16:0.65,32:0.15 --reach 0.6 --chunk 31000 \
        --share math:1,code:0.6,chat:0.65,format:0.6
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recguide.bench.results import Target, write_result
from recguide.models.loading import resolve_device
from recguide.training.adapt import AdaptResult, Event, adapt
from recguide.training.config import (
    AdaptConfig,
    BlockConfig,
    ContinuationConfig,
    LoraConfig,
    LossConfig,
    OptimiserConfig,
    TrainConfig,
)
from recguide.training.start import start_folder

TARGETS = {"gsm8k": 4.6, "humaneval": 4.4, "mt-bench": 3.4, "ifeval": 4.2}
"""Mean acceptance to reach at B = 16, greedy."""
PLACES = ("prompts", "output", "work", "measure")
"""Settings that say where things lie, not how they are made."""


def main() -> None:
    arguments = parser().parse_args()
    config = recipe(arguments)
    result = adapt(config, shower())
    if int(os.environ.get("RANK", "0")) == 0:
        record(config, result, arguments.result)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--prompts", type=Path, required=True, help="JSON Lines of adapter_prompts.py")
    options.add_argument("--output", type=Path, required=True, help="folder of the adapter, and of its work")
    options.add_argument(
        "--measure", action="append", default=[], metavar="NAME=FILE", help="prompts to test"
    )
    options.add_argument("--result", type=Path, default=Path("benchmarks/results/demo_adapter.json"))
    options.add_argument("--model", default="smollm2-135m")
    options.add_argument("--work", type=Path, help="folder of texts and checkpoints; OUTPUT/work")
    options.add_argument("--start-from", type=start_folder, help="adapter to go on from, or: shipped")
    options.add_argument(
        "--share", type=shares, default={}, help="task:share,... of the prompts; others keep all"
    )
    options.add_argument("--temperatures", default="0,0.5,0.8")
    options.add_argument("--lanes", type=int, default=4096, help="texts written together")
    options.add_argument("--chunk", type=int, default=50_000, help="prompts per file of texts")
    options.add_argument("--blocks", type=shares, default="8:0.35,16:0.5,32:0.15", help="size:share,...")
    options.add_argument("--reach", type=float, default=LossConfig().reach)
    options.add_argument("--lr", type=float, default=3e-3)
    options.add_argument("--steps", type=int, default=6908)
    options.add_argument("--warmup", type=float, default=OptimiserConfig().warmup)
    options.add_argument("--tokens", type=int, default=32_768, help="slots, and tokens of text, of a step")
    options.add_argument("--limit", type=int, help="prompts used at most")
    options.add_argument("--measure-limit", type=int, default=100, help="prompts of each tested file")
    options.add_argument("--max-seconds", type=float, help="of training; call again to go on")
    return options


def shares(text: str) -> dict[str, float]:
    """ "a:0.5,b:1" → {"a": 0.5, "b": 1.0}."""
    return {name: float(share) for name, share in (pair.split(":") for pair in text.split(","))}


def recipe(arguments: argparse.Namespace) -> AdaptConfig:
    """What is not named here is the default of `recguide adapt`."""
    files = dict(pair.split("=", 1) for pair in arguments.measure)
    return AdaptConfig(
        model=arguments.model,
        prompts=arguments.prompts,
        output=arguments.output,
        work=arguments.work,
        limit=arguments.limit,
        start=arguments.start_from,
        shares=arguments.share,
        held_out=24,
        measure_limit=arguments.measure_limit,
        measure={name: Path(file) for name, file in files.items()},
        continuation=ContinuationConfig(
            temperatures=tuple(float(t) for t in arguments.temperatures.split(",")),
            max_prompt_tokens=448,
            lanes=arguments.lanes,
            chunk=arguments.chunk,
        ),
        train=TrainConfig(
            steps=arguments.steps,
            clean_tokens=arguments.tokens,
            noisy_tokens=arguments.tokens,
            eval_every=800,
            checkpoint_every=1000,
            max_seconds=arguments.max_seconds,
            lora=LoraConfig(rank=96),
            blocks=BlockConfig(sizes={int(size): share for size, share in arguments.blocks.items()}),
            loss=LossConfig(reach=arguments.reach),
            optimiser=OptimiserConfig(kind="muon", lr=arguments.lr, warmup=arguments.warmup),
        ),
    )


def shower() -> Callable[[Event], None]:
    """Prints a stage's start, every 20 seconds a line, and every measurement."""
    began = time.perf_counter()
    last = {"": 0.0}

    def show(event: Event) -> None:
        now, entry = time.perf_counter() - began, event.entry
        stage = event.stage.split(" (")[0]
        measured = entry is not None and entry.acceptance
        if not measured and stage in last and now - last[stage] < 20:
            return
        last[stage] = now
        line = f"{now:6.0f} s  {event.stage} {event.done}/{event.total}"
        if entry is not None:
            line += f"  loss {entry.loss:.3f}"
            for task, sizes in entry.acceptance.items():
                line += f"  {task} " + "/".join(f"{a:.2f}" for a in sizes.values())
        print(line, flush=True)

    return show


def record(config: AdaptConfig, result: AdaptResult, file: Path) -> None:
    """The result file of a finished run, and its acceptance on the screen."""
    for name, sizes in result.measured.items():
        print(f"{name:12}", "  ".join(f"B{size} {m.mean:.2f}" for size, m in sizes.items()))
    if not result.finished:
        print("not finished; the same call goes on")
        return
    settings: dict[str, Any] = json.loads(json.dumps(asdict(config), default=str))
    write_result(
        file,
        device=resolve_device(config.device),
        settings={name: value for name, value in settings.items() if name not in PLACES}
        | {"processes": int(os.environ.get("WORLD_SIZE", "1"))},
        targets=[
            Target.at_least(f"{name}: A at B=16, greedy", round(result.measured[name][16].mean, 3), target)
            for name, target in TARGETS.items()
            if name in result.measured
        ],
        rows=[
            {
                "task": name,
                "block": size,
                "acceptance": round(m.mean, 4),
                "anywhere": round(m.anywhere, 4),
                "histogram": m.histogram(),
            }
            for name, sizes in result.measured.items()
            for size, m in sizes.items()
        ],
        curve=[
            {"step": entry.step, "slots": entry.tokens, "loss": round(entry.loss, 4)}
            | ({"acceptance": entry.acceptance} if entry.acceptance else {})
            for entry in result.history
            if entry.acceptance or entry.step % 100 == 0
        ],
    )


if __name__ == "__main__":
    main()
