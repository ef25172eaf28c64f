"""/v1/completions: what comes back is what the offline engine says, in OpenAI's shape."""

from __future__ import annotations

import pytest
from tests.fake import Script, engine
from tests.serving.site import Told, client_of, events, fake_app
from tests.tiny import SPECIALS

from recguide.core import SamplingParams

ROUTE = "/v1/completions"
PROMPTS = ("Once upon a time", "In a hole in the ground", "x")
PARAMS = {"max_tokens": 16, "temperature": 0, "ignore_eos": True}


def offline(llm, prompt, **params):
    return llm.generate([prompt], SamplingParams(**params))[0].completions


def named(llm, token):
    """A token's text, or its one byte where that is no character."""
    text = llm.tokenizer.decode([token], False)
    return f"bytes:\\x{token - SPECIALS:02x}" if text == "\ufffd" else text


def ask(client, status=200, **body):
    response = client.post(ROUTE, json=body)
    assert response.status_code == status, response.text
    return response.json()


def told(client, **body):
    response = client.post(ROUTE, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return Told(events(response.text), chat=False)


@pytest.mark.parametrize(
    "params",
    [
        PARAMS,
        {"max_tokens": 20, "temperature": 0.9, "seed": 7, "top_p": 0.9, "top_k": 40},
        {"max_tokens": 12, "temperature": 1.0, "seed": 3, "n": 3},
        {"max_tokens": 12, "temperature": 0, "repetition_penalty": 1.3, "logit_bias": {"120": 5.0}},
    ],
)
def test_whole_and_streamed_text_is_the_offline_engines(client, llm, params):
    known = {**params, "logit_bias": {int(k): v for k, v in params.get("logit_bias", {}).items()}}
    expected = offline(llm, PROMPTS[0], **known)
    whole = ask(client, prompt=PROMPTS[0], **params)
    stream = told(client, prompt=PROMPTS[0], **params)
    assert [choice["text"] for choice in whole["choices"]] == [each.text for each in expected]
    assert [choice["finish_reason"] for choice in whole["choices"]] == [
        each.finish_reason.value for each in expected
    ]
    assert stream.text == {each.index: each.text for each in expected}
    assert stream.finish == {each.index: each.finish_reason.value for each in expected}


def test_the_shape_is_openais(client):
    answer = ask(client, prompt=PROMPTS[0], **PARAMS)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "tiny"
    use = answer["usage"]
    assert (use["prompt_tokens"], use["completion_tokens"], use["total_tokens"]) == (16, 16, 32)
    assert 0 <= use["prompt_tokens_details"]["cached_tokens"] < 16
    (choice,) = answer["choices"]
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "length")


def test_several_prompts_are_answered_in_order_with_their_choices(client, llm):
    params = {"max_tokens": 8, "temperature": 0.8, "seed": 5, "n": 2}
    whole = ask(client, prompt=list(PROMPTS), **params)
    stream = told(client, prompt=list(PROMPTS), **params)
    expected = [each.text for prompt in PROMPTS for each in offline(llm, prompt, **params)]
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    assert [choice["text"] for choice in whole["choices"]] == expected
    assert [stream.text[index] for index in range(6)] == expected
    lengths = sum(len(llm.tokenizer.encode(prompt)) for prompt in PROMPTS)
    assert whole["usage"]["prompt_tokens"] == lengths


def test_token_ids_are_prompts_too(client, llm):
    ids = llm.tokenizer.encode(PROMPTS[0])
    one = ask(client, prompt=PROMPTS[0], **PARAMS)["choices"][0]["text"]
    assert ask(client, prompt=ids, **PARAMS)["choices"][0]["text"] == one
    both = ask(client, prompt=[ids, ids[:5]], **PARAMS)["choices"]
    assert both[0]["text"] == one
    assert len(both) == 2


@pytest.mark.parametrize("stream", [None, False, True])
def test_only_a_true_stream_is_a_stream(client, stream):
    body = {"prompt": "x", "max_tokens": 3, **({} if stream is None else {"stream": stream})}
    kind = client.post(ROUTE, json=body, headers={"accept": "application/json"}).headers["content-type"]
    assert kind.startswith("text/event-stream" if stream else "application/json")


def test_usage_comes_last_and_only_when_asked_for(client):
    silent = told(client, prompt="x", max_tokens=5)
    assert silent.usage is None
    asked = told(client, prompt="x", max_tokens=5, n=2, stream_options={"include_usage": True})
    assert asked.usage["prompt_tokens"] == 1
    assert asked.usage["completion_tokens"] <= 10
    assert asked.metrics["speculative_decoding"]["forwards"] >= 1


def test_echo_begins_with_the_prompt(client, llm):
    (expected,) = offline(llm, PROMPTS[0], max_tokens=6)
    body = {"prompt": PROMPTS[0], "max_tokens": 6, "temperature": 0, "echo": True}
    assert ask(client, **body)["choices"][0]["text"] == PROMPTS[0] + expected.text
    assert told(client, **body).text[0] == PROMPTS[0] + expected.text


def test_echo_alone_costs_no_token(client):
    answer = ask(client, prompt=[PROMPTS[0], "x"], max_tokens=0, echo=True)
    assert [choice["text"] for choice in answer["choices"]] == [PROMPTS[0], "x"]
    assert answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("most", [0, 1, 4])
def test_logprobs_of_an_echoed_prompt_are_aligned_with_its_tokens(client, llm, most):
    ids = llm.tokenizer.encode(PROMPTS[0])
    params = {"logprobs": 2, "prompt_logprobs": 2, "max_tokens": most, "temperature": 0.0}
    (expected,) = offline(llm, ids, **params)
    answer = ask(client, prompt=ids, echo=True, logprobs=2, max_tokens=most, temperature=0)
    found = answer["choices"][0]["logprobs"]
    tokens = [*ids, *expected.token_ids]
    assert found["tokens"] == [named(llm, token) for token in tokens]
    values = [entry.logprob for entry in (*expected.prompt_logprobs, *expected.logprobs)]
    assert found["token_logprobs"][0] is None
    assert found["token_logprobs"][1:] == pytest.approx(values)
    assert found["top_logprobs"][0] is None
    assert found["text_offset"][: len(ids)] == list(range(len(ids)))
    assert answer["usage"]["completion_tokens"] == most


def test_logprobs_are_the_engines_one_for_each_token(client, llm):
    params = {"max_tokens": 16, "temperature": 0.0, "logprobs": 3}
    (expected,) = offline(llm, PROMPTS[0], **params)
    (plain,) = offline(llm, PROMPTS[0], method="ar", **params)
    choice = ask(client, prompt=PROMPTS[0], **params)["choices"][0]
    found = choice["logprobs"]["token_logprobs"]
    assert found == pytest.approx([entry.logprob for entry in expected.logprobs])
    assert found == pytest.approx([entry.logprob for entry in plain.logprobs], abs=1e-6)
    for token, value, top in zip(
        choice["logprobs"]["tokens"], found, choice["logprobs"]["top_logprobs"], strict=True
    ):
        assert top[token] == pytest.approx(value)
        assert len(top) in (3, 4)
    assert told(client, prompt=PROMPTS[0], **params).logprobs[0] == len(expected.token_ids)


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_and_logprobs_agree_with_usage_under_a_stop(client, llm, stream):
    (free,) = offline(llm, PROMPTS[0], max_tokens=40)
    stop = free.text[9:12]
    body = {"prompt": PROMPTS[0], "max_tokens": 40, "temperature": 0, "stop": stop, "logprobs": 1}
    body |= {"return_token_ids": True}
    if stream:
        heard = told(client, **body, stream_options={"include_usage": True})
        text, ids, entries, usage = heard.text[0], heard.token_ids[0], heard.logprobs[0], heard.usage
        reason = heard.finish[0]
    else:
        answer = ask(client, **body)
        choice, usage = answer["choices"][0], answer["usage"]
        text, ids, entries = choice["text"], choice["token_ids"], len(choice["logprobs"]["tokens"])
        reason = choice["finish_reason"]
        assert choice["stop_reason"] == stop
        assert choice["prompt_token_ids"] == llm.tokenizer.encode(PROMPTS[0])
    assert text == free.text[: free.text.find(stop)]
    assert reason == "stop"
    assert len(ids) == entries == usage["completion_tokens"]
    assert tuple(ids) == free.token_ids[: len(ids)]


@pytest.mark.parametrize(
    "wanted",
    [
        False,
        {"method": "ar"},
        {"method": "linear", "block_size": 4},
        {"policy": "fixed-16", "max_block_size": 4},
    ],
)
def test_speculation_is_the_requests_choice_and_changes_no_text(client, llm, wanted):
    (expected,) = offline(llm, PROMPTS[0], max_tokens=16, ignore_eos=True)
    answer = ask(client, prompt=PROMPTS[0], speculation=wanted, **PARAMS)
    assert answer["choices"][0]["text"] == expected.text
    stats = answer["metrics"]["speculative_decoding"]
    largest = 1 if wanted in (False, {"method": "ar"}) else 4
    assert max(map(int, stats["blocks"])) == largest
    assert (stats["num_draft_tokens"] > 0) is (largest > 1)


@pytest.fixture(scope="module")
def small():
    """A scripted model with a context of 64 tokens."""
    with client_of(fake_app(engine(Script((120,), (121,) * 100), max_model_len=64))) as client:
        yield client


@pytest.mark.parametrize("length", [63, 64, 65])
def test_a_prompt_at_the_contexts_limit(small, length):
    response = small.post(ROUTE, json={"prompt": [120] * length, "max_tokens": None, "temperature": 0})
    if length < 64:
        assert response.status_code == 200
        assert response.json()["usage"]["completion_tokens"] == 1
    else:
        error = response.json()["error"]
        assert response.status_code == 400
        assert error["code"] == "context_length_exceeded"
        assert "64" in error["message"]
        assert str(length) in error["message"]


def test_too_many_tokens_are_refused_with_what_would_fit(client):
    error = ask(client, 400, prompt="x", max_tokens=2048)["error"]
    assert error["param"] == "max_tokens"
    assert "2047" in error["message"]


def test_one_token_is_one_token_and_no_draft(client):
    answer = ask(client, prompt=PROMPTS[0], max_tokens=1)
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


REFUSED = [
    ({"suffix": "."}, "suffix"),
    ({"best_of": 3}, "best_of"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 1.5}, "n"),
    ({"logprobs": 21}, "logprobs"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a"] * 65}, "stop"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"99999": 1}}, "logit_bias"),
    ({"seed": -1}, "seed"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream_options": {"sometimes": True}, "stream": True}, "stream_options"),
    ({"speculation": {"method": "magic"}}, "speculation.method"),
    ({"speculation": {"block_size": 65}}, "speculation.block_size"),
    ({"speculation": {"tree": 3}}, "speculation"),
    ({"speculation": {"policy": "greed"}}, "speculation.policy"),
    ({"speculation": {"max_block_size": 65}}, "speculation.max_block_size"),
    ({"min_tokens": 9}, "min_tokens"),
    ({"timeout": 0}, "timeout"),
    ({"echo": True, "logprobs": 1, "stream": True}, "logprobs"),
    ({"frobnicate": 1}, "frobnicate"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [999]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
]


@pytest.mark.parametrize(("change", "param"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(client, change, param):
    error = ask(client, 400, **{"prompt": "x", "max_tokens": 5, **change})["error"]
    assert error["param"] == param
    assert param in error["message"]
    assert error["type"] == "invalid_request_error"


def test_refusals_are_the_same_when_streamed(client):
    for change, param in REFUSED:
        if "stream_options" in change:
            continue
        error = ask(client, 400, **{"prompt": "x", "max_tokens": 5, "stream": True, **change})["error"]
        assert error["param"] == param


def test_another_model_is_not_found(client):
    error = ask(client, 404, prompt="x", model="gpt-4")["error"]
    assert error["code"] == "model_not_found"
    assert "tiny" in error["message"]


BROKEN = (
    b"",
    b"{",
    b"[]",
    b'{"prompt": NaN}',
    b'{"prompt": "\\ud800"}',
    b"\xff",
    b"[" * 5000,
    b'{"prompt": "x", "seed": 1e999}',
)


@pytest.mark.parametrize("body", BROKEN)
def test_bodies_that_are_no_request_get_a_400(client, body):
    response = client.post(ROUTE, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_a_body_that_is_not_sent_as_json_is_told_how_to_be(client):
    response = client.post(ROUTE, content=b'{"prompt": "x"}', headers={"content-type": "text/plain"})
    assert response.status_code == 400
    assert "Content-Type: application/json" in response.json()["error"]["message"]


def test_of_two_forms_of_a_field_only_the_one_that_was_meant_is_spoken_of(client):
    error = ask(client, 400, prompt="x", speculation={"block": 4})["error"]
    assert error["message"] == "speculation: block: is not supported; leave it out"
    error = ask(client, 400, prompt="x", speculation=4)["error"]
    assert "boolean" in error["message"]
    assert "dictionary" in error["message"]


def test_a_timeout_ends_the_request_and_frees_it(client):
    body = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "timeout": 0.05}
    assert ask(client, 504, **body)["error"]["code"] == "timeout"
    response = client.post(ROUTE, json={**body, "stream": True})
    begun = response.status_code == 200  # a stream that has begun ends with the error
    last = events(response.text)[-1] if begun else response.json()
    assert last["error"]["code"] == "timeout"
    late = client.post(ROUTE, json={**body, "timeout": None}, headers={"x-request-timeout": "0.05"})
    assert late.status_code == 504
