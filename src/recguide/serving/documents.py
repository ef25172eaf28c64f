"""The OpenAPI document: response bodies described from the structs that make them."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from recguide.serving.errors import ErrorReply
from recguide.serving.replies import (
    ChatCompletion,
    ChatCompletionChunk,
    Detokenized,
    Health,
    ModelCard,
    ModelList,
    TextCompletion,
    Tokenized,
    Version,
)

_BODIES = (
    ChatCompletion,
    ChatCompletionChunk,
    Detokenized,
    ErrorReply,
    Health,
    ModelCard,
    ModelList,
    TextCompletion,
    Tokenized,
    Version,
)
_STREAMING = ("ChatCompletion", "TextCompletion")
_REFERENCE = "#/components/schemas/{name}"


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(name=name)}}}


def _answers(name: str) -> dict[int | str, dict[str, Any]]:
    """What a route says that answers with a struct of this name, and how it says no."""
    content = _json(name)
    if name in _STREAMING:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    errors = {"description": "What was wrong, in OpenAI's shape", "content": _json("ErrorReply")}
    return {200: {"description": "The answer", "content": content}, "4XX": errors, "5XX": errors}


ANSWERS = {body.__name__: _answers(body.__name__) for body in _BODIES}
"""`responses` of a route, by the name of the struct that it answers with."""


def describe(app: FastAPI) -> dict[str, Any]:
    """The document, made once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, found = msgspec.json.schema_components(_BODIES, ref_template=_REFERENCE)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):  # ours are of one shape, with status 400
            schemas.pop(name, None)
        schemas.update(found)
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        app.openapi_schema = document
    return app.openapi_schema
