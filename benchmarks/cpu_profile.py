"""How much of a step on the CPU is spent in linear layers, the part that speculation cannot avoid.

Decodes with the demo model under the profiler, greedily and sampled, and sums the self time of matrix
products against everything else: attention, norms, packing, picks, settle and commit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from recguide import LLM, SamplingParams
from recguide.bench.results import Target, write_result

PROMPT = "Explain how rainbows form, and why the colours always come in the same order."
LINEAR = ("aten::addmm", "aten::mm", "aten::linear", "aten::addmm_", "mkldnn::_linear_pointwise")


def linear_share(llm: LLM, params: SamplingParams) -> dict[str, float]:
    """Share of wall time in linear layers, and milliseconds per forward, of one decoded prompt."""
    ids = llm.model.tokenizer.chat([{"role": "user", "content": PROMPT}])
    llm.generate([ids], params)
    with profile(activities=[ProfilerActivity.CPU]) as trace, torch.profiler.record_function("decode"):
        (result,) = llm.generate([ids], params)
    events = trace.key_averages()
    total = next(event.cpu_time_total for event in events if event.key == "decode")
    linear = sum(event.self_cpu_time_total for event in events if event.key in LINEAR)
    stats = result.completions[0].stats
    forwards = stats.forwards + stats.prefill_forwards
    return {
        "linear_share": linear / total,
        "ms_per_forward": total / 1e3 / forwards,
        "query_tokens_per_forward": stats.query_tokens / max(1, stats.forwards),
        "forwards": forwards,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--adapter", default="auto")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "cpu_profile.json")
    options = parser.parse_args()
    llm = LLM(options.model, adapter=options.adapter, device="cpu")
    rows, targets = [], []
    for method in ("ar", "linear", "recguide"):
        for temperature in (0.0, 0.7, 1.0):
            params = SamplingParams(
                temperature=temperature, seed=1, max_tokens=options.tokens, method=method, ignore_eos=True
            )
            row = {"method": method, "temperature": temperature, **linear_share(llm, params)}
            print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
            rows.append(row)
            targets.append(
                Target.at_least(f"{method} T={temperature}: linear share", row["linear_share"], 0.85)
            )
    write_result(
        options.output,
        settings={"model": options.model, "tokens": options.tokens, "dtype": "float32"},
        rows=rows,
        targets=targets,
    )


if __name__ == "__main__":
    main()
