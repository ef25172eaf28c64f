"""How much of a step on the CPU is spent in linear layers, the part that speculation cannot avoid.

Decodes with the demo model, greedily and sampled, once for the wall clock and once under the profiler. The
profiler's own cost falls on small operations, so linear time is set against both: the self time of all
operations as the profiler sees them, and the wall clock without it (which has Python's share too).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from recguide import LLM, SamplingParams
from recguide.bench.results import Target, write_result

PROMPT = "Explain how rainbows form, and why the colours always come in the same order."
LINEAR = ("aten::addmm", "aten::mm", "aten::addmm_", "mkldnn::_linear_pointwise")


def linear_share(llm: LLM, params: SamplingParams) -> dict[str, float]:
    """Shares of linear layers in one decoded prompt, and milliseconds per forward."""
    ids = llm.tokenizer.chat([{"role": "user", "content": PROMPT}])
    llm.generate([ids], params)
    began = time.perf_counter()
    (result,) = llm.generate([ids], params)
    wall_us = (time.perf_counter() - began) * 1e6
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        llm.generate([ids], params)
    events = trace.key_averages()
    linear_us = sum(event.self_cpu_time_total for event in events if event.key in LINEAR)
    stats = result.completions[0].stats
    return {
        "share_of_operations": linear_us / sum(event.self_cpu_time_total for event in events),
        "share_of_wall": linear_us / wall_us,
        "ms_per_forward": wall_us / 1e3 / (stats.forwards + stats.prefill_forwards),
        "query_tokens_per_forward": stats.query_tokens / stats.forwards,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "cpu_profile.json")
    options = parser.parse_args()
    llm = LLM(options.model, device="cpu")
    rows, targets = [], []
    for method in ("ar", "linear", "recguide"):
        for temperature in (0.0, 1.0):
            params = SamplingParams(
                temperature=temperature,
                seed=1,
                max_tokens=options.tokens,
                method=method,
                block_size=None if method == "ar" else 16,
                ignore_eos=True,
            )
            row = {"method": method, "temperature": temperature, **linear_share(llm, params)}
            print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
            rows.append(row)
            name = f"{method}, temperature {temperature}: linear layers' share of operations"
            targets.append(Target.at_least(name, row["share_of_operations"], 0.85))
    write_result(
        options.output,
        settings={"model": options.model, "tokens": options.tokens, "dtype": "float32", "prompt": PROMPT},
        rows=rows,
        targets=targets,
    )


if __name__ == "__main__":
    main()
