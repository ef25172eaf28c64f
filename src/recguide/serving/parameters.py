"""A request's fields as sampling parameters; refusals speak of the request's own fields."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from recguide.core import MAX_BLOCK, ParameterError, SamplingParams, Structure
from recguide.serving.errors import refusal
from recguide.serving.requests import ChatRequest, CompletionRequest, Generate, Speculation
from recguide.serving.structures import structure_field, structure_of

NAMES: Mapping[str, str] = {name: f"speculation.{name}" for name in Speculation.model_fields}
"""Fields that requests call otherwise than the engine."""
CHAT_NAMES: Mapping[str, str] = {**NAMES, "prompt": "messages", "logprobs": "top_logprobs"}

TIMEOUT_HEADER = "x-request-timeout"
"""Seconds that a request may take, for clients that cannot set the field `timeout`."""

SAME = (
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "n",
    "thinking_budget",
)
"""Fields that mean what the engine means by them."""


def completion_names(body: CompletionRequest) -> Mapping[str, str]:
    """How this request calls the engine's parameters."""
    return {**NAMES, "structure": structure_field(body)}


def chat_names(body: ChatRequest, max_tokens: str) -> Mapping[str, str]:
    """The same; `max_tokens` is the field that sets the cap."""
    return {**CHAT_NAMES, "structure": structure_field(body), "max_tokens": max_tokens}


def sampling_params(
    body: Generate,
    *,
    max_tokens: int,
    logprobs: int | None,
    names: Mapping[str, str],
    prompt_logprobs: int | None = None,
    structure: Structure | None = None,
    stop: Sequence[str] = (),
) -> SamplingParams:
    """The parameters of one prompt; `structure` and `stop` are what its tools ask for.

    Raises ApiError for the first field that cannot be honoured."""
    given: dict[str, Any] = {name: getattr(body, name) for name in SAME}
    given["temperature"] = 1.0 if body.temperature is None else body.temperature
    given["top_k"] = 0 if body.top_k == -1 else body.top_k
    given["logit_bias"] = None if body.logit_bias is None else _biases(body.logit_bias)
    given |= {"max_tokens": max_tokens, "logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
    given |= _speculation(body.speculation)
    try:
        given["structure"] = _one_of(structure, structure_of(body), structure_field(body))
        given["stop"] = (*_listed(body.stop), *stop)
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})
    except ParameterError as error:
        message = str(error).removeprefix(f"{error.parameter}: ")
        raise refusal(names.get(error.parameter, error.parameter), message) from error


def _one_of(of_tools: Structure | None, own: Structure | None, field: str) -> Structure | None:
    if of_tools is not None and own is not None:
        raise refusal(field, "cannot be kept where tool_choice asks for a call; leave one of them out")
    return of_tools or own


def _listed(stop: str | Sequence[str] | None) -> Sequence[str]:
    return [stop] if isinstance(stop, str) else stop or ()


def _biases(given: Mapping[str, float]) -> dict[int, float]:
    if not all(token.isascii() and token.isdecimal() and len(token) < 10 for token in given):
        raise refusal("logit_bias", 'keys must be token ids, such as "42"')
    return {int(token): bias for token, bias in given.items()}


def _speculation(wanted: Speculation | bool | None) -> dict[str, Any]:
    if isinstance(wanted, Speculation):
        return wanted.model_dump()
    return {"method": "ar"} if wanted is False else {}


def output_tokens(
    wanted: int | None, prompt_tokens: int, max_model_len: int, *, field: str, spare: int = 0
) -> int:
    """Tokens that a prompt of this length may be continued by; all that fit if none are named.

    Args:
        spare: tokens that the method needs room for beyond the last.

    Raises ApiError if the prompt leaves no room, or not enough of it.
    """
    room = max_model_len - prompt_tokens - spare
    if room < (1 if wanted is None else min(1, wanted)):
        raise refusal(
            "prompt",
            f"has {prompt_tokens} tokens, and the context of {max_model_len} needs room for {spare + 1} more "
            "at least; shorten it",
            "context_length_exceeded",
        )
    if wanted is not None and wanted > room:
        raise refusal(
            field,
            f"{wanted} and the prompt's {prompt_tokens} tokens exceed the context of {max_model_len}; "
            f"at most {room} fit",
            "context_length_exceeded",
        )
    return room if wanted is None else wanted


def spare_tokens(body: Generate, default_method: str) -> int:
    """Block diffusion keeps its last block whole."""
    wanted = body.speculation
    named = wanted.method if isinstance(wanted, Speculation) else None
    return MAX_BLOCK if (named or default_method) == "diffusion" else 0


def chat_max_tokens(body: ChatRequest) -> tuple[int | None, str]:
    """The cap, and the name of the field that sets it."""
    new, old = body.max_completion_tokens, body.max_tokens
    if new is not None and old is not None and new != old:
        raise refusal("max_tokens", f"is {old}, but max_completion_tokens is {new}; give one of them")
    return (old, "max_tokens") if new is None and old is not None else (new, "max_completion_tokens")


def chat_logprobs_wanted(body: ChatRequest) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise refusal("top_logprobs", "needs logprobs to be true")
    return (body.top_logprobs or 0) if body.logprobs else None


def check_completion(body: CompletionRequest) -> None:
    """Raises ApiError for fields that do not go together."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise refusal("best_of", "must equal n, for all choices are returned; leave it out")
    if body.max_tokens == 0 and not body.echo:
        raise refusal("max_tokens", "may be 0 only with echo")
    if body.echo and body.logprobs is not None and body.stream:
        raise refusal("logprobs", "of an echoed prompt are not streamed; leave out stream or echo")


def check_stream(body: Generate) -> None:
    if body.stream_options is not None and not body.stream:
        raise refusal("stream_options", "needs stream to be true")


def deadline_of(timeouts: tuple[float | None, str | None], default_s: float | None) -> float | None:
    """Seconds since the epoch by when an answer must be there; None for no limit.

    Args:
        timeouts: the body's field and the header, in seconds; the smaller one holds.
    """
    field, header = timeouts
    given = [] if field is None else [field]
    if header is not None:
        given.append(_seconds(header))
    seconds = min(given) if given else default_s
    return None if seconds is None else time.time() + seconds


def _seconds(header: str) -> float:
    try:
        seconds = float(header)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise refusal("timeout", f"the header says {header!r}, which is no positive number of seconds")
    return seconds
