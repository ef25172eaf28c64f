"""Unmodified clients against a real socket: the official one, strictly, and LangChain's."""

from __future__ import annotations

import asyncio
import threading

import openai
import pytest
from langchain_openai import ChatOpenAI
from tests.serving.site import app_of, server_of, wait_until

from recguide.core import SamplingParams

MESSAGES = [{"role": "user", "content": "Hello?"}]
KEY = "sk-test"
SHORT = {"max_tokens": 12, "temperature": 0, "seed": 1}


@pytest.fixture(scope="module")
def app(shared):
    return app_of(shared, api_keys=(KEY,))


@pytest.fixture(scope="module")
def url(app):
    with server_of(app) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, _strict_response_validation=True) as client:
        yield client


@pytest.fixture(scope="module")
def expected(llm):
    ids = llm.tokenizer.chat(MESSAGES)
    return llm.generate([ids], SamplingParams(max_tokens=12))[0].completions[0]


def test_models_are_listed(client):
    (model,) = client.models.list().data
    assert (model.id, model.object) == ("tiny", "model")
    assert client.models.retrieve("tiny").created == model.created


def test_a_chat(client, expected):
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=2, **SHORT
    )
    assert answer.choices[0].message.content == expected.text
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens == 12
    assert answer.model_extra["metrics"]["speculative_decoding"]["forwards"] > 0


def test_a_chat_as_a_stream(client, expected):
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, n=2, **SHORT
    )
    texts, finishes, usage = ["", ""], [], None
    for chunk in stream:
        assert usage is None
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            finishes += [choice.index] * (choice.finish_reason is not None)
    assert texts == [expected.text] * 2
    assert sorted(finishes) == [0, 1]
    assert usage.completion_tokens == 24


def test_the_clients_own_assembly_of_a_stream(client, expected):
    stop = expected.text[5:7]
    with client.chat.completions.stream(model="tiny", messages=MESSAGES, stop=stop, **SHORT) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == expected.text[: expected.text.find(stop)]


def test_completions_whole_and_streamed(client, url, llm):
    expected = llm.generate(["Once"], SamplingParams(max_tokens=12))[0].text
    whole = client.completions.create(model="tiny", prompt="Once", logprobs=1, **SHORT)
    assert whole.choices[0].text == expected
    # Its types know no unfinished choice and no first token without a logprob, which OpenAI itself sends.
    with openai.OpenAI(base_url=url, api_key=KEY) as lenient:
        echo = lenient.completions.create(model="tiny", prompt="Once", echo=True, logprobs=1, **SHORT)
        assert echo.choices[0].text == "Once" + expected
        stream = lenient.completions.create(model="tiny", prompt="Once", stream=True, **SHORT)
        assert "".join(chunk.choices[0].text for chunk in stream) == expected


def test_what_extra_body_asks_for(client, expected):
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, extra_body={"speculation": False, "return_token_ids": True}, **SHORT
    )
    assert answer.choices[0].message.content == expected.text
    assert tuple(answer.choices[0].model_extra["token_ids"]) == expected.token_ids
    assert answer.model_extra["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


def test_errors_become_the_clients_own(client, url):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"frobnicate": 1})
    assert refused.value.param == "frobnicate"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with (
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_many_at_once_through_the_asynchronous_client(url, expected):
    async def ask():
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, _strict_response_validation=True) as client:
            whole = client.chat.completions.create(model="tiny", messages=MESSAGES, **SHORT)
            streams = [
                await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, **SHORT)
                for _ in range(3)
            ]
            texts = [
                "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
                for stream in streams
            ]
            return [(await whole).choices[0].message.content, *texts]

    assert asyncio.run(ask()) == [expected.text] * 4


def test_who_leaves_in_the_middle_frees_his_request(client, app):
    engine = app.state.service.engine
    for _ in range(5):
        stream = client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        assert engine.pending == 1
        stream.close()
        wait_until(lambda: engine.pending == 0)
    impatient = client.with_options(timeout=0.3)
    with pytest.raises(openai.APITimeoutError):
        impatient.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"ignore_eos": True})
    wait_until(lambda: engine.pending == 0)


def test_health_is_green_while_the_engine_is_busy(client):
    busy = threading.Thread(
        target=lambda: client.completions.create(model="tiny", prompt=[120] * 1500, max_tokens=1)
    )
    busy.start()
    found = []
    while busy.is_alive():
        found.append(client.get("../health", cast_to=openai.BaseModel))
    assert found
    busy.join()


def test_langchains_chat_model(url, expected):
    chat = ChatOpenAI(model="tiny", base_url=url, api_key=KEY, temperature=0, max_tokens=12)
    answer = chat.invoke([("human", "Hello?")])
    assert answer.content == expected.text
    assert answer.usage_metadata["output_tokens"] == 12
    assert "".join(chunk.content for chunk in chat.stream([("human", "Hello?")])) == expected.text
