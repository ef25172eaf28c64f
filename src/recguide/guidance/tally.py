"""What happened in a simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from recguide.guidance.view import Head


@dataclass(slots=True)
class Tally:
    """What happened after the warm-up.

    Attributes:
        ms, tokens, forwards, query_tokens: of all forwards; idle time included in `ms`.
        rates: tokens per second of each request that started and ended, waiting for a seat included.
        blocks: drafts begun, by block; `verified`: causal rows, by slots.
        branches, reused: by kind: "continuation", "correction 1", …
        prices: (ms since the start, price, query tokens) of every forward.
    """

    ms: float = 0.0
    tokens: int = 0
    forwards: int = 0
    query_tokens: int = 0
    rates: list[float] = field(default_factory=list[float])
    blocks: Counter[int] = field(default_factory=Counter[int])
    verified: Counter[int] = field(default_factory=Counter[int])
    branches: Counter[str] = field(default_factory=Counter[str])
    reused: Counter[str] = field(default_factory=Counter[str])
    prices: list[tuple[float, float, int]] = field(default_factory=list[tuple[float, float, int]])

    @property
    def throughput(self) -> float:
        """Tokens per second."""
        return 1e3 * self.tokens / self.ms if self.ms else 0.0

    @property
    def request_rate(self) -> float:
        """Mean tokens per second of a request."""
        return float(np.mean(self.rates)) if self.rates else 0.0


def kind(head: int) -> str:
    """A branch's kind as tallies name it."""
    return "continuation" if head == Head.CONTINUATION else f"correction {head}"
