"""One request from its arrival to its end: what metrics, access log, span and answer say of it."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from types import TracebackType
from typing import Protocol, Self

from recguide.core import (
    Chunk,
    Completion,
    FinishReason,
    Origin,
    ParameterError,
    RecGuideError,
    RoundStats,
)
from recguide.engine.errors import DeadlineExceeded
from recguide.serving.errors import api_error
from recguide.serving.events import CLIENT_GONE
from recguide.serving.metrics import Metrics
from recguide.serving.statistics import speculative_metrics

ACCESS = logging.getLogger("recguide.access")

ABORTED, REFUSED, LATE, FAILED = "abort", "refused", "deadline", "error"
"""Outcomes of requests that have no finish reason."""
DRAFTED = frozenset({Origin.ACCEPTED, Origin.REUSED, Origin.CORRECTION, Origin.BONUS})
"""What the tokens of a round with a draft are; a chunk holds what one round returned."""
REASONS = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT)
"""Several choices' outcome is the last of theirs in this order."""


class Span(Protocol):
    """A request as OpenTelemetry sees it."""

    def event(self, name: str) -> None: ...

    def end(self, outcome: str, fields: Mapping[str, object]) -> None: ...


BeginSpan = Callable[[str, str, Mapping[str, str]], Span]
"""(request id, route, the request's headers) → its span."""


class Follower:
    """Begins to follow requests.

    Args:
        metrics: counts them.
        begin_span: begins their spans; None makes none.
        clock: seconds that only ever grow.

    Attributes:
        acceptance: what has to stand beside figures of speculation, once the engine has said it.
    """

    def __init__(
        self,
        metrics: Metrics,
        begin_span: BeginSpan | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.metrics = metrics
        self.begin_span = begin_span
        self.clock = clock
        self.acceptance = ""

    def request(
        self,
        request_id: str,
        route: str,
        prompt_tokens: Sequence[int],
        *,
        headers: Mapping[str, str] | None = None,
        arrived: float | None = None,
    ) -> Followed:
        """A request that was accepted; to be used in a `with` around all that answers it.

        Args:
            prompt_tokens: tokens of each of its prompts.
            headers: the request's, which may name the client's span.
            arrived: reading of the clock when it came; None is now.
        """
        begin = self.begin_span
        span = None if begin is None else begin(request_id, route, headers or {})
        began = self.clock() if arrived is None else arrived
        return Followed(self, request_id, route, prompt_tokens, began, span)


class Followed:
    """A request that is being answered.

    Leaving the `with` ends it: by its finish reasons where nothing was raised, as aborted where it was left
    or cancelled before all of them were known, else by the error.
    """

    def __init__(
        self,
        follower: Follower,
        request_id: str,
        route: str,
        prompt_tokens: Sequence[int],
        began: float,
        span: Span | None,
    ) -> None:
        self._follower = follower
        self._id, self._route, self._prompt_tokens = request_id, route, prompt_tokens
        self._began, self._span = began, span
        self._first: dict[tuple[int, int], float] = {}
        self._last: dict[tuple[int, int], float] = {}
        self._done: dict[tuple[int, int], Completion] = {}
        self._tokens = 0
        self._acceptance: Counter[int] = Counter()

    def __enter__(self) -> Self:
        self._follower.metrics.arrived(sum(self._prompt_tokens))
        return self

    def chunk(self, chunk: Chunk, prompt: int = 0) -> None:
        """A chunk of one of its prompts came."""
        choice, metrics, now = (prompt, chunk.index), self._follower.metrics, self._follower.clock()
        if chunk.token_ids:
            self._tokens += len(chunk.token_ids)
            if DRAFTED.intersection(chunk.origins):
                self._acceptance[len(chunk.token_ids)] += 1
            if choice in self._last:
                metrics.tokens(now - self._last[choice])
            else:
                self._began_choice(choice, now)
            self._last[choice] = now
        if chunk.completion is not None:
            self._done[choice] = chunk.completion
            seconds = self._last.get(choice, now) - self._first.get(choice, now)
            metrics.choice(chunk.completion.stats, self._prompt_tokens[prompt], seconds)

    def _began_choice(self, choice: tuple[int, int], now: float) -> None:
        if not self._first and self._span is not None:
            self._span.event("first token")
        self._first[choice] = now
        self._follower.metrics.first_token(now - self._began)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome = self._outcome(error)
        seconds = self._follower.clock() - self._began
        self._follower.metrics.finished(outcome, seconds)
        fields = self._fields(outcome, _status(outcome, error), seconds)
        ACCESS.info(_line(fields), extra={"fields": fields})
        if self._span is not None:
            self._span.end(outcome, fields)

    @property
    def completions(self) -> list[Completion]:
        """Those that have ended, by prompt and choice."""
        return [completion for _, completion in sorted(self._done.items())]

    def answer_metrics(self) -> dict[str, object]:
        """The object `metrics` of the answer: times, and what speculation did."""
        first = min(self._first.values(), default=self._began)
        generation = max(self._last.values(), default=first) - first
        after_first = self._tokens - len(self._first)
        return {
            "time_to_first_token_ms": 1e3 * (first - self._began),
            "generation_time_ms": 1e3 * generation,
            "mean_itl_ms": 1e3 * generation / after_first if after_first else 0.0,
            "tokens_per_second": after_first / generation if generation else 0.0,
            "speculative_decoding": speculative_metrics(self.completions, self._follower.acceptance),
        }

    def _outcome(self, error: BaseException | None) -> str:
        match error:
            case None if self._done:
                reasons = {completion.finish_reason for completion in self._done.values()}
                return max(reasons, key=REASONS.index).value
            case None | CancelledError() | GeneratorExit():
                return ABORTED
            case ParameterError():
                return REFUSED
            case DeadlineExceeded():
                return LATE
            case _:
                return FAILED

    def _fields(self, outcome: str, status: int, seconds: float) -> dict[str, object]:
        """What the access line says: acceptance of all that came, the rest of the choices that ended."""
        stats, rounds = RoundStats(), self._acceptance.total()
        for completion in self._done.values():
            stats.add(completion.stats)
        after_first = stats.tokens - len(self._done)
        return {
            "request_id": self._id,
            "route": self._route,
            "status": status,
            "outcome": outcome,
            "prompt_tokens": sum(self._prompt_tokens),
            "cached_tokens": stats.prefix_hit_tokens,
            "tokens": self._tokens,
            "seconds": round(seconds, 6),
            "first_token_seconds": _rounded(self._first, self._began),
            "acceptance": _share(sum(a * n for a, n in self._acceptance.items()), rounds),
            "tokens_per_forward": _share(after_first, stats.forwards),
            "coverage": _share(stats.covered.total(), stats.rounds),
            "reuse": _share(stats.reused.total(), stats.rounds),
        }


def _status(outcome: str, error: BaseException | None) -> int:
    """The answer's, or what it would have been if no stream had begun."""
    if outcome == ABORTED:
        return CLIENT_GONE
    if isinstance(error, RecGuideError):
        return api_error(error, {}).status_code
    return 500 if outcome == FAILED else 200


def _rounded(first: Mapping[tuple[int, int], float], began: float) -> float | None:
    return round(min(first.values()) - began, 6) if first else None


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None


def _line(fields: Mapping[str, object]) -> str:
    known = {name: "-" if value is None else value for name, value in fields.items()}
    return (
        "{request_id} {route} {status} {outcome}: {prompt_tokens} + {tokens} tokens in {seconds:.3f} s, "
        "acceptance {acceptance}, TPF {tokens_per_forward}"
    ).format_map(known)
