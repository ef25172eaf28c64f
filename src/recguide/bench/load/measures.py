"""Latencies of one request, in milliseconds, all of them as its client saw them.

Several tokens per chunk are normal here: a round emits them together. So two things are kept apart. A *gap*
is the time between two chunks: how long a reader stares at a still screen. The *inter-token latency* of a
token is the gap before its chunk divided by the chunk's tokens: a chunk of 4 tokens after 20 ms counts as
four tokens of 5 ms; not as 20, 0, 0, 0, whose median says nothing, nor as one of 20, which punishes drafts.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from recguide.bench.load.record import Record

Counted = Literal["server", "characters"]
"""Where a chunk's tokens are known from: the server said it, or usage's total is shared out by characters."""


def ttft_ms(record: Record) -> float | None:
    """Time to first token: from when the request was due to its first chunk with text."""
    return _ms(record.arrivals[0].at_s - record.scheduled_s) if record.arrivals else None


def e2e_ms(record: Record) -> float:
    """From when the request was due to the end of its answer."""
    return _ms(record.ended_s - record.scheduled_s)


def tpot_ms(record: Record) -> float | None:
    """Time per output token after the first: (last chunk − first chunk) ÷ (tokens − 1)."""
    tokens = record.output_tokens
    if tokens is None or tokens < 2 or len(record.arrivals) < 2:
        return None
    return _ms(record.arrivals[-1].at_s - record.arrivals[0].at_s) / (tokens - 1)


def gaps_ms(record: Record) -> list[float]:
    """Times between neighbouring chunks."""
    return [_ms(after.at_s - before.at_s) for before, after in pairwise(record.arrivals)]


def inter_token_ms(record: Record) -> list[tuple[float, float]]:
    """(latency of each token of a chunk, tokens of the chunk) for every chunk after the first."""
    pairs = zip(gaps_ms(record), chunk_tokens(record)[1:], strict=True) if record.arrivals else ()
    return [(gap / tokens, tokens) for gap, tokens in pairs if tokens > 0]


def counted_by(record: Record) -> Counted | None:
    """How `chunk_tokens` knows; None where it cannot."""
    if record.arrivals and all(arrival.tokens is not None for arrival in record.arrivals):
        return "server"
    return None if record.output_tokens is None else "characters"


def chunk_tokens(record: Record) -> list[float]:
    """Tokens of each chunk, fractions where they are shared out; zeros where nothing is known."""
    by = counted_by(record)
    if by == "server":
        return [float(arrival.tokens or 0) for arrival in record.arrivals]
    characters = sum(arrival.characters for arrival in record.arrivals)
    if by is None or not characters or record.output_tokens is None:
        return [0.0] * len(record.arrivals)
    return [record.output_tokens * arrival.characters / characters for arrival in record.arrivals]


def _ms(seconds: float) -> float:
    return 1000 * seconds
