"""Exact mode on the demo model: a text is bitwise the same however it was computed, and what that costs.

Every prompt is decoded plainly and alone; then among others, with too little KV memory, so that requests are
preempted and computed again, with KV of prompts that an earlier request left, and by every method. Token
ids, and the raw log-probabilities of every fourth prompt's tokens, must not differ in a single bit. Odd
prompts are sampled, even ones greedy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from recguide import LLM, SamplingParams
from recguide.bench.decoding import decode
from recguide.bench.results import Target, write_result
from recguide.bench.tables import text_table
from recguide.bench.targets import short_table
from recguide.core import Completion
from recguide.engine.engine import Engine
from recguide.models import sources
from recguide.models.loading import resolve_device
from recguide.models.progress import ignore_progress
from recguide.models.tokenizer import Tokenizer
from recguide.training.prompts import read_prompts

RESULTS = Path(__file__).parent / "results"
PROMPTS = Path(__file__).parents[2] / "shared" / "data" / "prompts"
TASKS = ("gsm8k_test", "humaneval", "ifeval", "mt_bench")
MODEL_LEN = 4096
METHODS = ("ar", "linear", "tidar", "recguide")
BLOCKS = {"linear": 16, "tidar": 8, "recguide": 16}
"""TiDAR's query tokens grow with the square of its block."""
COLUMNS = {
    "condition": "condition",
    "method": "method",
    "texts": "texts",
    "tokens": "tokens",
    "differing_texts": "differ",
    "compared_logprobs": "logprobs",
    "differing_logprobs": "differ",
    "preemptions": "preempted",
    "prefix_hits": "prefix hits",
    "seconds": "s",
}
COST_COLUMNS = {
    "method": "method",
    "load": "C",
    "exact_tokens_per_s": "exact tok/s",
    "default_tokens_per_s": "default tok/s",
    "exact_over_default": "ratio",
}


@dataclass(frozen=True)
class Workload:
    """Prompts (token ids), tokens of each, blocks, and every how many log-probabilities are compared."""

    prompts: Sequence[Sequence[int]]
    tokens: int
    blocks: Mapping[str, int] = field(default_factory=lambda: BLOCKS)
    logprob_every: int = 4

    def params(self, index: int, method: str, *, logprobs: bool = True) -> SamplingParams:
        return SamplingParams(
            temperature=0.8 if index % 2 else 0.0,
            seed=index,
            max_tokens=self.tokens,
            ignore_eos=True,
            logprobs=0 if logprobs and index % self.logprob_every == 0 else None,
            method=method,
            block_size=self.blocks.get(method),
        )


@dataclass(frozen=True)
class Texts:
    """What one condition made of the prompts."""

    completions: Sequence[Completion]
    preemptions: int
    seconds: float


def complete(engine: Engine, work: Workload, method: str, *, alone: bool) -> Texts:
    """All prompts: one after another, or as many together as the engine runs."""
    began = time.perf_counter()
    completions: list[Completion] = []
    preemptions = 0
    everything = range(len(work.prompts))
    for group in ([index] for index in everything) if alone else [everything]:
        requests = [engine.add(work.prompts[i], work.params(i, method))[0] for i in group]
        dropped: set[int] = set()
        while engine.busy:
            engine.step()
            # Only a preemption takes the KV of a request that has begun to speak.
            now = {r.arrival for r in requests if r.emitted and not r.cached and r.finish_reason is None}
            preemptions += len(now - dropped)
            dropped = now
        completions += [request.completion() for request in requests]
    return Texts(completions, preemptions, time.perf_counter() - began)


def held_against(reference: Texts, texts: Texts) -> dict[str, Any]:
    """Counts of texts whose token ids differ, and of those whose log-probabilities do."""
    pairs = list(zip(reference.completions, texts.completions, strict=True))
    judged = [(a, b) for a, b in pairs if a.logprobs is not None]
    return {
        "texts": len(pairs),
        "tokens": sum(len(completion.token_ids) for completion in texts.completions),
        "differing_texts": sum(a.token_ids != b.token_ids for a, b in pairs),
        "compared_logprobs": sum(len(a.logprobs or ()) for a, _ in judged),
        "differing_logprobs": sum(_logprobs(a) != _logprobs(b) for a, b in judged),
        "preemptions": texts.preemptions,
        "prefix_hits": sum(completion.stats.prefix_hit_tokens > 0 for completion in texts.completions),
        "seconds": texts.seconds,
    }


def _logprobs(completion: Completion) -> list[float]:
    return [entry.logprob for entry in completion.logprobs or ()]


def conditions(
    roomy: Engine,
    scarce: Callable[[], Engine],
    caching: Callable[[], Engine],
    work: Workload,
    *,
    together: int,
) -> list[dict[str, Any]]:
    """One row for each condition; the first is the reference that the others are held against.

    Args:
        roomy: an exact engine that runs `together` requests at once, with KV for all of them and no prefix
            cache.
        scarce, caching: make one with KV for far fewer, and one with a prefix cache.
    """
    reference = complete(roomy, work, "ar", alone=True)
    rows = [{"condition": "alone", "method": "ar", **held_against(reference, reference)}]
    for method in METHODS:
        texts = complete(roomy, work, method, alone=False)
        rows.append({"condition": f"with {together - 1} others", "method": method})
        rows[-1] |= held_against(reference, texts)
    engine = scarce()
    for method in ("ar", "recguide"):
        texts = complete(engine, work, method, alone=False)
        rows.append({"condition": "after preemption", "method": method, **held_against(reference, texts)})
    engine = caching()
    complete(engine, work, "recguide", alone=False)
    for method in ("ar", "recguide"):
        texts = complete(engine, work, method, alone=False)
        rows.append({"condition": "after a prefix hit", "method": method, **held_against(reference, texts)})
    return rows


def costs(engines: Mapping[str, Engine], work: Workload, loads: Sequence[int]) -> list[dict[str, Any]]:
    """Tokens per second of the "exact" and the "default" engine, decode-only steps, by method and load.

    Where a load exceeds the prompts, they come again.
    """
    found: list[dict[str, Any]] = []
    for method in ("ar", "recguide"):
        for load in loads:
            params = [work.params(i, method, logprobs=False) for i in range(load)]
            prompts = [work.prompts[i % len(work.prompts)] for i in range(load)]
            row: dict[str, Any] = {"method": method, "load": load}
            for mode, engine in engines.items():
                decode(engine, prompts, params)  # compiles, captures
                row[f"{mode}_tokens_per_s"] = decode(engine, prompts, params).tokens_per_s
            row["exact_over_default"] = row["exact_tokens_per_s"] / row["default_tokens_per_s"]
            found.append(row)
    return found


def targets(rows: Sequence[dict[str, Any]]) -> list[Target]:
    """Nothing may differ, somebody must have been preempted, and some prompt found in the cache."""
    found: list[Target] = []
    for row in rows[1:]:
        name = f"{row['condition']}, {row['method']}"
        found.append(Target.at_most(f"{name}: texts that differ", row["differing_texts"], 0))
        found.append(Target.at_most(f"{name}: log-probabilities that differ", row["differing_logprobs"], 0))
        if row["condition"] == "after preemption":
            found.append(Target.at_least(f"{name}: preemptions", row["preemptions"], 1))
        if row["condition"] == "after a prefix hit":
            found.append(Target.at_least(f"{name}: prompts with a hit", row["prefix_hits"], 1))
    return found


def read_texts(files: Sequence[Path], count: int) -> list[str]:
    """Prompts of all files by turns."""
    each = [[prompt.text for prompt in read_prompts(file)][:count] for file in files]
    by_turns = chain.from_iterable(zip(*each, strict=False))
    return list(by_turns)[:count]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--prompts", type=Path, nargs="+", default=[PROMPTS / f"{task}.jsonl.gz" for task in TASKS]
    )
    parser.add_argument("--count", type=int, default=200, help="prompts")
    parser.add_argument("--tokens", type=int, default=256, help="new tokens of each")
    parser.add_argument("--together", type=int, default=64)
    parser.add_argument("--kv", type=int, default=65_536, help="tokens of KV that fit all that run together")
    parser.add_argument("--scarce-kv", type=int, default=12_288)
    parser.add_argument("--quick", action="store_true", help="16 prompts of 32 tokens")
    parser.add_argument("--output", type=Path, default=RESULTS / "exact_mode.json")
    options = parser.parse_args(arguments)
    if options.quick:
        options.count, options.tokens, options.together = 16, 32, 8
        options.kv, options.scarce_kv = 8192, 1024
    return options


def main() -> None:
    options = parse()

    def make(exact: bool, kv: int, *, prefix_cache: bool = False) -> Engine:
        llm = LLM(
            options.model,
            dtype=options.dtype,
            exact=exact,
            max_running=options.together,
            kv_cache_tokens=kv,
            max_model_len=MODEL_LEN,
            prefix_cache=prefix_cache,
        )
        return llm.engine

    tokenizer = Tokenizer.load(sources.resolve(options.model, None, ignore_progress))
    texts = read_texts(options.prompts, options.count)
    ids = [tokenizer.chat([{"role": "user", "content": text}]) for text in texts]
    work = Workload(ids, options.tokens)
    roomy = make(True, options.kv)
    rows = conditions(
        roomy,
        lambda: make(True, options.scarce_kv),
        lambda: make(True, options.kv, prefix_cache=True),
        work,
        together=options.together,
    )
    print(text_table(rows, COLUMNS), "\n")
    engines = {"exact": roomy, "default": make(False, options.kv)}
    price = costs(engines, work, loads=(1, options.together))
    print(text_table(price, COST_COLUMNS))
    asked = targets(rows)
    write_result(
        options.output,
        device=resolve_device("auto"),
        settings={
            "model": options.model,
            "dtype": options.dtype,
            "prompts": len(ids),
            "longest_prompt": max(map(len, ids)),
            "tokens": options.tokens,
            "blocks": dict(work.blocks),
            "temperatures": [0.0, 0.8],
            "together": options.together,
            "kv_tokens": options.kv,
            "scarce_kv_tokens": options.scarce_kv,
        },
        rows=[*rows, *price],
        targets=asked,
    )
    print("\n" + short_table(asked))


if __name__ == "__main__":
    main()
