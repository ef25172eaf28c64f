"""Forms of output through both endpoints: whatever the random model would say, the text has the form."""

from __future__ import annotations

import json
import re

import pytest

MESSAGES = [{"role": "user", "content": "Hello?"}]
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["age", "ok"],
    "additionalProperties": False,
}


def post(client, status=200, **body):
    chat = "messages" in body
    response = client.post("/v1/chat/completions" if chat else "/v1/completions", json=body)
    assert response.status_code == status, response.text
    return response.json()


def test_a_schema_is_satisfied(client):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    answer = post(client, messages=MESSAGES, response_format=form, seed=1)
    value = json.loads(answer["choices"][0]["message"]["content"])
    assert set(value) == {"age", "ok"}
    assert 0 <= value["age"] <= 99
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": "[a-c]{3,5}"}, "[a-c]{3,5}"),
        ({"choice": ["yes (sure)", "no."]}, r"yes \(sure\)|no\."),
        ({"grammar": 'start: "a" ("b" | "c")'}, "a[bc]"),
        ({"json": {"enum": [1, 2]}}, "[12]"),
    ],
)
def test_other_forms_are_kept_too(client, outputs, pattern):
    answer = post(client, prompt="x", structured_outputs=outputs, seed=2, max_tokens=200)
    assert re.fullmatch(pattern, answer["choices"][0]["text"])


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_object", "json_schema": {"name": "x"}}}, "response_format"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_forms_that_cannot_be_kept_are_refused_by_name(client, change, param):
    assert post(client, 400, prompt="x", **change)["error"]["param"] == param
