"""Plain decoding of many requests: ours, transformers', and vLLM's line, at a prefix of about 1,000."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recguide.bench import anchors
from recguide.bench.decoding import decode, spread
from recguide.bench.peer import Peer
from recguide.bench.results import Target
from recguide.bench.workload import random_prompts
from recguide.core import SamplingParams
from recguide.engine.engine import Engine

LOADS = (1, 2, 8, 32, 64, 128)
PROMPT, NEW_TOKENS = 936, 128
OURS = "recguide"


def load_rows(
    engine: Engine, model: str, loads: Sequence[int], *, prompt: int = PROMPT, tokens: int = NEW_TOKENS
) -> list[dict[str, Any]]:
    """Our plain decoding at each load: wall time of a step, host included."""
    found: list[dict[str, Any]] = []
    for many in loads:
        prompts = random_prompts(many, prompt, engine.vocabulary.size)
        # Requests that start early emit while the others are prefilled.
        params = [_params(i, tokens + _prefill_steps(engine, many, prompt)) for i in range(many)]
        decode(engine, prompts[:1], [_params(0, 8)])
        run = decode(engine, prompts, params, alone=True)
        row = _row(OURS, many, run.step_ms, run.mean_prefix)
        row["efficiency"] = None if run.graph_ms is None else run.graph_ms / run.wall_ms
        row["vllm_ms"] = anchors.VLLM_STEP_MS.get(model, {}).get(many)
        found.append(row)
    return found


def _row(engine: str, load: int, step_ms: Sequence[float], prefix: float) -> dict[str, Any]:
    timed = spread(step_ms)
    return {
        "engine": engine,
        "load": load,
        "mean_prefix": round(prefix, 1),
        "ms_per_step": timed["median"],
        "step_ms": {**timed, "mean": sum(step_ms) / len(step_ms)},
        "tokens_per_s": 1e3 * load / timed["median"],
    }


def _prefill_steps(engine: Engine, load: int, prompt: int) -> int:
    return -(-load * prompt // engine.config.max_batch_tokens)


def peer_rows(
    peers: Mapping[str, Peer],
    loads: Sequence[int],
    vocabulary: int,
    *,
    prompt: int = PROMPT,
    tokens: int = NEW_TOKENS,
) -> list[dict[str, Any]]:
    """transformers' steps at each load, in each of its settings."""
    found: list[dict[str, Any]] = []
    for name, peer in peers.items():
        for many in loads:
            prompts = random_prompts(many, prompt, vocabulary)
            peer.decode(prompts, tokens)  # compiles
            run = peer.decode(prompts, tokens)
            found.append(_row(f"transformers, {name}", many, run.step_ms, prompt + tokens / 2))
    return found


def load_targets(model: str, found: Sequence[dict[str, Any]]) -> list[Target]:
    """Our plain decoding is not slower than the peer's best setting, nor than vLLM's line."""
    asked: list[Target] = []
    for row in found:
        if row["engine"] != OURS:
            continue
        ms, load = round(row["ms_per_step"], 4), row["load"]
        peers = [other["ms_per_step"] for other in found if other["engine"] != OURS and other["load"] == load]
        if peers:
            name = f"{model}, AR at C = {load}: ms per step, transformers' best"
            asked.append(Target.at_most(name, ms, round(min(peers), 4)))
        if row["vllm_ms"] is not None:
            name = f"{model}, AR at C = {load}: ms per step, vLLM's line"
            asked.append(Target.at_most(name, ms, row["vllm_ms"]))
    return asked


def _params(seed: int, tokens: int) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=tokens, ignore_eos=True, method="ar")
