"""What a step costs the host with many running requests: everything but the device's work.

The model answers at once and its picks are a script; requests, pages, rows, inputs in the buckets of CUDA
graphs, the work lists of an H200's attention, verdicts, text and statistics are as in serving. What stands
for the device's work (forward, picks, settling) is timed and taken off.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, quantiles
from time import perf_counter, thread_time
from typing import Any

import torch
from torch import Tensor

from recguide.attention.work import Tiling
from recguide.bench.acceptance.picker import ReplayPicker
from recguide.bench.acceptance.process import LABEL, fitted
from recguide.bench.results import Target, write_result
from recguide.bench.tables import text_table
from recguide.bench.targets import short_table
from recguide.bench.workload import random_prompts
from recguide.core import CANDIDATES, Attend, KVShape, PackedBatch, SamplingParams, Vocabulary
from recguide.engine.buckets import Bucket, Buckets
from recguide.engine.collecting import keep_all
from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.engine.inputs import Inputs
from recguide.engine.landing import Landing
from recguide.engine.rooms import Limits, bucket_room
from recguide.engine.runner import Runner, adapter_uses
from recguide.models import published
from recguide.speculation.picks import Picks
from recguide.speculation.slots import SlotTable

RESULTS = Path(__file__).parent / "results"
RUNNING = 256
PROMPT = 64
BATCH_TOKENS = 1024
TARGET_MS = 2.0
CPU = torch.device("cpu")
Clock = Callable[[], float]
"""Seconds."""
COLUMNS = {
    "case": "case",
    "running": "running",
    "query_tokens": "N",
    "host_ms": "host ms/step",
    "host_ms_p95": "p95",
    "until_launch_ms": "until launch",
}


class Still:
    """Implements core.Backbone and computes nothing."""

    vocabulary = Vocabulary(size=512, eos=(2,), mask=3)
    max_positions = 8192
    diffusion_adapter = False
    heads, adapted = 32, True
    kv_shape = KVShape(1, 8, 2, torch.float32, CPU)

    def forward(self, batch: PackedBatch, attend: Attend) -> Tensor:  # noqa: ARG002
        return torch.empty(len(batch.wanted), 1)


class OnH200:
    """The cut of the 8B shape's attention on an H200."""

    def tiling(self, tokens: int) -> Tiling:
        programs = 264
        return Tiling(
            share=4,
            kv_heads=8,
            rows=64,
            keys=64,
            programs=programs,
            resident=2,
            grain=1 if tokens * 4 <= 16 else 2,
            exact=False,
            partial_rows=2 * programs * 64,
        )

    def plan(self, batch: PackedBatch) -> Attend:  # noqa: ARG002
        return lambda _layer, qkv, _turn: qkv


def nothing_picked(logits: Tensor, slots: SlotTable) -> Picks:  # noqa: ARG001
    """What a script overwrites."""
    count = len(slots)
    ids, zeros = torch.zeros(count, dtype=torch.int64), torch.zeros(count)
    others = torch.zeros(CANDIDATES, count, dtype=torch.int64)
    return Picks(ids, zeros, zeros.clone(), others, zeros.clone(), zeros.clone(), ids > 0)


class IdleDevice:
    """Stands in for `Replays`: the same buckets and buffers, and the time of what a graph would do.

    Attributes:
        seconds: spent in the device's place.
        began: when the last forward came here.
    """

    def __init__(self, runner: Runner, limits: Limits, clock: Clock) -> None:
        self._clock = clock
        self.buckets = Buckets(limits.tokens, adapter_uses(runner.backbone))
        self.seconds = 0.0
        self.began = 0.0
        self._runner, self._limits, self._turn = runner, limits, 0
        size = self._room(self.buckets.largest_bucket).columns().size
        self._hosts = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
        self._device = torch.zeros(size, dtype=torch.uint8)
        self._inputs: dict[tuple[Bucket, int], Inputs] = {}

    def _room(self, bucket: Bucket) -> Any:  # noqa: ANN401
        return bucket_room(bucket, self._limits, self._runner._attention, self._runner.pool.page_size)

    def bucket(self, flat: Any) -> Bucket | None:  # noqa: ANN401
        return self.buckets.of(flat.tokens, flat.structure.use, flat.wanted)

    def inputs(self, bucket: Bucket) -> Inputs:
        self._turn = 1 - self._turn
        key = (bucket, self._turn)
        if key not in self._inputs:
            self._inputs[key] = self._inputs_in(bucket, self._hosts[self._turn])
        return self._inputs[key]

    def own_inputs(self, bucket: Bucket) -> Inputs:
        return self._inputs_in(bucket, torch.zeros(self._room(bucket).columns().size, dtype=torch.uint8))

    def _inputs_in(self, bucket: Bucket, host: Tensor) -> Inputs:
        room = self._room(bucket)
        return Inputs(room, room.columns(), host, self._device, bucket.use)

    def forward(self, _: Bucket, inputs: Inputs) -> tuple[Tensor, Landing]:
        inputs.send()
        self.began = self._clock()
        logits, output = self._runner._run(inputs, inputs.batch)
        self.seconds += self._clock() - self.began
        return logits, Landing(output.numpy())


def engine_for(running: int, clock: Clock, page_size: int = 64) -> tuple[Engine, IdleDevice]:
    """An engine as on a GPU, with nothing behind it."""
    backbone = Still()
    picker = ReplayPicker(nothing_picked, fitted("nld-8b").process, backbone.vocabulary)
    config = EngineConfig(
        max_running=running,
        max_batch_tokens=BATCH_TOKENS,
        kv_cache_tokens=running * 2048,
        page_size=page_size,
    )
    engine = Engine(backbone, published.decode, config, picker, joins=True)
    limits = Limits(tokens=BATCH_TOKENS, requests=running, length=2048)
    engine.runner._attention = OnH200()
    device = IdleDevice(engine.runner, limits, clock)
    engine.runner._replays = device
    return engine, device


@dataclass(frozen=True, slots=True)
class Case:
    """How all requests are decoded."""

    name: str
    params: dict[str, Any]


CASES = (
    Case("plain decoding", {"method": "ar"}),
    Case("linear, B = 4", {"method": "linear", "block_size": 4}),
    Case("as served by default", {}),
)


@dataclass(slots=True)
class Steps:
    """Milliseconds of the host in each step: all, and until the next forward is on its way."""

    host: list[float]
    until_launch: list[float]
    query_tokens: list[int]


def measure(
    case: Case, running: int, steps: int, clock: Clock = perf_counter, profile: cProfile.Profile | None = None
) -> Steps:
    """Steps in which all requests decode."""
    engine, device = engine_for(running, clock)
    prompts = random_prompts(running, PROMPT, Still.vocabulary.size)
    for seed, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=1500, ignore_eos=True, seed=seed, **case.params)
        engine.add([4 + seed // 500, 4 + seed % 500, *prompt], params)
    while any(not request.emitted for request in engine._scheduler.running) or engine._scheduler.waiting:
        engine.step()
    for _ in range(20):
        engine.step()
    found = Steps([], [], [])
    if profile is not None:
        profile.enable()
    for _ in range(steps):
        began, before = clock(), device.seconds
        engine.step()
        found.host.append(1e3 * (clock() - began - device.seconds + before))
        found.until_launch.append(1e3 * (device.began - began))
        found.query_tokens.append(0 if engine._flight is None else engine._flight.query_tokens)
    if profile is not None:
        profile.disable()
    return found


def row_of(case: Case, running: int, found: Steps) -> dict[str, Any]:
    return {
        "case": case.name,
        "running": running,
        "steps": len(found.host),
        "query_tokens": round(mean(found.query_tokens), 1),
        "host_ms": round(median(found.host), 3),
        "host_ms_mean": round(mean(found.host), 3),
        "host_ms_p95": round(quantiles(found.host, n=20)[-1], 3),
        "until_launch_ms": round(median(found.until_launch), 3),
    }


def targets_of(rows: Sequence[dict[str, Any]]) -> list[Target]:
    return [
        Target.at_most(f"{row['case']}, {row['running']} requests: host ms/step", row["host_ms"], TARGET_MS)
        for row in rows
    ]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--running", type=int, default=RUNNING, help="requests that decode")
    parser.add_argument("--steps", type=int, default=300, help="of each case")
    parser.add_argument("--case", type=int, nargs="*", default=range(len(CASES)), help="by their numbers")
    parser.add_argument("--profile", action="store_true", help="show where the time goes, and write nothing")
    parser.add_argument("--cpu-time", action="store_true", help="of this thread alone, on a busy machine")
    parser.add_argument("--output", type=Path, default=RESULTS / "host_cost.json")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    keep_all()
    clock = thread_time if options.cpu_time else perf_counter
    profile = cProfile.Profile() if options.profile else None
    rows = [
        row_of(case, options.running, measure(case, options.running, options.steps, clock, profile))
        for case in (CASES[number] for number in options.case)
    ]
    print(text_table(rows, COLUMNS))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        return
    targets = targets_of(rows)
    print(short_table(targets))
    write_result(
        options.output,
        settings={
            "prompt": PROMPT,
            "max_batch_tokens": BATCH_TOKENS,
            "acceptance": LABEL,
            "clock": "thread" if options.cpu_time else "wall",
        },
        rows=rows,
        targets=targets,
    )


if __name__ == "__main__":
    main()
