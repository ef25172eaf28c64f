"""Decoding one request: plainly, and by every method at B = 16 and 32, side by side; transformers beside it.

Published shapes have random weights and a replayed acceptance (see `recguide.bench.acceptance`): all
computation is real, only what the picks say is scripted. The demo model drafts for real. Also plain decoding
of many requests.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recguide import LLM
from recguide.bench.acceptance.process import LABEL, fitted
from recguide.bench.decoding import Sum, decode, spread
from recguide.bench.peer import Peer
from recguide.bench.plain_decoding import LOADS, NEW_TOKENS, PROMPT, load_rows, load_targets, peer_rows
from recguide.bench.results import Target, write_result
from recguide.bench.tables import text_table
from recguide.bench.targets import short_table
from recguide.bench.workload import random_prompts, replay_engine
from recguide.core import SamplingParams
from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.models.loading import Model, load
from recguide.training.prompts import read_prompts

RESULTS = Path(__file__).parent / "results"
GSM8K = Path(__file__).parents[2] / "shared" / "data" / "prompts" / "gsm8k_test.jsonl.gz"
DEMO = "smollm2-135m"
MODEL_LEN = 4096
TIMED = 10
"""Texts whose forwards are timed alone, too."""
KV_EACH = PROMPT + 3 * NEW_TOKENS
"""Tokens of KV for each of many requests."""
COLUMNS = {
    "method": "method",
    "block": "B",
    "tpf": "TPF",
    "acceptance": "A",
    "reuse": "reuse",
    "tokens_per_s": "tok/s",
    "speedup": "x AR",
    "efficiency": "efficiency",
    "ms_per_forward": "ms/forward",
    "query_tokens_per_forward": "N",
}
LOAD_COLUMNS = {
    "engine": "plain decoding by",
    "load": "C",
    "mean_prefix": "prefix",
    "ms_per_step": "ms/step",
    "tokens_per_s": "tok/s",
    "efficiency": "efficiency",
    "vllm_ms": "vLLM ms",
}


@dataclass(frozen=True, slots=True)
class Way:
    """A method at a block size."""

    method: str
    block: int

    def params(self, seed: int, tokens: int, *, whole: bool = True) -> SamplingParams:
        """`whole`: end-of-sequence does not end a text."""
        return SamplingParams(
            seed=seed,
            max_tokens=tokens,
            ignore_eos=whole,
            method=self.method,
            block_size=None if self.method == "ar" else self.block,
        )


AR = Way("ar", 1)
WAYS = (AR, *(Way(method, block) for block in (16, 32) for method in ("linear", "tidar", "recguide")))


def side_by_side(
    engine_for: Callable[[Way], Engine],
    ways: Sequence[Way],
    prompts: Sequence[Sequence[int]],
    tokens: int,
    *,
    ar_every: int = 1,
    whole: bool = True,
) -> dict[Way, Sum]:
    """Every way on every prompt, one prompt after another, so that all ways see the same minutes.

    Plain decoding takes every `ar_every`th prompt: it is slow, and its speed hardly varies.
    """
    for way in ways:  # compiles, captures
        decode(engine_for(way), [prompts[0]], [way.params(0, min(tokens, 48))])
    sums = {way: Sum() for way in ways}
    for seed, prompt in enumerate(prompts):
        for way in ways:
            if way.method != "ar" or seed % ar_every == 0:
                params = way.params(seed, tokens, whole=whole)
                sums[way].add(decode(engine_for(way), [prompt], [params], alone=seed < TIMED))
    return sums


def way_rows(sums: Mapping[Way, Sum], acceptance: str) -> list[dict[str, Any]]:
    """One row for each way; `acceptance` says whether it is real or replayed."""
    plain = sums[AR].tokens_per_s
    return [
        {
            "method": way.method,
            "block": way.block,
            "acceptance_is": acceptance,
            "texts": len(found.rates),
            "tokens": found.tokens,
            "tpf": found.tokens / found.stats.forwards,
            "acceptance": found.stats.mean_acceptance,
            "coverage": found.stats.coverage,
            "reuse": found.stats.reuse,
            "tokens_per_s": found.tokens_per_s,
            "tokens_per_s_spread": spread(found.rates),
            "speedup": found.tokens_per_s / plain,
            "efficiency": found.efficiency,
            "ms_per_forward": found.wall_ms / found.stats.forwards,
            "query_tokens_per_forward": found.stats.query_tokens / found.stats.forwards,
        }
        for way, found in sums.items()
    ]


# --- targets ------------------------------------------------------------------------------------------------

SPEEDUPS = {
    DEMO: {("linear", 16): 1.7, ("recguide", 16): 2.0},
    "nld-8b": {("recguide", 16): 6.0, ("recguide", 32): 6.6},
    "nld-14b": {("recguide", 16): 6.0, ("recguide", 32): 6.6},
}
EFFICIENCY = 0.95


def way_targets(model: str, found: Sequence[dict[str, Any]]) -> list[Target]:
    asked: list[Target] = []
    for row in found:
        label = f"{model}, {row['method']}" + (f" B = {row['block']}" if row["block"] > 1 else "")
        label += f", {row['acceptance_is']}"
        limit = SPEEDUPS.get(model, {}).get((row["method"], row["block"]))
        if limit is not None:
            asked.append(Target.at_least(f"{label}: x AR", round(row["speedup"], 3), limit))
        if model != DEMO and row["efficiency"] is not None:
            asked.append(Target.at_least(f"{label}: efficiency", round(row["efficiency"], 4), EFFICIENCY))
    return asked


# --- the run ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A model with what it is asked, and an engine for each way of decoding it.

    Attributes:
        acceptance: "real", or how it is replayed.
        figures: for a replay, the process and its residuals.
    """

    model: Model
    prompts: Sequence[Sequence[int]]
    acceptance: str
    engine_for: Callable[[Way], Engine]
    figures: Mapping[str, Any] | None = None


def published_subject(options: argparse.Namespace) -> Subject:
    """A published shape with random weights. TiDAR drafts before it knows the correction: its own process."""
    model = load(options.model, load_format="dummy")
    replay = fitted(options.model)
    most = max(options.loads, default=1)
    sizes = {"max_model_len": MODEL_LEN, "kv_cache_tokens": most * KV_EACH + MODEL_LEN}
    seeing = replay_engine(model, replay.process, EngineConfig(max_running=most, **sizes))
    blind = replay_engine(model, replay.process.blind(), EngineConfig(max_running=1, **sizes))
    return Subject(
        model=model,
        prompts=random_prompts(options.texts, options.prompt, model.vocabulary.size),
        acceptance=LABEL,
        engine_for=lambda way: blind if way.method == "tidar" else seeing,
        figures=replay.as_object(),
    )


def demo_subject(options: argparse.Namespace) -> Subject:
    """The demo model on real prompts."""
    most = max(options.loads, default=1)
    llm = LLM(
        options.model,
        max_running=most,
        max_model_len=MODEL_LEN,
        kv_cache_tokens=most * KV_EACH + MODEL_LEN,
    )
    texts = [prompt.text for prompt in read_prompts(options.prompts)[: options.texts]]
    ids = [llm.tokenizer.chat([{"role": "user", "content": text}]) for text in texts]
    return Subject(llm.model, ids, "real", lambda _: llm.engine)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="nld-8b", help="published shape, or smollm2-135m")
    parser.add_argument("--texts", type=int, help="texts that every way decodes (6; 100 for the demo model)")
    parser.add_argument("--tokens", type=int, help="new tokens of each (512; 128 for the demo model)")
    parser.add_argument("--prompt", type=int, default=744, help="tokens of a random prompt")
    parser.add_argument("--prompts", type=Path, default=GSM8K, help="prompts for the demo model")
    parser.add_argument("--ar-every", type=int, help="plain decoding takes every so many-th text (2; 1)")
    parser.add_argument("--loads", type=int, nargs="*", help="plain decoding of so many (1 to 128)")
    parser.add_argument("--peer-loads", type=int, nargs="*", default=(1,), help="none to leave it out")
    parser.add_argument("--peer-modes", nargs="+", default=("reduce-overhead",), help="of torch.compile")
    parser.add_argument("--quick", action="store_true", help="few and short texts, loads up to 8")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    demo, quick = options.model == DEMO, options.quick
    options.texts = options.texts or (2 if quick else 100 if demo else 6)
    options.tokens = options.tokens or (64 if quick else 128 if demo else 512)
    options.ar_every = options.ar_every or (1 if demo else 2)
    if options.loads is None:
        options.loads = LOADS[:3] if quick else LOADS
    options.output = options.output or RESULTS / f"single_request-{options.model}.json"
    return options


def main() -> None:
    options = parse()
    subject = demo_subject(options) if options.model == DEMO else published_subject(options)
    model, engine = subject.model, subject.engine_for(AR)
    sums = side_by_side(
        subject.engine_for,
        WAYS,
        subject.prompts,
        options.tokens,
        ar_every=options.ar_every,
        whole=options.model != DEMO,
    )
    ways = way_rows(sums, subject.acceptance)
    print(text_table(ways, COLUMNS), "\n")
    loads = load_rows(engine, options.model, options.loads)
    peers = {mode: Peer(model, mode=mode) for mode in options.peer_modes}
    loads += peer_rows(peers, options.peer_loads, model.vocabulary.size)
    print(text_table(loads, LOAD_COLUMNS), "\n")
    asked = [*way_targets(options.model, ways), *load_targets(options.model, loads)]
    print(short_table(asked))
    settings = {
        "model": options.model,
        "dtype": str(model.kv_shape.dtype).removeprefix("torch."),
        "texts": len(subject.prompts),
        "prompt_tokens": [min(map(len, subject.prompts)), max(map(len, subject.prompts))],
        "new_tokens": options.tokens,
        "texts_for_efficiency": min(TIMED, len(subject.prompts)),
        "texts_end_at_eos": options.model == DEMO,
        "plain_decoding_takes_every": options.ar_every,
        "plain_decoding_prompt_and_new_tokens": [PROMPT, NEW_TOKENS],
        "temperature": 0.0,
        "max_model_len": MODEL_LEN,
    }
    if subject.figures is not None:
        settings |= {"weights": "random", "replay": subject.figures}
    write_result(
        options.output, device=model.kv_shape.device, settings=settings, rows=[*ways, *loads], targets=asked
    )


if __name__ == "__main__":
    main()
