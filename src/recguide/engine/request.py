"""One choice of one prompt while it is being decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from recguide.core import (
    MAX_BLOCK,
    Chunk,
    Completion,
    FinishReason,
    Origin,
    RecGuideError,
    RoundStats,
    SamplingParams,
    TokenLogprobs,
)
from recguide.engine.text import TextStream
from recguide.guidance.history import History
from recguide.kv.tables import BlockTable
from recguide.speculation.grammar import Matcher
from recguide.speculation.methods import Method
from recguide.speculation.rows import Draft


class Sampling(NamedTuple):
    """How a request's tokens are drawn: the sampling seed (any at temperature 0) and the temperature."""

    seed: int
    temperature: float


@dataclass(slots=True, eq=False)
class Request:
    """A request's state; from the end of prefill on, cached = prompt + emitted − 1.

    Attributes:
        arrival: order of arrival; a smaller number is older.
        choice: which of the prompt's n choices this is.
        params: sampling parameters with the sampling seed resolved.
        block: B, slots of a full block; where a policy chooses, the most that it has planned last.
        sampling: what a picker is told: sampling seed and temperature.
        stops: token ids that end it.
        matcher: what its structure allows; None without one.
        by_logits: whether its picks take more than a picker is told: edits, filters, the likeliest tokens.
        policy: name of the policy that chooses its blocks and branches; None goes by method and block.
        largest: slots of any block at most.
        history: what its verified rounds say, kept where a policy or a trace asks for it.
        traced: whether a trace takes its rounds down; warm-up is none of them.
        arrived: when it came, in seconds of `time.monotonic`.
        waited: forwards in a row that batching has left it out of.
        cached: committed length, tokens whose KV later rows may read.
        error: why it was aborted, if the model failed it.
        inbox: chunks that whoever reads this request has not taken yet.
        draft: the draft in hand, complete or with masked slots; None if a draft has to start anew.
    """

    arrival: int
    choice: int
    prompt: tuple[int, ...]
    params: SamplingParams
    method: Method
    block: int
    table: BlockTable
    text: TextStream
    sampling: Sampling
    stops: tuple[int, ...]
    by_logits: bool
    matcher: Matcher | None = None
    policy: str | None = None
    largest: int = MAX_BLOCK
    history: History | None = None
    traced: bool = False
    arrived: float = 0.0
    waited: int = 0
    cached: int = 0
    draft: Draft | None = None
    emitted: list[int] = field(default_factory=list[int])
    origins: list[Origin] = field(default_factory=list[Origin])
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    stats: RoundStats = field(default_factory=RoundStats)
    inbox: deque[Chunk] = field(default_factory=deque[Chunk])
    error: RecGuideError | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def prefill_end(self) -> int:
        """Tokens to cache before decoding: the prompt, or after a preemption all but the seed."""
        emitted = len(self.emitted)
        return len(self.prompt) + (emitted - 1 if emitted else 0)

    @property
    def committed(self) -> Sequence[int]:
        """Prompt and emitted tokens whose KV is cached."""
        return self.known(0, self.cached)

    @property
    def is_scoring(self) -> bool:
        """Whether log-probabilities of the prompt are still asked for."""
        wanted = self.params.prompt_logprobs is not None
        return wanted and len(self.prompt_logprobs) < len(self.prompt) - 1

    @property
    def reusable(self) -> int:
        """Known tokens that may be cached when it is admitted.

        All slots of a prompt that is asked about have to run, and else its last, which picks the first token.
        """
        if self.is_scoring:
            return 0
        return self.prefill_end if self.emitted else self.prefill_end - 1

    def rewind(self) -> None:
        """Nothing is cached any more, and there is no draft."""
        self.cached = 0
        self.draft = None
        if self.is_scoring:
            self.prompt_logprobs.clear()

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.params.max_tokens - len(self.emitted)

    @property
    def seed_token(self) -> int:
        """Slot 0 of the next block: emitted, not cached yet."""
        return self.emitted[-1]

    def known(self, start: int, end: int) -> Sequence[int]:
        """Prompt and emitted tokens at absolute positions [start, end)."""
        prompt = len(self.prompt)
        return (*self.prompt[start:end], *self.emitted[max(0, start - prompt) : max(0, end - prompt)])

    def completion(self) -> Completion:
        assert self.finish_reason is not None, "a running request has no completion"
        assert self.params.seed is not None, "the sampling seed is resolved at admission"
        return Completion(
            index=self.choice,
            text=self.text.text,
            token_ids=tuple(self.emitted),
            origins=tuple(self.origins),
            logprobs=None if self.params.logprobs is None else tuple(self.logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            seed=self.params.seed,
            stats=self.stats,
            prompt_logprobs=None if self.params.prompt_logprobs is None else tuple(self.prompt_logprobs),
        )
