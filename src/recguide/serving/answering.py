"""One request's way from token ids to an answer, whole or streamed; endpoints only differ in its words."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

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
    error_event,
    event,
    while_connected,
)
from recguide.serving.following import Followed
from recguide.serving.parameters import TIMEOUT_HEADER, check_stream, deadline_of
from recguide.serving.replies import Usage, json_response
from recguide.serving.requests import Generate
from recguide.serving.service import Service, service_of
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
class Arrival:
    """What the body of every request that generates begins with.

    Attributes:
        request: as it came.
        service: answers it.
        model: name of the model that is asked.
        at: when it came, by the follower's clock.
        deadline: seconds since the epoch by when it has to be done; None is never.
        stream, include_usage: how it is answered.
    """

    request: Request
    service: Service
    model: str
    at: float
    deadline: float | None
    stream: bool
    include_usage: bool

    @classmethod
    def of(cls, body: Generate, request: Request) -> Self:
        """Raises ApiError for a model that is not served, a time that is none, and options of no stream."""
        service = service_of(request)
        at = service.follower.clock()
        model = service.model(body.model)
        check_stream(body)
        timeouts = (body.timeout, request.headers.get(TIMEOUT_HEADER))
        return cls(
            request=request,
            service=service,
            model=model,
            at=at,
            deadline=deadline_of(timeouts, service.settings.timeout_s),
            stream=bool(body.stream),
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
        )


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked of the engine.

    Attributes:
        route: for logs and spans.
        asks: prompts with their parameters.
        names: parameter → the request's name for it, where they differ.
    """

    route: str
    asks: Sequence[Ask]
    names: Mapping[str, str]


class Answering:
    """Answers one request."""

    def __init__(self, arrival: Arrival, job: Job, words: Words) -> None:
        self._arrival = arrival
        self._service = arrival.service
        self._request = arrival.request
        self._job = job
        self._words = words

    async def respond(self) -> Response:
        """Raises ApiError for what the engine refuses, and what fails before a stream has begun."""
        if self._arrival.stream:
            chunks = await self._submit()
            return EventStream(self._events(chunks), chunks.close)
        response = await while_connected(self._request.receive, self._whole)
        return Response(status_code=CLIENT_GONE) if response is None else response

    async def _submit(self) -> Chunks:
        job = self._job
        try:
            return await self._service.engine.submit(
                job.asks, request_id=self._request.state.request_id, deadline=self._arrival.deadline
            )
        except RecGuideError as error:
            raise api_error(error, job.names) from error

    async def _whole(self) -> Response:
        chunks = await self._submit()
        try:
            with self._followed() as followed:
                while arrived := await chunks.arrived():
                    for prompt, chunk in arrived:
                        followed.chunk(chunk, prompt)
        except RecGuideError as error:
            raise api_error(error, self._job.names) from error
        finally:
            chunks.close()
        done = followed.completions
        return json_response(self._words.whole(done, self._usage(done), followed.answer_metrics()))

    async def _events(self, chunks: Chunks) -> AsyncGenerator[bytes, None]:
        """Those of chunks that are there together go together: a slow reader is written to less often."""
        try:
            with self._followed() as followed:
                while arrived := await chunks.arrived():
                    for prompt, chunk in arrived:
                        followed.chunk(chunk, prompt)
                    if said := self._said(arrived):
                        yield said
            if self._arrival.include_usage:
                yield event(self._words.total(self._usage(followed.completions), followed.answer_metrics()))
        except RecGuideError as error:
            yield error_event(api_error(error, self._job.names))
        yield DONE

    def _said(self, arrived: Sequence[tuple[int, Chunk]]) -> bytes:
        parts = [self._words.part(prompt, chunk) for prompt, chunk in arrived]
        return b"".join([event(part) for part in parts if part is not None])

    def _followed(self) -> Followed:
        job = self._job
        return self._service.follower.request(
            self._request.state.request_id,
            job.route,
            [len(prompt) for prompt, _ in job.asks],
            headers=self._request.headers,
            arrived=self._arrival.at,
        )

    def _usage(self, done: Sequence[Completion]) -> Usage:
        return usage_of([prompt for prompt, _ in self._job.asks], done, self._service.facts.think)
