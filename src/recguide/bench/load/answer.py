"""A streamed answer as it arrives: chunks read strictly, text and counts gathered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from recguide.bench.load.events import MalformedStreamError
from recguide.bench.load.record import Arrival

Fields = Mapping[str, Any]


class StreamedError(Exception):
    """An error object inside a stream that had begun well."""


class Answer:
    """Gathers the events of one stream."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.finish_reason: str | None = None
        self.usage: Fields = {}
        self.speculation: Fields | None = None
        self.done = False
        self._reasoning: list[str] = []
        self._texts: list[str] = []
        self._counted: int | None = None  # tokens so far by running usage, None where there is none

    @property
    def text(self) -> str:
        return "".join((*self._reasoning, *self._texts))

    def count(self, name: str) -> int | None:
        """A count of the usage, or of its details of the prompt."""
        found = self.usage.get(name, _fields(self.usage, "prompt_tokens_details").get(name))
        return found if isinstance(found, int) else None

    def take(self, event: bytes, at_s: float) -> None:
        """One event's data. Raises MalformedStreamError, or StreamedError for an error object."""
        if self.done:
            raise MalformedStreamError("data after [DONE]")
        if event == b"[DONE]":
            self.done = True
            return
        chunk = _object(event)
        if chunk.get("error") is not None:
            raise StreamedError(str(chunk["error"])[:300])
        self.usage = _fields(chunk, "usage") or self.usage
        self.speculation = _fields(_fields(chunk, "metrics"), "speculative_decoding") or self.speculation
        for choice in _choices(chunk):
            self._take_choice(choice, at_s)

    def _take_choice(self, choice: Fields, at_s: float) -> None:
        delta = _fields(choice, "delta")
        reasoning = _text(delta, "reasoning_content") or _text(delta, "reasoning")
        text = _text(delta, "content") or _text(choice, "text")
        calls = delta.get("tool_calls")
        words = len(reasoning) + len(text) + (len(json.dumps(calls)) if calls else 0)
        if not self.arrivals and words and self.usage:
            self._counted = 0  # usage comes with every chunk, not with the last alone
        tokens = self._tokens(choice)
        if words or tokens:
            self.arrivals.append(Arrival(at_s, words, tokens))
        self._reasoning.append(reasoning)
        self._texts.append(text)
        self.finish_reason = _text(choice, "finish_reason") or self.finish_reason

    def _tokens(self, choice: Fields) -> int | None:
        """Tokens of a chunk, where the server says how many."""
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            return len(cast("list[object]", ids))
        logprobs = _fields(choice, "logprobs")
        listed = logprobs.get("content") or logprobs.get("tokens")
        if isinstance(listed, list):
            return len(cast("list[object]", listed))
        running = self.usage.get("completion_tokens")
        if self._counted is None or not isinstance(running, int):
            return None
        new, self._counted = running - self._counted, running
        return new


def _text(holder: Fields, name: str) -> str:
    """A text inside an object, empty where there is none; MalformedStreamError for anything else."""
    text = holder.get(name) or ""
    if not isinstance(text, str):
        raise MalformedStreamError(f'a chunk whose "{name}" is no text')
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can escape half a character, which nobody can write down
        raise MalformedStreamError("a chunk with half a character") from error
    return text


def _object(event: bytes) -> Fields:
    try:
        value = json.loads(event)
    except (ValueError, RecursionError) as error:
        raise MalformedStreamError(f"an event that is not JSON: {event[:80]!r}") from error
    if not isinstance(value, dict):
        raise MalformedStreamError(f"an event that is no object: {event[:80]!r}")
    return cast("Fields", value)


def _fields(holder: Fields, name: str) -> Fields:
    """An object inside another; empty where there is none."""
    value = holder.get(name)
    return cast("Fields", value) if isinstance(value, dict) else {}


def _choices(chunk: Fields) -> list[Fields]:
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        raise MalformedStreamError('a chunk without "choices"')
    if not all(isinstance(choice, dict) for choice in cast("list[object]", choices)):
        raise MalformedStreamError("a choice that is no object")
    return cast("list[Fields]", choices)
