"""What serving costs: one load through HTTP and through the offline engine, both with replayed acceptance.

A closed loop of C requests sends token streams of random text to `recguide serve`; the offline engine then
decodes the same requests, each under the same sampling seed, with as many at a time. Tokens per second count
prefill too, in both. Each goes through its whole load once before it is measured, so that neither compiles a
kernel meanwhile and few graphs are left to capture. Efficiency is that of the whole offline loop, prefill and
all: what its forwards take as graphs alone ÷ the loop's wall time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import string
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recguide.bench.acceptance.process import LABEL, fitted
from recguide.bench.load.distribution import Distribution
from recguide.bench.load.drive import ClosedLoop, Limit, Turn
from recguide.bench.load.endpoint import Asking, Endpoint
from recguide.bench.load.prompts import Prompt
from recguide.bench.load.run import Plan, run
from recguide.bench.results import Target
from recguide.bench.stage import alone_ms
from recguide.bench.targets import concluded
from recguide.bench.workload import replay_engine
from recguide.core import SamplingParams
from recguide.engine.client import Ask
from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.engine.request import Request
from recguide.models.loading import load

RESULTS = Path(__file__).parent / "results"
SHARE, EFFICIENCY = 0.90, 0.80
COLUMNS = {
    "load": "C",
    "requests": "requests",
    "http_tokens_per_s": "HTTP tok/s",
    "offline_tokens_per_s": "offline tok/s",
    "http_over_offline": "ratio",
    "efficiency": "efficiency",
    "errors": "errors",
    "client_late_ms": "client late ms",
}


def plan_of(options: argparse.Namespace, concurrency: int) -> Plan:
    """Two turns of as many random texts, of which the second is measured.

    A model without a tokenizer takes their bytes as tokens.
    """
    count = max(options.least, options.waves * concurrency)
    draw = random.Random(options.prompt)
    texts = ["".join(draw.choices(string.ascii_letters, k=options.prompt)) for _ in range(count)]
    return Plan(
        load=ClosedLoop(concurrency),
        limit=Limit(requests=2 * count, duration_s=None),
        prompts=[Prompt(number, text) for number, text in enumerate(texts)],
        asking=Asking(max_tokens=options.tokens),
        warm_up=0,
        turns=2,
        seed=0,
    )


@contextmanager
def server(options: argparse.Namespace) -> Generator[str, None, None]:
    """The address of a server of its own process."""
    command = [
        sys.executable, "-m", "recguide", "serve", options.model, "--load-format", "dummy",
        "--replay-acceptance", "--port", str(options.port), "--max-running", str(max(options.loads)),
        "--max-model-len", str(options.length), "--no-prefix-cache", "--json", "--log-level", "warning",
        *options.serve,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        if not ready:
            raise SystemExit(f"the server ended with status {process.wait()}")
        yield json.loads(ready)["url"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def through_http(url: str, options: argparse.Namespace, concurrency: int) -> dict[str, Any]:
    """Tokens per second of a closed loop, from the first request sent to the last answer."""
    endpoint = Endpoint("recguide", url, options.model, "completions", extra_body={"ignore_eos": True})
    (outcome,) = asyncio.run(run([endpoint], plan_of(options, concurrency), lambda *_: None))
    measured = [record for record in outcome.records if record.turn == 1]
    good = [record for record in measured if record.error is None]
    seconds = max(record.ended_s for record in good) - min(record.sent_s for record in good)
    tokens = sum(record.output_tokens or 0 for record in good)
    late_ms = Distribution.of(outcome.lag_ms)
    return {
        "requests": len(measured),
        "http_tokens_per_s": tokens / seconds,
        "errors": len(measured) - len(good),
        "client_late_ms": None if late_ms is None else late_ms.p99,
    }


def offline(engine: Engine, options: argparse.Namespace, concurrency: int) -> dict[str, Any]:
    """The same requests, `concurrency` at a time, by one caller."""
    warm_up, measured = (_asks(plan_of(options, concurrency), turn) for turn in range(2))
    _closed_loop(engine, warm_up, concurrency)
    with engine.recording() as forwards:
        began = time.perf_counter()
        tokens = _closed_loop(engine, measured, concurrency)
        seconds = time.perf_counter() - began
    graph_ms = alone_ms(engine.runner, forwards)
    return {
        "offline_tokens_per_s": tokens / seconds,
        "forwards": len(forwards),
        "without_graph": sum(forward.bucket is None for forward in forwards),
        "efficiency": None if graph_ms is None else graph_ms / (1e3 * seconds),
    }


def _asks(plan: Plan, turn: int) -> list[Ask]:
    """What the client of a plan sends in a turn, in its order."""
    found: list[Ask] = []
    for errand in Turn(turn, plan.prompts, plan.seed, plan.limit.share(turn, plan.turns)).errands():
        sent = errand(0.0)
        params = SamplingParams(max_tokens=plan.asking.max_tokens, ignore_eos=True, seed=sent.seed)
        found.append((list(str(sent.prompt.content).encode()), params))
    return found


def _closed_loop(engine: Engine, asks: Sequence[Ask], concurrency: int) -> int:
    """Tokens of all answers, `concurrency` requests at a time."""
    queue, running, tokens = iter(asks), list[Request](), 0
    while True:
        while len(running) < concurrency and (ask := next(queue, None)) is not None:
            running += engine.add(*ask)
        if not running:
            return tokens
        engine.step()
        tokens += sum(len(request.emitted) for request in running if request.finish_reason is not None)
        running = [request for request in running if request.finish_reason is None]


def targets(model: str, found: Sequence[dict[str, Any]]) -> list[Target]:
    asked = [
        Target.at_least(
            f"{model}, C = {row['load']}, {LABEL}: tokens/s through HTTP, times offline",
            round(row["http_over_offline"], 4),
            SHARE,
        )
        for row in found
    ]
    for row in found:
        if row["load"] == 128 and row["efficiency"] is not None:
            name = f"{model}, C = 128, {LABEL}: efficiency of the closed loop"
            asked.append(Target.at_least(name, round(row["efficiency"], 4), EFFICIENCY))
    return asked


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="nld-8b", help="published shape, random weights")
    parser.add_argument("--loads", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--prompt", type=int, default=744, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--least", type=int, default=4, help="requests of a load at least")
    parser.add_argument("--waves", type=int, default=2, help="requests of each seat")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a request at most")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="further options of serve")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    options.output = options.output or RESULTS / f"serving-{options.model}.json"
    return options


def main() -> None:
    options = parse()
    with server(options) as url:
        rows = [{"load": load, **through_http(url, options, load)} for load in options.loads]
    model = load(options.model, load_format="dummy")
    config = EngineConfig(max_running=max(options.loads), max_model_len=options.length, prefix_cache=False)
    replayed = fitted(options.model)
    engine = replay_engine(model, replayed.process, config)
    for row in rows:
        row |= offline(engine, options, row["load"])
        row["http_over_offline"] = row["http_tokens_per_s"] / row["offline_tokens_per_s"]
    text = concluded(
        options.output,
        COLUMNS,
        device=model.kv_shape.device,
        settings={
            "model": options.model,
            "weights": "random",
            "prompt": options.prompt,
            "tokens": options.tokens,
            "policy": config.policy,
            **replayed.as_object(),
        },
        rows=rows,
        targets=targets(options.model, rows),
    )
    print(text)


if __name__ == "__main__":
    main()
