"""What a forward costs by its query tokens: each CUDA graph replayed alone, against the bytes it must read.

One request verifies a block with branches up to N = 128; beyond, several do. Also prefill chunks, and AR
steps of many requests. Logits are wanted as in decoding: of every slot, or of a prefill chunk's last one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recguide.bench import anchors
from recguide.bench.decoding import spread
from recguide.bench.results import Target
from recguide.bench.stage import Stage
from recguide.bench.targets import concluded
from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.models import published
from recguide.models.loading import load
from recguide.speculation import rows
from recguide.speculation.rows import Branch, BranchKind, Layout

RESULTS = Path(__file__).parent / "results"
PREFILL = "prefill chunk"
PREFIX = 1024
LOAD_PREFIX = 1000
ROOM = 128
LOADS = (1, 2, 8, 32, 64, 128)
LIMITS = {"nld-8b": {1: 1.25, 64: 1.36, 128: 1.48}, "nld-14b": {1: 1.25, 64: 1.30, 128: 1.40}}
"""Times the bytes floor at most, by query tokens."""
STRETCH = {"nld-8b": {1: 1.15}}
COLUMNS = {
    "kind": "forward",
    "requests": "requests",
    "query_tokens": "N",
    "bucket": "bucket",
    "prefix": "prefix",
    "ms": "ms",
    "p90": "p90",
    "over_floor": "x floor",
    "products_ms": "products",
    "plain_ms": "plain",
    "vllm_ms": "vLLM",
}


@dataclass(frozen=True)
class Case:
    """Equal rows of some requests: a causal row of `block` tokens each, with as many branches as long."""

    kind: str
    requests: int
    block: int
    branches: int = 0
    prefix: int = PREFIX

    @property
    def query_tokens(self) -> int:
        return self.requests * self.block * (1 + self.branches)

    def layouts(self, mask: int, vocabulary: int) -> list[Layout]:
        """Rows with random tokens."""
        generator = torch.Generator().manual_seed(self.query_tokens)
        drawn = torch.randint(0, vocabulary, (self.requests, self.block), generator=generator)
        return [self._layout(i, tokens, mask) for i, tokens in enumerate(drawn.tolist())]

    def _layout(self, request: int, tokens: Sequence[int], mask: int) -> Layout:
        if self.kind == PREFILL:
            return rows.prefill(request, self.prefix, tokens, picks=True)
        if self.block == 1:
            return rows.step(request, self.prefix, tokens[0])
        return rows.verify(request, self.prefix, tokens, self._branches(), mask=mask, adapter=True)

    def _branches(self) -> list[Branch]:
        """A continuation, then corrections at the first slots, as the paper's rule would choose at most."""
        if not self.branches:
            return []
        corrections = [
            Branch(BranchKind.CORRECTION, slot, self.block, head=slot) for slot in range(1, self.branches)
        ]
        return [*corrections, Branch(BranchKind.CONTINUATION, self.block, self.block)]


CASES = (
    Case("AR step", 1, 1),
    Case("verification", 1, 8),
    Case("verification", 1, 16),
    Case("verification", 1, 16, 1),
    Case("verification", 1, 16, 3),
    Case("verification", 1, 20, 3),
    Case("verification", 1, 24, 3),
    Case("verification", 1, 32, 3),
    Case("verification", 2, 20, 3),
    Case("verification", 2, 32, 3),
    Case("verification", 4, 32, 3),
    Case("verification", 8, 32, 3),
    Case(PREFILL, 1, 512),
    Case(PREFILL, 1, 1024),
)

Measure = Callable[[Sequence[Layout]], tuple[Sequence[float], int | None]]
"""Layouts of one forward → milliseconds of its replays, and the bucket (None without graphs)."""


def cost_rows(
    model: str, floor_ms: float, cases: Sequence[Case], measure: Measure, mask: int, vocabulary: int
) -> list[dict[str, Any]]:
    """One row for each case: median and spread, against the floor and what others measured."""
    found: list[dict[str, Any]] = []
    for case in cases:
        times, bucket = measure(case.layouts(mask, vocabulary))
        timed = spread(times)
        series = "load" if case.prefix == LOAD_PREFIX else "chunk" if case.kind == PREFILL else "tokens"
        limit = LIMITS.get(model, {}).get(case.query_tokens) if series == "tokens" else None
        vllm_ms = anchors.VLLM_STEP_MS.get(model, {}).get(case.requests) if series == "load" else None
        found.append(
            {
                "kind": case.kind,
                "series": series,
                "requests": case.requests,
                "block": case.block,
                "branches": case.branches,
                "query_tokens": case.query_tokens,
                "bucket": bucket,
                "prefix": case.prefix,
                "ms": timed["median"],
                "p10": timed["p10"],
                "p90": timed["p90"],
                "over_floor": timed["median"] / floor_ms,
                "limit_ms": None if limit is None else limit * floor_ms,
                "products_ms": anchors.anchor(anchors.PRODUCTS_MS, model, case.query_tokens),
                "plain_ms": anchors.anchor(anchors.PLAIN_MS, model, case.query_tokens),
                "vllm_ms": vllm_ms,
            }
        )
    return found


def targets(model: str, found: Sequence[dict[str, Any]]) -> list[Target]:
    """Times the floor at N = 1, 64 and 128, and no AR step slower than vLLM's."""
    asked: list[Target] = []
    decoding = [row for row in found if row["series"] == "tokens"]
    for name, limits in (("", LIMITS), (" (stretch)", STRETCH)):
        for row in decoding:
            limit = limits.get(model, {}).get(row["query_tokens"])
            if limit is not None:
                what = f"{model}, N = {row['query_tokens']}: times the bytes floor{name}"
                asked.append(Target.at_most(what, round(row["over_floor"], 4), limit))
    for row in found:
        if row["vllm_ms"] is not None:
            what = f"{model}, AR step at C = {row['requests']}, graph alone: ms, vLLM's line"
            asked.append(Target.at_most(what, round(row["ms"], 4), row["vllm_ms"]))
    return asked


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="nld-8b", help="published shape, random weights")
    parser.add_argument("--replays", type=int, default=30, help="of each graph")
    parser.add_argument("--quick", action="store_true", help="few replays, loads up to 8")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    options.loads = LOADS
    if options.quick:
        options.replays, options.loads = 5, LOADS[:3]
    options.output = options.output or RESULTS / f"forward_cost-{options.model}.json"
    return options


def main() -> None:
    options = parse()
    model = load(options.model, load_format="dummy")
    most = max(options.loads)
    config = EngineConfig(
        max_running=most,
        max_model_len=4 * PREFIX,
        kv_cache_tokens=most * (PREFIX + ROOM) + 2 * PREFIX,
    )
    engine = Engine(model, published.decode, config)
    floor_ms = anchors.floor_ms(model.config)
    cases = [*CASES, *(Case("AR step", load, 1, prefix=LOAD_PREFIX) for load in options.loads)]
    mask = model.vocabulary.mask
    assert mask is not None, "published shapes can draft"
    stage = Stage(engine.runner, requests=most, prefix=PREFIX, room=ROOM, first_room=PREFIX)

    def measure(layouts: Sequence[Layout]) -> tuple[Sequence[float], int | None]:
        return stage.time(layouts, options.replays)

    found = cost_rows(options.model, floor_ms, cases, measure, mask, model.vocabulary.size)
    print(f"{options.model}: bytes floor {floor_ms:.2f} ms")
    text = concluded(
        options.output,
        COLUMNS,
        device=model.kv_shape.device,
        settings={
            "model": options.model,
            "weights": "random",
            "dtype": str(model.kv_shape.dtype).removeprefix("torch."),
            "replays": options.replays,
            "floor_ms": round(floor_ms, 3),
            "copy_TB_per_s": anchors.COPY_BYTES_PER_MS / 1e9,
            "time": "one CUDA graph from embedding to settled picks, replayed alone; medians",
        },
        rows=found,
        targets=targets(options.model, found),
    )
    print(text)


if __name__ == "__main__":
    main()
