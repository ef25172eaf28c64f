"""Reasoning and answer: the same split however a text comes, and nothing lost but the tags."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.serving.reasoning import ReasoningSplitter

TEXTS = st.lists(st.sampled_from(["<think>", "</think>", "<", "</th", "think>", "a", " ", "\n", "é"])).map(
    "".join
)


def split(pieces, *, opened):
    splitter = ReasoningSplitter(opened=opened)
    parts = [*map(splitter.push, pieces), splitter.finish()]
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


def cut(text, places):
    ends = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


def at_once(text, *, opened):
    """The whole text, by one expression."""
    begin = "" if opened else r"(?P<space>\s*)<think>"
    found = re.fullmatch(rf"{begin}(?P<inside>.*?)(</think>(?P<after>.*))?", text, re.DOTALL)
    if found is None:
        return "", text
    groups = found.groupdict()
    return (groups.get("space") or "") + groups["inside"], groups["after"] or ""


@given(TEXTS, st.booleans(), st.lists(st.integers(0, 40), max_size=12))
def test_any_cut_gives_the_split_of_the_whole(text, opened, places):
    assert split(cut(text, places), opened=opened) == at_once(text, opened=opened)


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        ("hm</think>\n42", True, "hm", "\n42"),
        ("<think>hm</think>42", False, "hm", "42"),
        ("\n<think>hm</think>42", False, "\nhm", "42"),
        ("never closed", True, "never closed", ""),
        ("no thought", False, "", "no thought"),
        ("a <think> in an answer", False, "", "a <think> in an answer"),
        ("one</think>two</think>", True, "one", "two</think>"),
        ("", False, "", ""),
    ],
)
def test_what_is_what(text, opened, reasoning, content):
    assert split(list(text), opened=opened) == (reasoning, content)


def test_no_more_is_held_back_than_may_be_a_tag():
    splitter = ReasoningSplitter(opened=True)
    assert splitter.push("hm <").reasoning == "hm "
    assert splitter.push("b></thin").reasoning == "<b>"
    assert splitter.push("k>4") == ("", "4")
