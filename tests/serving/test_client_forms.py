"""Structured output and tools as clients offer them: what comes back is the caller's own type."""

from __future__ import annotations

import asyncio
from typing import Literal

import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict
from tests.serving.conftest import load
from tests.serving.site import app_of, server_of
from tests.tiny import write_checkpoint

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}"
    "{% for turn in messages %}{{ turn.role }}:{{ turn.content or '' }}"
    "{% for call in turn.tool_calls or [] %}<tool_call>{{ call.function | tojson }}{% endfor %};{% endfor %}>"
)
MESSAGES = [{"role": "user", "content": "Weather?"}]
SEEDED = {"seed": 3, "temperature": 0.8}


class Weather(BaseModel):
    """The weather of a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Rome"]
    sunny: bool


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = write_checkpoint(tmp_path_factory.mktemp("tools") / "tiny", "nemotron_labs_diffusion")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with server_of(app_of(load(folder))) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(
        base_url=url, api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture(scope="module")
def chat(url):
    return ChatOpenAI(model="tiny", base_url=url, api_key="none", max_retries=0, stream_usage=True, **SEEDED)


def test_the_official_client_parses_a_type(client):
    answer = client.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Weather, **SEEDED)
    assert isinstance(answer.choices[0].message.parsed, Weather)


def test_the_official_client_parses_a_streamed_type(client):
    with client.chat.completions.stream(
        model="tiny", messages=MESSAGES, response_format=Weather, **SEEDED
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Weather)
    assert kinds.count("content.done") == 1


def test_the_official_client_parses_a_call(client):
    tool = openai.pydantic_function_tool(Weather)
    asked = {"model": "tiny", "messages": MESSAGES, "tools": [tool], "tool_choice": "required", **SEEDED}
    (call,) = client.chat.completions.parse(parallel_tool_calls=False, **asked).choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    with client.chat.completions.stream(parallel_tool_calls=False, **asked) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls[0].function.parsed_arguments == call.function.parsed_arguments


def test_langchains_structured_output(chat):
    chain = chat.with_structured_output(Weather, method="json_schema")
    found = chain.invoke("Weather?")
    assert isinstance(found, Weather)
    assert [*chain.stream("Weather?")][-1] == found


def test_langchains_structured_output_by_a_call(chat):
    found = chat.with_structured_output(Weather, method="function_calling").invoke("Weather?")
    assert isinstance(found, Weather)


def test_langchains_tools_and_their_results(chat):
    asked = HumanMessage("Weather?")
    bound = chat.bind_tools([Weather], tool_choice="any", parallel_tool_calls=False)
    message = bound.invoke([asked])
    (call,) = message.tool_calls
    assert Weather(**call["args"])
    whole = None
    for chunk in bound.stream([asked]):
        whole = chunk if whole is None else whole + chunk
    assert [(each["name"], each["args"]) for each in whole.tool_calls] == [(call["name"], call["args"])]
    told = chat.invoke([asked, message, ToolMessage("mild", tool_call_id=call["id"])], max_tokens=4)
    assert told.usage_metadata["output_tokens"] == 4


def test_langchain_asynchronously_with_usage(chat):
    async def ask():
        asked = {"input": "Hello?", "max_tokens": 6, "logprobs": True}
        return await chat.ainvoke(**asked), [chunk async for chunk in chat.astream(**asked)]

    # Its connections are of one event loop, which no other test may have.
    whole, chunks = asyncio.run(ask())
    assert "".join(chunk.content for chunk in chunks) == whole.content
    (usage,) = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usage == whole.usage_metadata
    assert len(whole.response_metadata["logprobs"]["content"]) == usage["output_tokens"] == 6
    assert whole.response_metadata["finish_reason"] == "length"
