"""Prompts of files, and what a request's body is made of."""

from __future__ import annotations

from itertools import islice

import pytest

from recguide.bench.load.endpoint import Asking, Endpoint, api_root, body, extra_fields
from recguide.bench.load.prompts import Prompt, built_in, deal, read_prompts
from recguide.core import ParameterError


def test_every_field_of_a_line_is_read(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"prompt": "a\\u2028b"}\n\n{"question": "why?"}\n'
        '{"messages": [{"role": "user", "content": "hi"}], "prompt": "not this"}\n'
    )
    one, two, three = read_prompts(file)
    assert (one.content, two.content) == ("a\u2028b", "why?")
    assert three.messages == [{"role": "user", "content": "hi"}]
    assert [prompt.number for prompt in (one, two, three)] == [0, 1, 2]


def test_a_text_file_has_a_prompt_a_line(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("one\r\n\ntwo\n")
    assert [prompt.content for prompt in read_prompts(file)] == ["one", "two"]


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"text": "a"}', '{"prompt": 1}', '{"prompt": ""}', '{"messages": [1]}']
)
def test_a_bad_line_is_named(tmp_path, line):
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    with pytest.raises(ParameterError, match="line 2"):
        read_prompts(file)


def test_dealing_uses_all_prompts_and_repeats_with_its_seed():
    prompts = built_in()
    dealt = list(islice(deal(prompts, 3, 0), 2 * len(prompts)))
    assert {prompt.number for prompt in dealt[: len(prompts)]} == set(range(len(prompts)))
    assert dealt == list(islice(deal(prompts, 3, 0), 2 * len(prompts)))
    assert dealt != list(islice(deal(prompts, 4, 0), 2 * len(prompts)))
    assert dealt != list(islice(deal(prompts, 3, 1), 2 * len(prompts)))


CHAT = Prompt(0, ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_body_asks_for_a_stream_with_usage_under_a_seed_of_its_own(temperature):
    sent = body(Endpoint("e", "http://h", "m", "completions"), Asking(3, temperature), Prompt(0, "a"), 5)
    assert sent == {
        "model": "m",
        "prompt": "a",
        "max_tokens": 3,
        "temperature": temperature,
        "seed": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_extra_fields_win_and_null_drops():
    extra = extra_fields('{"ignore_eos": true, "stream_options": null, "max_tokens": 3}')
    sent = body(Endpoint("e", "http://h", "m", extra_body=extra), Asking(max_tokens=9), CHAT, 0)
    assert (sent["ignore_eos"], sent["max_tokens"]) == (True, 3)
    assert "stream_options" not in sent
    assert sent["messages"] == list(CHAT.content)


def test_a_mark_makes_prompts_unique_from_their_first_token_on():
    asking = Asking(unique=True)
    marked = body(Endpoint("e", "http://h", "m"), asking, CHAT, 41)["messages"]
    assert marked[0]["content"] == "[41] be brief"
    assert marked[1] == CHAT.content[1]


def test_a_chat_is_no_plain_completion():
    with pytest.raises(ParameterError, match="--api chat"):
        body(Endpoint("e", "http://h", "m", "completions"), Asking(), CHAT, 0)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_addresses_may_end_in_v1(url):
    assert api_root(url) == "http://h:1/v1"


def test_an_address_needs_its_scheme_and_a_body_an_object():
    with pytest.raises(ParameterError, match="http://"):
        api_root("localhost:8000")
    for text in ("{", "[]", "1"):
        with pytest.raises(ParameterError, match="extra_body"):
            extra_fields(text)
