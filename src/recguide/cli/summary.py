"""What a run saved: one table for people, one object for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from recguide.bench.exactness import first_difference
from recguide.bench.totals import Totals, add_up
from recguide.core import Completion, Generation, RoundStats, TokenLogprobs

COMPUTE_BOUND = (
    "Wall clock: a CPU is compute-bound, where a forward over more tokens takes longer, so fewer forwards "
    "need not take less time; a GPU is not at low load: a hundred tokens cost about as much as one."
)
PLAIN = "plain AR"


@dataclass(frozen=True, slots=True)
class Run:
    """All generations of one method and the seconds that they took, loading excluded."""

    method: str
    generations: Sequence[Generation]
    seconds: float

    @property
    def completions(self) -> list[Completion]:
        return [completion for generation in self.generations for completion in generation.completions]

    @property
    def totals(self) -> Totals:
        return add_up(self.completions)


def difference(one: Run, other: Run) -> str | None:
    """Where two runs of the same prompts first differ, None if nowhere."""
    for index, (a, b) in enumerate(zip(one.completions, other.completions, strict=True)):
        at = first_difference(a.token_ids, b.token_ids)
        if at is not None:
            return f"text {index} differs at token {at}"
    return None


FIGURES = (
    "tokens",
    "forwards",
    "TPF",
    "TPF with prefill",
    "mean acceptance",
    "coverage",
    "reuse",
    "seconds",
    "tokens/s",
)


def table(runs: Sequence[Run]) -> Table:
    """One column a method, one line a figure."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("")
    for run in runs:
        grid.add_column(PLAIN if run.method == "ar" else run.method, justify="right", min_width=12)
    for figure, *cells in zip(FIGURES, *(_cells(run) for run in runs), strict=True):
        grid.add_row(figure, *cells)
    return grid


def _cells(run: Run) -> list[str]:
    """One text for each of FIGURES."""
    totals = run.totals
    stats = totals.stats
    rounds = [f"{stats.mean_acceptance:.2f}", f"{stats.coverage:.0%}", f"{stats.reuse:.0%}"]
    return [
        str(stats.tokens),
        f"{stats.forwards} + {stats.prefill_forwards} prefill",
        f"{totals.tpf:.2f}",
        f"{totals.tpf_with_prefill:.2f}",
        *(rounds if stats.rounds else ["-"] * 3),
        f"{run.seconds:.1f}",
        f"{stats.tokens / run.seconds:.1f}",
    ]


def saved(run: Run, plain: Run) -> str:
    """How many of plain decoding's forwards a method did without."""
    before, after = plain.totals.stats.forwards, run.totals.stats.forwards
    share = (before - after) / before if before else 0.0
    return f"{before - after} of {before} forwards saved ({share:.0%})"


def rounds_table(run: Run) -> Table:
    """How many rounds emitted how many tokens, and what became of the branches."""
    stats = run.totals.stats
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("acceptance", "rounds", ""):
        grid.add_column(head, justify="left" if not head else "right")
    most = max(stats.acceptance.values(), default=1)
    for acceptance, count in sorted(stats.acceptance.items()):
        grid.add_row(str(acceptance), str(count), "█" * max(1, round(40 * count / most)))
    for kind, ran in sorted(stats.branches.items()):
        fate = f"{ran} branches, {stats.covered[kind]} in place, {stats.reused[kind]} reused"
        grid.add_row(kind, "", fate)
    return grid


# --- for machines -------------------------------------------------------------------------------------------


def run_object(run: Run, prompts: Sequence[str]) -> dict[str, object]:
    return {
        "method": run.method,
        "seconds": run.seconds,
        "tpf": run.totals.tpf,
        "tpf_with_prefill": run.totals.tpf_with_prefill,
        **stats_object(run.totals.stats),
        "generations": [
            {
                "prompt": prompt,
                "prompt_tokens": len(generation.prompt_token_ids),
                "choices": [choice_object(completion) for completion in generation.completions],
            }
            for prompt, generation in zip(prompts, run.generations, strict=True)
        ],
    }


def choice_object(completion: Completion) -> dict[str, object]:
    return {
        "index": completion.index,
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "origins": [origin.value for origin in completion.origins],
        "finish_reason": completion.finish_reason.value,
        "stop_reason": completion.stop_reason,
        "seed": completion.seed,
        "logprobs": _logprobs_object(completion.logprobs),
        "prompt_logprobs": _logprobs_object(completion.prompt_logprobs),
        "stats": {
            "tpf": completion.stats.tpf,
            "tpf_with_prefill": completion.stats.tpf_with_prefill,
            "tpf_untrimmed": completion.stats.tpf_untrimmed,
            **stats_object(completion.stats),
        },
    }


def _logprobs_object(logprobs: Sequence[TokenLogprobs] | None) -> list[dict[str, object]] | None:
    if logprobs is None:
        return None
    return [
        {"logprob": entry.logprob, "top": {str(token): value for token, value in entry.top.items()}}
        for entry in logprobs
    ]


def stats_object(stats: RoundStats) -> dict[str, object]:
    """Counts and shares of rounds; histograms keyed by the value counted."""
    return {
        "tokens": stats.tokens,
        "forwards": stats.forwards,
        "prefill_forwards": stats.prefill_forwards,
        "prefix_hit_tokens": stats.prefix_hit_tokens,
        "preemptions": stats.preemptions,
        "query_tokens": stats.query_tokens,
        "rounds": stats.rounds,
        "acceptance": stats.mean_acceptance,
        "coverage": stats.coverage,
        "reuse": stats.reuse,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "acceptance_histogram": _keyed(stats.acceptance),
        "branches": _keyed(stats.branches),
        "covered": _keyed(stats.covered),
        "reused": _keyed(stats.reused),
    }


def _keyed(counts: Mapping[int, int] | Mapping[str, int]) -> dict[str, int]:
    return {str(key): count for key, count in sorted(counts.items(), key=lambda item: item[0])}
