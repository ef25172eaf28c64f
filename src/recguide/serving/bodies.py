"""Reading JSON bodies, strictly: one parser for all routes, which takes no NaN and no half surrogate."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute

from recguide.serving.errors import ApiError


class StrictRequest(Request):
    async def json(self) -> Any:  # noqa: ANN401  the signature is Starlette's
        try:
            return msgspec.json.decode(await self.body())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from error


class StrictRoute(APIRoute):
    """A route whose body is read by `StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strict
