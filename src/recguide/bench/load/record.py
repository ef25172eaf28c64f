"""What is known of one request: times as the client saw them, counts as the server said them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Arrival:
    """A chunk that brought text.

    Attributes:
        at_s: when it arrived, seconds since the load's start.
        characters: of its text.
        tokens: as the server said, by token ids, log-probabilities or running usage; None if it did not.
    """

    at_s: float
    characters: int
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Record:
    """One request and its answer; times are seconds since the load's start.

    Attributes:
        turn, number: which request of which turn; the same pair asks the same of another endpoint.
        prompt: place of its prompt in the file.
        scheduled_s: when it was due. Latencies count from here.
        sent_s: when the client got to it.
        ended_s: when its answer or its failure was complete.
        arrivals: the chunks with text, in order.
        text: all of it, reasoning first.
        finish_reason: as the server said.
        prompt_tokens, cached_tokens, output_tokens: of `usage`; None where the server did not say.
        error: kind of failure, None for a whole answer; `detail` says more.
        speculation: `metrics.speculative_decoding` of the answer, if it has one.
    """

    turn: int
    number: int
    prompt: int
    scheduled_s: float
    sent_s: float
    ended_s: float
    arrivals: tuple[Arrival, ...]
    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    error: str | None
    detail: str
    speculation: Mapping[str, Any] | None
