"""One request's way from token ids to an answer, whole or streamed; endpoints only differ in its words."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from fastapi import Request, Response

from recguide.core import Chunk, Completion, RecGuideError
from recguide.engine.chunks import Chunks
from recguide.engine.client import Ask
from recguide.serving.errors import api_error
from recguide.serving.events import (
    CLIENT_GONE,
    DONE,
    EventStream,
    batches,
    error_event,
    event,
    while_connected,
)
from recguide.serving.following import Followed
from recguide.serving.replies import Usage, json_response
from recguide.serving.service import Service
from recguide.serving.usage import usage_of


class Words(Protocol):
    """How an endpoint says what came."""

    def part(self, prompt: int, chunk: Chunk) -> msgspec.Struct | None:
        """A chunk of a stream; None if there is nothing to say yet."""
        ...

    def total(self, use: Usage, metrics: dict[str, Any]) -> msgspec.Struct:
        """The chunk that ends a stream whose client asked for usage."""
        ...

    def whole(self, done: Sequence[Completion], use: Usage, metrics: dict[str, Any]) -> msgspec.Struct:
        """The answer to a request that does not stream; completions by prompt and choice."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked of the engine.

    Attributes:
        route: for logs and traces.
        asks: prompts with their parameters.
        deadline: seconds since the epoch by when it has to be done; None is never.
        names: parameter → the request's name for it, where they differ.
        arrived: when it came, by the follower's clock.
        stream, include_usage: how it is answered.
    """

    route: str
    asks: Sequence[Ask]
    deadline: float | None
    names: Mapping[str, str]
    arrived: float
    stream: bool
    include_usage: bool


class Answering:
    """Answers one request."""

    def __init__(self, service: Service, request: Request, job: Job, words: Words) -> None:
        self._service = service
        self._request = request
        self._job = job
        self._words = words

    async def respond(self) -> Response:
        """Raises ApiError for what the engine refuses, and what fails before a stream has begun."""
        if self._job.stream:
            chunks = await self._submit()
            return EventStream(self._events(chunks), chunks.close)
        response = await while_connected(self._request.receive, self._whole)
        return Response(status_code=CLIENT_GONE) if response is None else response

    async def _submit(self) -> Chunks:
        job = self._job
        try:
            return await self._service.engine.submit(
                job.asks, request_id=self._request.state.request_id, deadline=job.deadline
            )
        except RecGuideError as error:
            raise api_error(error, job.names) from error

    async def _whole(self) -> Response:
        chunks = await self._submit()
        try:
            with self._followed() as followed:
                async for prompt, chunk in chunks:
                    followed.chunk(chunk, prompt)
        except RecGuideError as error:
            raise api_error(error, self._job.names) from error
        finally:
            chunks.close()
        done = followed.completions
        return json_response(self._words.whole(done, self._usage(done), followed.answer_metrics()))

    async def _events(self, chunks: Chunks) -> AsyncGenerator[bytes, None]:
        try:
            with self._followed() as followed:
                async for batch in batches(chunks):
                    for prompt, chunk in batch:
                        followed.chunk(chunk, prompt)
                    if said := self._said(batch):
                        yield said
            if self._job.include_usage:
                yield event(self._words.total(self._usage(followed.completions), followed.answer_metrics()))
        except RecGuideError as error:
            yield error_event(api_error(error, self._job.names))
        yield DONE

    def _said(self, batch: Sequence[tuple[int, Chunk]]) -> bytes:
        parts = [self._words.part(prompt, chunk) for prompt, chunk in batch]
        return b"".join([event(part) for part in parts if part is not None])

    def _followed(self) -> Followed:
        job = self._job
        return self._service.follower.request(
            self._request.state.request_id,
            job.route,
            [len(prompt) for prompt, _ in job.asks],
            headers=self._request.headers,
            arrived=job.arrived,
        )

    def _usage(self, done: Sequence[Completion]) -> Usage:
        return usage_of([prompt for prompt, _ in self._job.asks], done, self._service.facts.think)
