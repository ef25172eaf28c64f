"""What every request passes before a route sees it: its id, its key, the size of its body.

Plain ASGI, so that a stream's events pass without being wrapped.
"""

from __future__ import annotations

import hmac
import re
import uuid
from collections.abc import Collection
from contextlib import nullcontext
from hashlib import sha256

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recguide.serving.errors import ApiError, reply, stopping, too_large
from recguide.serving.service import Service

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Asked by orchestrators, which have no key; nothing here says anything of any request."""
REQUEST_ID = "x-request-id"
_ID = re.compile(r"[!-~]{1,128}")


class Gate:
    """Names each request, and answers those itself that may not go on.

    Args:
        app: what is behind it.
        service: says who may pass, and is told how many are inside.
        open_paths: paths that need no key.
    """

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        open_paths: Collection[str] = OPEN_PATHS,
    ) -> None:
        self._app = app
        self._service = service
        self._digests = [sha256(key.encode()).digest() for key in service.settings.api_keys]
        self._max_body_bytes = service.settings.max_body_bytes
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
                if message["status"] >= 400:
                    self._service.follower.metrics.failed(message["status"])
            await send(message)

        try:
            self._check(scope, headers)
        except ApiError as error:
            await reply(error)(scope, receive, named)
            return
        with self._service.busy() if scope["method"] == "POST" else nullcontext():
            await self._app(scope, self._limited(receive), named)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raises ApiError for a request that may not go on."""
        if not self._known(scope["path"], headers):
            raise ApiError(
                401,
                "no valid API key; send it as `Authorization: Bearer KEY`",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if scope["method"] == "POST" and self._service.draining:
            raise stopping({"Connection": "close"})
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._max_body_bytes:
            raise too_large(self._max_body_bytes)

    def _known(self, path: str, headers: Headers) -> bool:
        """Whether the request bears a key, or needs none. All keys are compared, in constant time."""
        if not self._digests or path in self._open_paths:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        digest = sha256(key.strip().encode()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)

    def _limited(self, receive: Receive) -> Receive:
        """The same, but for bodies that are longer than they said."""
        length = 0

        async def counted() -> Message:
            nonlocal length
            message = await receive()
            length += len(message.get("body", b""))
            if length > self._max_body_bytes:
                raise too_large(self._max_body_bytes)
            return message

        return counted


def _request_id(headers: Headers) -> str:
    """The client's own if it is fit for a header and a log line."""
    given = headers.get(REQUEST_ID, "")
    return given if _ID.fullmatch(given) else uuid.uuid4().hex
