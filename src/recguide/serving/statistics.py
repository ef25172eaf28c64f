"""What speculation did for one answer: the object `metrics.speculative_decoding` of a response.

The first seven fields, their names and types are the schema that vLLM established, so clients that read them
read ours; the others are RecGuide's own. A round cut short by a stop or cap counts only what it returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from recguide.core import Completion, RoundStats


def speculative_metrics(completions: Sequence[Completion], acceptance: str = "") -> dict[str, object]:
    """The statistics of one prompt's choices, added up; of each one too where there are several.

    `acceptance` says so if drafts are not the model's own.
    """
    total = RoundStats()
    for completion in completions:
        total.add(completion.stats)
    found = _of(total, choices=len(completions))
    if len(completions) > 1:
        found["choices"] = [
            {"index": completion.index, **_of(completion.stats, choices=1)} for completion in completions
        ]
    if acceptance:
        found["acceptance"] = acceptance
    return found


def _of(stats: RoundStats, *, choices: int) -> dict[str, object]:
    steps = stats.matched.total()
    after_first = max(0, stats.tokens - choices)
    return {
        "mean_acceptance_length": 1.0 + _share(stats.accepted, steps),
        "draft_acceptance_rate": _share(stats.accepted, stats.drafted),
        "acceptance_histogram": acceptance_histogram(stats),
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": stats.accepted,
        "num_draft_tokens": stats.drafted,
        "num_spec_tokens": _longest_draft(stats),
        "acceptance_per_position": acceptance_per_position(stats),
        "tokens_per_forward": _share(after_first, stats.forwards),
        "tokens_per_forward_with_prefill": _share(after_first, stats.forwards + stats.prefill_forwards),
        "forwards": stats.forwards,
        "prefill_forwards": stats.prefill_forwards,
        "query_tokens": stats.query_tokens,
        "coverage": stats.coverage,
        "reuse": stats.reuse,
        "blocks": _keyed(stats.blocks),
        "branches": {
            kind: {"run": run, "covered": stats.covered[kind], "reused": stats.reused[kind]}
            for kind, run in sorted(stats.branches.items())
        },
        "continued_steps": stats.continued,
        "drafts_begun": stats.begun,
    }


def acceptance_histogram(stats: RoundStats) -> list[int]:
    """Rounds that matched exactly j draft slots, j from 0 to the longest draft."""
    return [stats.matched[matched] for matched in range(_longest_draft(stats) + 1)]


def acceptance_per_position(stats: RoundStats) -> list[float]:
    """Of the rounds that drafted slot i, the share that matched it; i from 1 to the longest draft."""
    longest = _longest_draft(stats)
    return [
        _share(matched, drafted)
        for matched, drafted in zip(
            _at_least([stats.matched[i] for i in range(1, longest + 1)]),
            _at_least([stats.blocks[i + 1] for i in range(1, longest + 1)]),
            strict=True,
        )
    ]


def _longest_draft(stats: RoundStats) -> int:
    """Draft slots of the longest verified block; 0 if nothing was drafted and verified."""
    return max(stats.blocks, default=1) - 1 if stats.matched else 0


def _at_least(counts: Sequence[int]) -> list[int]:
    """Counts of a value → counts of that value or more."""
    return list(accumulate(reversed(counts)))[::-1]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _keyed(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(key): count for key, count in sorted(counts.items())}
