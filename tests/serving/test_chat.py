"""/v1/chat/completions: the chat template's prompt, continued and told in OpenAI's shape."""

from __future__ import annotations

import pytest
from tests.fake import EOS, Script, encode
from tests.fake import engine as fake_engine
from tests.serving.site import Told, client_of, events, fake_app

from recguide.core import SamplingParams

ROUTE = "/v1/chat/completions"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
GREEDY = {"temperature": 0, "max_completion_tokens": 8}


def ask(client, status=200, **body):
    response = client.post(ROUTE, json={"messages": MESSAGES, **body})
    assert response.status_code == status, response.text
    return response.json()


def told(client, **body):
    response = client.post(ROUTE, json={"messages": MESSAGES, "stream": True, **body})
    assert response.status_code == 200, response.text
    return Told(events(response.text), chat=True)


def offline(llm, messages=MESSAGES, template=None, **params):
    ids = llm.tokenizer.chat(messages, **(template or {}))
    return llm.generate([ids], SamplingParams(**params))[0].completions


@pytest.mark.parametrize(
    "params", [{"temperature": 0, "max_tokens": 16}, {"temperature": 1, "seed": 4, "n": 2, "max_tokens": 8}]
)
def test_whole_and_streamed_answers_are_the_offline_engines(client, llm, params):
    expected = offline(llm, **params)
    whole, stream = ask(client, **params), told(client, **params)
    assert [choice["message"]["content"] for choice in whole["choices"]] == [each.text for each in expected]
    assert stream.text == {each.index: each.text for each in expected}
    assert stream.finish == {each.index: each.finish_reason.value for each in expected}


def test_the_shape_is_openais(client, llm):
    answer = ask(client, **GREEDY)
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] in ("stop", "length")
    use = answer["usage"]
    assert use["prompt_tokens"] == len(llm.tokenizer.chat(MESSAGES))
    assert use["total_tokens"] == use["prompt_tokens"] + use["completion_tokens"]


def test_template_arguments_reach_the_template(client, llm):
    thinking = {"enable_thinking": True}
    answer = ask(client, chat_template_kwargs=thinking, return_token_ids=True, **GREEDY)
    assert answer["prompt_token_ids"] == llm.tokenizer.chat(MESSAGES, **thinking)
    error = ask(client, 400, chat_template_kwargs={"shout": True})["error"]
    assert error["param"] == "chat_template_kwargs"
    assert "shout" in error["message"]


def test_developer_is_system_and_text_parts_are_one_text(client, llm):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo?"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    known = [MESSAGES[0], {"role": "user", "content": "Hel\nlo?"}]
    answer = ask(client, messages=messages, return_token_ids=True, **GREEDY)
    assert answer["prompt_token_ids"] == llm.tokenizer.chat(known)


def test_logprobs_have_one_entry_a_token_and_so_many_alternatives(client, llm):
    (expected,) = offline(llm, temperature=0, max_tokens=8, logprobs=5)
    for most in (0, 5):
        answer = ask(client, logprobs=True, top_logprobs=most, **GREEDY)
        content = answer["choices"][0]["logprobs"]["content"]
        assert [entry["logprob"] for entry in content] == pytest.approx(
            [entry.logprob for entry in expected.logprobs]
        )
        for entry in content:
            assert len(entry["top_logprobs"]) == most
            values = [top["logprob"] for top in entry["top_logprobs"]]
            assert values == sorted(values, reverse=True)
            assert len(entry["bytes"]) >= 1
        assert told(client, logprobs=True, top_logprobs=most, **GREEDY).logprobs[0] == len(content)


REFUSED = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages",
    ),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 4000}, "max_tokens"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"store": True}, "store"),
    ({"metadata": {"a": "b"}}, "metadata"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"functions": []}, "functions"),
    ({"audio": {}}, "audio"),
    ({"echo": True}, "echo"),
    ({"speculation": {"threshold": 0.5}}, "speculation.threshold"),
]


@pytest.mark.parametrize(("change", "param"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(client, change, param):
    error = ask(client, 400, **change)["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [None, False, True])
def test_only_a_true_stream_is_a_stream(client, stream):
    body = {"messages": MESSAGES, "max_tokens": 3, **({} if stream is None else {"stream": stream})}
    kind = client.post(ROUTE, json=body, headers={"accept": "application/json"}).headers["content-type"]
    assert kind.startswith("text/event-stream" if stream else "application/json")


def test_fields_that_ask_for_nothing_are_taken(client):
    nothing = {"user": "me", "store": False, "metadata": None, "functions": None, "modalities": ["text"]}
    assert ask(client, **nothing, **GREEDY, response_format={"type": "text"}, stop=None)["choices"]


# --- what ends an answer, on a scripted model ---------------------------------------------------------------

ANSWER = "naïve café: déjà vu, one two three four five six seven eight nine ten."
SCRIPT = Script(tuple(encode("UHi\nA")), (*encode(ANSWER), EOS))


@pytest.fixture(scope="module")
def scripted():
    with client_of(fake_app(fake_engine(SCRIPT))) as client:
        yield client


def scripted_body(**more):
    return {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, **more}


@pytest.mark.parametrize("block", [8, 16, 32])
def test_streams_never_split_a_character_and_say_it_all(scripted, block):
    heard = told(scripted, **scripted_body(speculation={"method": "linear", "block_size": block}))
    assert heard.text[0] == ANSWER
    assert heard.finish[0] == "stop"
    assert not any("\ufffd" in delta for delta in heard.deltas[0])


@pytest.mark.parametrize("block", [8, 32])
@pytest.mark.parametrize("at", range(0, len(ANSWER) - 5, 5))
def test_a_stop_string_is_never_said_nor_begun(scripted, block, at):
    stop = ANSWER[at : at + 5]
    body = scripted_body(stop=stop, speculation={"method": "linear", "block_size": block})
    heard = told(scripted, **body)
    assert heard.text[0] == ANSWER[: ANSWER.find(stop)]
    assert heard.finish[0] == "stop"
    assert ask(scripted, **body)["choices"][0]["message"]["content"] == heard.text[0]


def test_what_a_stop_string_held_back_is_said_if_it_does_not_come(scripted):
    whole = len(encode(ANSWER))
    heard = told(scripted, **scripted_body(stop="ten.!", max_tokens=whole))
    assert heard.text[0] == ANSWER
    assert heard.finish[0] == "length"


@pytest.mark.parametrize("cap", [1, 2, 9, 40])
def test_the_cap_ends_an_answer_whatever_was_drafted(scripted, cap):
    answer = ask(scripted, **scripted_body(max_tokens=cap, stream_options=None))
    assert answer["usage"]["completion_tokens"] == cap
    assert answer["choices"][0]["finish_reason"] == "length"


def test_the_rest_of_the_context_is_the_default():
    with client_of(fake_app(fake_engine(SCRIPT, max_model_len=64))) as small:
        answer = ask(small, **scripted_body(ignore_eos=True))
    assert answer["usage"]["total_tokens"] == 64
    assert answer["choices"][0]["finish_reason"] == "length"


def test_the_end_beats_a_cap_at_the_same_token(scripted):
    tokens = len(encode(ANSWER)) + 1
    answer = ask(scripted, **scripted_body(max_tokens=tokens))
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["message"]["content"] == ANSWER


def test_min_tokens_and_ignore_eos_go_past_the_end(scripted):
    tokens = len(encode(ANSWER)) + 1
    past = ask(scripted, **scripted_body(max_tokens=tokens + 9, ignore_eos=True))
    assert past["usage"]["completion_tokens"] == tokens + 9
    later = ask(scripted, **scripted_body(max_tokens=tokens + 9, min_tokens=tokens + 3))
    assert later["usage"]["completion_tokens"] >= tokens + 3
