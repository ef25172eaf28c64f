"""Where requests to a deployment arrive: each goes to one replica, metrics are those of all."""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
# Ray is an extra; without it, what it gives is not known.
from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, cast

from fastapi import Request, Response
from prometheus_client.exposition import choose_encoder
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from starlette.responses import StreamingResponse

from recguide.serving.dashboard.feed import Feed
from recguide.serving.deploy.calls import Call, Head, Part
from recguide.serving.deploy.exposition import merged
from recguide.serving.deploy.fleet import Fleet
from recguide.serving.deploy.prefixes import prompt_blocks
from recguide.serving.deploy.replica import Page, Steps
from recguide.serving.errors import RETRY_AFTER_S, ApiError, reply, stopping, too_large
from recguide.serving.events import error_event
from recguide.serving.settings import ServerSettings

_LOG = logging.getLogger(__name__)

WAITS_S = (0.0, 0.1, 1.0, 2.0)
"""How long a request waits before it is given to a replica, and to another while none answers anything."""
PATIENCE_S = 5.0
"""How long replicas may take to tell about themselves; those that take longer are left out."""
WATCH_S = 0.5
"""How often they are asked what they did."""
_HOP = frozenset(
    {b"connection", b"transfer-encoding", b"content-length", b"date", b"server", b"x-request-id"}
)
"""Headers of one connection, not of the answer; and the request's id, which Ray Serve's proxy adds itself."""
_LATER = {"Retry-After": str(RETRY_AFTER_S)}
_NOBODY = (RayError, RayServeException)
"""What asking a replica raises that is not there, or not any more."""


class Ingress:
    """The application's front. Keys and limits are the replicas' affair, so that they hold everywhere."""

    async def __init__(self, replicas: DeploymentHandle[Any], settings: ServerSettings) -> None:
        self._all = replicas
        self._one = replicas.options(stream=True)
        self._max_body_bytes = settings.max_body_bytes
        self._draining = False
        self._feed = Feed()
        self._tasks = [asyncio.create_task(self._feed.run()), asyncio.create_task(self._watch())]

    async def __call__(self, request: Request) -> Response:
        """Answers a request."""
        try:
            call = await self._read(request)
            match call.path:
                case "/metrics":
                    return await self._metrics(call)
                case "/dashboard/events":
                    return await self._events(call)
                case _:
                    return await self._forward(call)
        except ApiError as error:
            return reply(error)

    async def drain(self) -> None:
        """No more new requests; whoever watches is let go."""
        self._draining = True

    async def _read(self, request: Request) -> Call:
        """The whole request; ApiError for a body that no replica would take, and at the end."""
        if self._draining:
            raise stopping()
        body = bytearray()
        async for data in request.stream():
            body += data
            if len(body) > self._max_body_bytes:
                raise too_large(self._max_body_bytes)
        data = bytes(body)
        return Call(
            method=request.method,
            path=request.scope["path"],
            query=request.scope["query_string"],
            headers=tuple(request.headers.raw),
            body=data,
            blocks=prompt_blocks(data) if request.method == "POST" else (),
        )

    async def _forward(self, call: Call) -> Response:
        """A replica's answer. A replica that dies before its first bytes is as if it had not been asked."""
        for wait_s in WAITS_S:
            await asyncio.sleep(wait_s)
            parts = cast("DeploymentResponseGenerator[Part]", self._one.call.remote(call))
            try:
                head, first = await anext(parts), await anext(parts, b"")
            except (*_NOBODY, StopAsyncIteration) as error:
                _LOG.warning("no answer of a replica: %s", type(error).__name__)
                continue
            except asyncio.CancelledError:
                parts.cancel()
                raise
            assert isinstance(head, Head), "an answer begins with its head"
            assert isinstance(first, bytes), "and goes on with bytes"
            return _response(head, _rest(first, parts, streamed=_is_stream(head)))
        raise ApiError(503, "no replica could answer; try again", code="no_replica", headers=_LATER)

    async def _metrics(self, call: Call) -> Response:
        """All replicas' metrics on one page; a refusal of any is the answer."""
        encode, content_type = choose_encoder(_header(call, b"accept"))
        pages = [page for page in await self._ask_all("page", _plain(call)) if isinstance(page, Page)]
        for page in pages:
            if page.head.status != 200:
                return _response(page.head, _once(page.body))
        registry = merged({page.replica: page.body.decode() for page in pages})
        return Response(encode(registry), media_type=content_type)

    async def _events(self, call: Call) -> Response:
        """The live feed of all replicas, for whom a replica would tell about itself."""
        about = await self._forward(replace(call, path="/dashboard/about"))
        if about.status_code != 200:
            return about
        return StreamingResponse(self._feed_events(), media_type="text/event-stream")

    async def _feed_events(self) -> AsyncGenerator[str, None]:
        async for event in self._feed.events():
            yield event
            if self._draining:
                return

    async def _watch(self) -> None:
        """Fetches what replicas did, and shows it as one engine's steps, in their order."""
        fleet, since = Fleet(), dict[str, int]()
        while True:
            await asyncio.sleep(WATCH_S)
            told = [steps for steps in await self._ask_all("steps", since) if isinstance(steps, Steps)]
            since = {steps.replica: steps.end for steps in told}
            fleet.keep(since)
            found = [(report.at, steps.replica, report) for steps in told for report in steps.reports]
            for _, replica, report in sorted(found, key=lambda step: step[0]):
                self._feed.add(fleet.step(replica, report))

    async def _ask_all(self, method: str, argument: object) -> Sequence[object]:
        """What replicas say; one that says nothing in time is left out."""
        asked = self._all.broadcast(method, argument)
        try:
            found = await asked.results_async(timeout_s=PATIENCE_S, return_exceptions=True)
        except (*_NOBODY, TimeoutError) as error:
            _LOG.debug("nobody answers %s: %s", method, type(error).__name__)  # at the beginning and the end
            return ()
        for failure in found:
            if isinstance(failure, BaseException):
                _LOG.warning("a replica did not answer %s: %s", method, type(failure).__name__)
        return found


async def _rest(
    first: bytes, parts: DeploymentResponseGenerator[Part], *, streamed: bool
) -> AsyncGenerator[bytes, None]:
    """Bytes of an answer. A replica that dies within ends a stream of events with one more, the error.

    Any other answer breaks off, as it does where the server itself dies.
    """
    whole = False
    try:
        yield first
        async for part in parts:
            assert isinstance(part, bytes), "an answer has one head"
            yield part
        whole = True
    except RayError as error:
        _LOG.error("a replica ended within an answer: %s", type(error).__name__)
        if not streamed:
            raise
        yield error_event(ApiError(500, "the replica that answered is gone", code="replica_failed"))
    finally:
        if not whole:
            parts.cancel()


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _response(head: Head, body: AsyncIterator[bytes]) -> StreamingResponse:
    response = StreamingResponse(body, head.status)
    response.raw_headers = [(name, value) for name, value in head.headers if name.lower() not in _HOP]
    return response


def _is_stream(head: Head) -> bool:
    return any(name.lower() == b"content-type" and b"event-stream" in value for name, value in head.headers)


def _header(call: Call, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in call.headers if key.lower() == name), "")


def _plain(call: Call) -> Call:
    """Asks for Prometheus' plain text format, whatever the scraper likes."""
    return replace(call, headers=tuple(pair for pair in call.headers if pair[0].lower() != b"accept"))
