"""Streams are read the same however the network cuts them, and broken ones are not read at all."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.bench.load.answer import Answer, StreamedError
from recguide.bench.load.events import EventParser, MalformedStreamError


def events(parts):
    parser = EventParser()
    found = [event for part in parts for event in parser.feed(part)]
    parser.close()
    return found


@given(
    texts=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=20),
        min_size=1,
        max_size=5,
    ),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 400), max_size=20),
)
def test_any_cut_of_a_stream_gives_its_events(texts, end, cuts):
    stream = b"".join(b": a comment" + end + b"data: " + text.encode() + end + end for text in texts)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    parts = [stream[a:b] for a, b in pairwise(places)]
    assert events(parts) == [text.encode() for text in texts]


def test_lines_of_one_event_are_joined_and_other_fields_skipped():
    assert events([b"event: message\nid: 1\ndata: a\ndata:b\n\nretry: 5\n\n"]) == [b"a\nb"]


@pytest.mark.parametrize("stream", [b"hello\n\n", b"<html>\n", b'{"choices": []}\n'])
def test_what_is_no_event_stream_is_refused(stream):
    with pytest.raises(MalformedStreamError, match="no field"):
        events([stream])


@pytest.mark.parametrize("stream", [b"data: 1", b"data: 1\n", b"data: 1\n\ndata"])
def test_an_unfinished_event_is_refused(stream):
    with pytest.raises(MalformedStreamError, match="ends inside"):
        events([stream])


def taken(*chunks):
    answer = Answer()
    for at, value in enumerate(chunks):
        answer.take(value if isinstance(value, bytes) else json.dumps(value).encode(), float(at))
    return answer


def said(text, **more):
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}


def test_reasoning_and_text_are_both_answers_first_tokens():
    answer = taken(
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        said("yes"),
    )
    assert [arrival.at_s for arrival in answer.arrivals] == [1.0, 2.0]
    assert answer.text == "hmyes"


def test_running_usage_counts_each_chunk():
    answer = taken(
        said("", usage={"completion_tokens": 0}),
        said("abc", usage={"completion_tokens": 3}),
        said("d", usage={"completion_tokens": 4}),
        {"choices": [], "usage": {"completion_tokens": 4}},
    )
    assert [arrival.tokens for arrival in answer.arrivals] == [3, 1]


def test_usage_at_the_end_alone_counts_no_chunk():
    finish = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 9}}
    answer = taken(said("abc", usage=None), finish)
    assert [arrival.tokens for arrival in answer.arrivals] == [None]
    assert answer.usage["completion_tokens"] == 9


HALF = b'{"choices": [{"delta": {"content": "\\ud83d"}}]}'


@pytest.mark.parametrize("chunk", [b"nonsense", b"[1]", b'{"object": "chunk"}', b"[" * 100_000, HALF])
def test_an_event_that_is_no_chunk_is_refused(chunk):
    with pytest.raises(MalformedStreamError):
        taken(chunk)


NAMES = ("choices", "delta", "content", "text", "usage", "token_ids", "logprobs", "metrics", "finish_reason")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.fixed_dictionaries({"choices": VALUES | st.lists(VALUES, max_size=2), "usage": VALUES})))
def test_whatever_json_comes_is_read_or_refused(chunks):
    try:
        answer = taken(*chunks)
    except MalformedStreamError:
        return
    assert isinstance(answer.text, str)
    assert answer.count("completion_tokens") is None or isinstance(answer.count("completion_tokens"), int)


def test_data_after_the_end_is_refused():
    with pytest.raises(MalformedStreamError, match="after"):
        taken(b"[DONE]", said("more"))


def test_an_error_object_is_an_error():
    with pytest.raises(StreamedError, match="engine died"):
        taken({"error": {"message": "engine died"}})
