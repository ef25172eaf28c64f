"""Errors as OpenAI's clients know them: {"error": {"message", "type", "param", "code"}} and a status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from recguide.core import ParameterError, RecGuideError
from recguide.engine.client import EngineError
from recguide.engine.errors import DeadlineExceeded, QueueFull

RETRY_AFTER_S = 1
"""What a client is told that comes too early or too late."""

INVALID, UNAUTHORISED, MISSING = "invalid_request_error", "authentication_error", "not_found_error"
BUSY, FAILED, GONE, LATE = "rate_limit_error", "server_error", "service_unavailable", "timeout_error"

_TYPES: Mapping[int, str] = {401: UNAUTHORISED, 404: MISSING, 429: BUSY, 503: GONE, 504: LATE}


class ErrorObject(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(msgspec.Struct, frozen=True):
    error: ErrorObject


class ApiError(HTTPException):
    """An answer that is an error.

    Args:
        status: of HTTP.
        param: the request's field that it is about.
        code: what programs tell it by.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.error = ErrorObject(message, _type(status), param, code)


def refusal(param: str, message: str, code: str | None = None) -> ApiError:
    """A field that cannot be honoured."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def too_large(most_bytes: int) -> ApiError:
    """A body that is longer than it may be."""
    return ApiError(413, f"the body may have {most_bytes} bytes at most", code="request_too_large")


def stopping(headers: Mapping[str, str] | None = None) -> ApiError:
    """A request that comes while the server waits for its last ones."""
    return ApiError(
        503,
        "the server is stopping; ask another one",
        code="draining",
        headers={"Retry-After": str(RETRY_AFTER_S), **(headers or {})},
    )


def api_error(error: RecGuideError, names: Mapping[str, str]) -> ApiError:
    """What the engine said of a request, in the request's own words.

    Args:
        names: parameter → the request's name for it, where that differs.
    """
    match error:
        case ParameterError():
            message = str(error).removeprefix(f"{error.parameter}: ")
            return refusal(names.get(error.parameter, error.parameter), message)
        case DeadlineExceeded():
            return ApiError(504, str(error), param="timeout", code="timeout")
        case QueueFull():
            headers = {"Retry-After": str(ceil(error.retry_after_s))}
            return ApiError(429, str(error), code="queue_full", headers=headers)
        case EngineError():
            return ApiError(503, str(error), code="engine_failed")
        case _:
            return ApiError(500, str(error), code="request_failed")


def reply(error: ApiError) -> Response:
    return Response(
        encoded(error.error), error.status_code, error.headers or {}, media_type="application/json"
    )


def encoded(error: ErrorObject) -> bytes:
    """JSON, whatever a client made the message quote."""
    legal = error.message.encode(errors="backslashreplace").decode()
    return msgspec.json.encode(ErrorReply(msgspec.structs.replace(error, message=legal)))


def add_handlers(app: FastAPI) -> None:
    """Gives every error of the app its one shape."""

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        if isinstance(error.body, bytes):  # nobody has read it
            kind = request.headers.get("content-type", "none")
            message = f"the body must be sent as 'Content-Type: application/json', not as {kind}"
            return reply(ApiError(400, message, code="invalid_json"))
        return reply(_of_validation(error.errors()))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if not isinstance(error, ApiError):
            message = f"{error.detail}: {request.method} {request.url.path}; /openapi.json lists the routes"
            error = ApiError(error.status_code, message, headers=error.headers)
        return reply(error)

    async def unexpected(_: Request, error: Exception) -> Response:
        return reply(ApiError(500, f"the server failed: {type(error).__name__}", code="internal_error"))

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unexpected)


def _of_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """One answer for all that pydantic found, about the first field."""
    told: dict[str, list[str]] = {}
    for error in _to_the_point(errors):
        path = [part for part in error["loc"] if part != "body" and not str(part)[:1].isupper()]
        field = str(path[0]) if path else "body"
        told.setdefault(field, []).append(_sentence(error, path[1:]))
    first = next(iter(told))
    message = "; ".join(f"{field}: {', or '.join(dict.fromkeys(said))}" for field, said in told.items())
    unknown = any(error["type"] == "extra_forbidden" for error in errors)
    return ApiError(
        400,
        message,
        param=None if first == "body" else first,
        code="unsupported_parameter" if unknown else "invalid_value",
    )


def _to_the_point(errors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without "is no bool" and the like where something inside the other form of the field was wrong.

    Of a field that may have two forms pydantic tells both, each under a tag: `Speculation`, `bool`.
    """
    places = [error["loc"] for error in errors]
    return [
        error
        for error, place in zip(errors, places, strict=True)
        if place[-1:] not in (("bool",), ("str",))
        or not any(other[: len(place) - 1] == place[:-1] and len(other) > len(place) for other in places)
    ]


def _sentence(error: Mapping[str, Any], inner: Sequence[object]) -> str:
    if error["type"] == "extra_forbidden":
        where = ".".join(map(str, inner))
        return f"{where}: is not supported; leave it out" if where else "is not supported; leave it out"
    if error["type"] == "none_required":
        return "is not supported; leave it out"
    message = str(error["msg"]).removeprefix("Value error, ")
    where = ".".join(str(part) for part in inner)
    return f"{message[0].lower()}{message[1:]}" + (f" (at {where})" if where else "")


def _type(status: int) -> str:
    return _TYPES.get(status, INVALID if status < 500 else FAILED)
