"""The form that a request wants its output in: OpenAI's `response_format`, or `structured_outputs`."""

from __future__ import annotations

import json

from recguide.core import Structure
from recguide.serving.errors import refusal
from recguide.serving.requests import Generate, ResponseFormat, StructuredOutputs

_MEANINGFUL = frozenset(r"\.+*?()|[]{}^$")
"""Signs that mean something in a regular expression."""


def structure_of(body: Generate) -> Structure | None:
    """Raises ApiError for forms that are none, or more than one."""
    wanted = None if body.response_format is None else _of_format(body.response_format)
    if body.structured_outputs is None:
        return wanted
    if wanted is not None:
        raise refusal("structured_outputs", "and response_format exclude each other; leave one out")
    return _of_outputs(body.structured_outputs)


def structure_field(body: Generate) -> str:
    """The field that asks for a form."""
    return "response_format" if body.structured_outputs is None else "structured_outputs"


def _of_format(wanted: ResponseFormat) -> Structure | None:
    if (wanted.json_schema is not None) is not (wanted.type == "json_schema"):
        raise refusal("response_format", "type json_schema and the field json_schema go together")
    if wanted.type == "text":
        return None
    schema = None if wanted.json_schema is None else wanted.json_schema.schema_
    return Structure("json_object") if schema is None else Structure("json_schema", json.dumps(schema))


def _of_outputs(wanted: StructuredOutputs) -> Structure:
    found = [structure for structure in _all_of(wanted) if structure is not None]
    if len(found) != 1:
        raise refusal("structured_outputs", "takes exactly one of json, json_object, regex, choice, grammar")
    return found[0]


def _all_of(wanted: StructuredOutputs) -> tuple[Structure | None, ...]:
    schema = wanted.json_
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return (
        None if schema is None else Structure("json_schema", text),
        None if wanted.json_object is None else Structure("json_object"),
        None if wanted.regex is None else Structure("regex", wanted.regex),
        None if wanted.choice is None else Structure("regex", "|".join(map(_literally, wanted.choice))),
        None if wanted.grammar is None else Structure("grammar", wanted.grammar),
    )


def _literally(text: str) -> str:
    """A regular expression of that text alone."""
    return "".join(f"\\{sign}" if sign in _MEANINGFUL else sign for sign in text)
