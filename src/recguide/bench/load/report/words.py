"""What the numbers of a load are called, on the page and on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from recguide.bench.load.summary import Summary

LATENCIES: Mapping[str, tuple[str, str]] = {
    "ttft_ms": ("TTFT", "time to first token: from when a request was due to its first chunk with text"),
    "inter_token_ms": (
        "ITL",
        "inter-token latency: the gap before a chunk divided by the chunk's tokens, once for each token",
    ),
    "gap_ms": ("gap", "time between two chunks of an answer: how long a reader sees nothing new"),
    "tpot_ms": ("TPOT", "time per output token of an answer: (last chunk - first chunk) / (tokens - 1)"),
    "e2e_ms": ("E2E", "from when a request was due to the end of its answer"),
}
"""Field of Summary → its short name, and what it is."""


def headline(summary: Summary) -> dict[str, str]:
    """The figures that are asked for first."""
    figures = {
        "output tokens/s": number(summary.output_tokens_per_s),
        "requests/s": number(summary.requests_per_s),
        "TTFT p50 / p99, ms": _pair(summary, "ttft_ms"),
        "ITL p50 / p99, ms": _pair(summary, "inter_token_ms"),
        "TPOT p50 / p99, ms": _pair(summary, "tpot_ms"),
    }
    if summary.goodput is not None:
        share = summary.goodput.share
        figures["goodput"] = (
            "unknown" if share is None else f"{number(summary.goodput.per_s)}/s ({share:.0%})"
        )
    if summary.speculation is not None:
        figures["acceptance A"] = number(summary.speculation.mean_acceptance)
    figures["failed"] = f"{summary.requests - summary.whole} of {summary.requests}"
    return figures


def number(value: float | int | None) -> str:
    """Three significant digits; whole from 100 on; "unknown" where there is none."""
    if value is None:
        return "unknown"
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _pair(summary: Summary, field: str) -> str:
    found = getattr(summary, field)
    return "unknown" if found is None else f"{number(found.p50)} / {number(found.p99)}"
