"""What comes back: completions, their chunks, and what rounds did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from recguide.core.light import light


class Origin(StrEnum):
    """How a token came to be emitted."""

    PREFILL = "prefill"
    AR = "ar"
    ACCEPTED = "accepted"
    REUSED = "reused"
    """An accepted draft token whose draft came from a branch."""
    CORRECTION = "correction"
    BONUS = "bonus"
    DIFFUSION = "diffusion"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Raw log-probabilities at one token: its own, and the most likely tokens' (id → logprob)."""

    logprob: float
    top: Mapping[int, float]


@dataclass(slots=True)
class RoundStats:
    """What a request's rounds did. Sums over requests add field by field.

    Attributes:
        tokens: tokens returned.
        untrimmed: tokens after the first before stops and caps cut them; all else counts what was kept.
        forwards: forwards in which the request had a row that was not prefill.
        prefill_forwards: forwards in which it only prefilled.
        acceptance: histogram of A over rounds that had a draft.
        matched: histogram of matched draft slots over the same rounds: A − 1, or all of a round cut short.
        blocks: histogram of verified block lengths.
        drafted, accepted: draft slots offered to the verifier, and those that matched.
        branches: branches run, by kind.
        covered, reused: rounds whose outcome slot some branch predicted, and whose branch was used, by kind.
        query_tokens: query tokens of its rows, prefill excluded.
        prefix_hit_tokens: prompt tokens whose KV was cached when the request was admitted.
        preemptions: how often it lost its KV and had it computed again.
        continued, begun: AR steps and prefills that a continuation ran beside, and those whose next draft it
            became. No draft was verified there, so they count neither as branches nor as rounds.
    """

    tokens: int = 0
    untrimmed: int = 0
    forwards: int = 0
    prefill_forwards: int = 0
    acceptance: Counter[int] = field(default_factory=Counter[int])
    matched: Counter[int] = field(default_factory=Counter[int])
    blocks: Counter[int] = field(default_factory=Counter[int])
    drafted: int = 0
    accepted: int = 0
    branches: Counter[str] = field(default_factory=Counter[str])
    covered: Counter[str] = field(default_factory=Counter[str])
    reused: Counter[str] = field(default_factory=Counter[str])
    query_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    continued: int = 0
    begun: int = 0

    @property
    def rounds(self) -> int:
        return sum(self.acceptance.values())

    @property
    def mean_acceptance(self) -> float:
        """Mean A over rounds with a draft; 1 without any."""
        return sum(a * n for a, n in self.acceptance.items()) / self.rounds if self.rounds else 1.0

    @property
    def tpf(self) -> float:
        """Tokens returned after the first per forward in which the request did not prefill."""
        return max(0, self.tokens - 1) / self.forwards if self.forwards else 0.0

    @property
    def tpf_with_prefill(self) -> float:
        """Like `tpf`, with prefill forwards counted too."""
        total = self.forwards + self.prefill_forwards
        return max(0, self.tokens - 1) / total if total else 0.0

    @property
    def tpf_untrimmed(self) -> float:
        return self.untrimmed / self.forwards if self.forwards else 0.0

    @property
    def coverage(self) -> float:
        return sum(self.covered.values()) / self.rounds if self.rounds else 0.0

    @property
    def reuse(self) -> float:
        return sum(self.reused.values()) / self.rounds if self.rounds else 0.0

    def add(self, other: RoundStats) -> None:
        for name in (
            "tokens",
            "untrimmed",
            "forwards",
            "prefill_forwards",
            "drafted",
            "accepted",
            "query_tokens",
            "prefix_hit_tokens",
            "preemptions",
            "continued",
            "begun",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("acceptance", "matched", "blocks", "branches", "covered", "reused"):
            getattr(self, name).update(getattr(other, name))


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished choice.

    `text` has no special tokens and is cut before a stop string; `token_ids`, `origins` and `logprobs` have
    one entry for each emitted token, up to and with the one that ended the text; `prompt_logprobs` one for
    each token of the prompt but the first.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    seed: int
    stats: RoundStats
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None


@light
class Chunk:
    """What a stream yields: the text and tokens that one commit added to one choice."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    completion: Completion | None = None
    """Set in the last chunk of a choice."""


@dataclass(frozen=True, slots=True)
class Generation:
    """All choices of one prompt."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    completions: tuple[Completion, ...]

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.completions[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.completions[0].token_ids

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        """Of every token of the prompt but the first, if they were asked for."""
        return self.completions[0].prompt_logprobs
