"""Where the time of one request's rounds goes: kernels by what they do, and the gaps between them.

The profiler watches consecutive forwards of one request, host work between them included. Acceptance is
replayed, as in single_request.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recguide.bench.acceptance.process import LABEL, fitted
from recguide.bench.breakdown import PARTS, Breakdown, break_down, part_of, record
from recguide.bench.results import write_result
from recguide.bench.tables import text_table
from recguide.bench.workload import random_prompts, replay_engine
from recguide.core import SamplingParams
from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.models.loading import load

RESULTS = Path(__file__).parent / "results"
PROMPT = 1000
KERNELS = 24
PART_COLUMNS = {"part": "part", "ms": "ms", "share": "share", "launches": "launches"}
KERNEL_COLUMNS = {"kernel_part": "part", "ms": "ms", "launches": "launches", "kernel": "kernel"}


def profile_rows(found: Breakdown) -> list[dict[str, Any]]:
    """One row for each part, then one for each of the longest kernels; milliseconds of a forward."""
    launches = dict.fromkeys(PARTS, 0.0)
    for part, _, count in found.kernels.values():
        launches[part] += count
    total = found.total_ms
    parts = [
        {"part": part, "ms": ms, "share": ms / total, "launches": launches[part]}
        for part, ms in found.parts.items()
    ]
    longest = sorted(found.kernels.items(), key=lambda item: -item[1][1])[:KERNELS]
    return [
        *parts,
        *(
            {"kernel": name, "kernel_part": part, "ms": ms, "launches": count}
            for name, (part, ms, count) in longest
        ),
    ]


def profile_rounds(engine: Engine, params: SamplingParams, forwards: int, warm_up: int) -> Breakdown:
    """Breakdown of `forwards` consecutive forwards of one request."""
    (prompt,) = random_prompts(1, PROMPT, engine.vocabulary.size)
    (request,) = engine.add(prompt, params)
    while not request.emitted:
        engine.step()
    for _ in range(warm_up):
        engine.step()
    spans = record(engine.step, forwards)
    engine.abort(request)
    return break_down(spans, forwards, part_of)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="nld-8b", help="published shape, random weights")
    parser.add_argument("--method", default="recguide")
    parser.add_argument("--block", type=int, default=16)
    parser.add_argument("--forwards", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="8 forwards")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    options.forwards = 8 if options.quick else options.forwards
    options.output = options.output or RESULTS / f"round_profile-{options.model}.json"
    return options


def main() -> None:
    options = parse()
    model = load(options.model, load_format="dummy")
    config = EngineConfig(max_running=1, max_model_len=4096, kv_cache_tokens=8192)
    engine = replay_engine(model, fitted(options.model).process, config)
    params = SamplingParams(
        max_tokens=options.forwards * options.block * 4,
        seed=0,
        ignore_eos=True,
        method=options.method,
        block_size=None if options.method == "ar" else options.block,
    )
    rows = profile_rows(profile_rounds(engine, params, options.forwards, warm_up=10))
    print(text_table([row for row in rows if "part" in row], PART_COLUMNS))
    print(text_table([row for row in rows if "kernel" in row], KERNEL_COLUMNS))
    write_result(
        options.output,
        device=model.kv_shape.device,
        settings={
            "model": options.model,
            "weights": "random",
            "acceptance": LABEL,
            "method": options.method,
            "block": options.block,
            "prompt": PROMPT,
            "forwards": options.forwards,
        },
        rows=rows,
    )


if __name__ == "__main__":
    main()
