"""Reasoning and tool calls told apart from the answer, whole and streamed alike."""

from __future__ import annotations

import json

import pytest
from tests.fake import EOS, Script, encode, engine
from tests.serving.site import FakeTokenizer, Told, client_of, events, fake_app

from recguide.serving.usage import reasoning_tokens

ROUTE = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


class ToolTokenizer(FakeTokenizer):
    """Its template takes tools, in the tagged form."""

    def __init__(self):
        super().__init__("U A tools <tool_call>")

    def chat(self, messages, **kwargs):
        assert set(kwargs) <= {"tools"}
        return super().chat(messages)


def answers(text, body, tokenizer=None):
    """(message, finish reason) of the whole answer, and what its stream told."""
    script = Script(tuple(encode("UHi\nA")), (*encode(text), EOS))
    with client_of(fake_app(engine(script), tokenizer)) as client:
        whole = client.post(ROUTE, json={**BODY, **body})
        assert whole.status_code == 200, whole.text
        (choice,) = whole.json()["choices"]
        stream = Told(events(client.post(ROUTE, json={**BODY, **body, "stream": True}).text), chat=True)
    return choice["message"], choice["finish_reason"], stream


@pytest.mark.parametrize("method", ["ar", "linear"])
def test_reasoning_stands_apart_from_the_answer(method):
    text = "<think>\nlet me see: a < b\n</think>\n\nIt is so."
    message, finish, stream = answers(text, {"speculation": {"method": method}})
    assert message["reasoning_content"] == "\nlet me see: a < b\n" == stream.reasoning[0]
    assert message["content"] == "\n\nIt is so." == stream.text[0]
    assert finish == stream.finish[0] == "stop"


def test_reasoning_that_does_not_end_is_no_answer():
    message, finish, stream = answers("<think>hm, hm, hm", {"max_tokens": 12})
    assert (message["reasoning_content"], message["content"]) == ("hm, h", "")
    assert (stream.reasoning[0], stream.text[0]) == ("hm, h", "")
    assert finish == stream.finish[0] == "length"


def test_tool_calls_are_told_as_calls():
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    message, finish, stream = answers(f"Let me see.\n{call}", {"tools": [WEATHER]}, ToolTokenizer())
    (told,) = message["tool_calls"]
    assert told["function"]["name"] == "weather"
    assert json.loads(told["function"]["arguments"]) == {"city": "Paris"}
    assert message["content"] == "Let me see." == stream.text[0]
    assert finish == stream.finish[0] == "tool_calls"
    (streamed,) = stream.calls[0]
    assert streamed["function"] == told["function"]
    assert streamed["id"].startswith("call_")


def test_text_with_a_brace_is_no_call_without_tools():
    text = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    message, finish, stream = answers(text, {"tools": [WEATHER], "tool_choice": "none"}, ToolTokenizer())
    assert message["content"] == text == stream.text[0]
    assert "tool_calls" not in message
    assert finish == "stop"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [WEATHER]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools"),
    ],
)
def test_tools_that_the_template_does_not_take_are_refused(change, param):
    with client_of(fake_app(engine(Script(tuple(encode("UHi\nA")), (EOS,))))) as client:
        response = client.post(ROUTE, json={**BODY, **change})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_reasoning_tokens_are_a_part_of_the_completions():
    think = (90, 91)
    assert reasoning_tokens([1, 2], [3, 4], think) == 0
    assert reasoning_tokens([1, 90], [3, 91, 4], think) == 2
    assert reasoning_tokens([1, 90, 91], [3, 4], think) == 0
    assert reasoning_tokens([1], [90, 3, 4], think) == 3
    assert reasoning_tokens([1, 90], [], think) == 0
    assert reasoning_tokens([1, 90], [3], None) == 0
