"""Prompts that begin alike go where their beginning is known, as long as the load stays even."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.serving.deploy.prefixes import BLOCK, BLOCKS, SLACK, PrefixMap, prompt_blocks, ranked

NAMES = ("a", "b", "c")
LOADS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 30), min_size=1)
PROMPTS = st.lists(st.lists(st.integers(0, 3), max_size=4).map(tuple), max_size=20)


def chat(*contents):
    turns = [{"role": "user", "content": content} for content in contents]
    return json.dumps({"model": "m", "temperature": 0.5, "messages": turns}).encode()


def test_chats_that_begin_alike_share_the_names_of_their_beginning():
    system = "You are terse. " * 100
    one, other = prompt_blocks(chat(system, "why?" * 200)), prompt_blocks(chat(system, "what?" * 200))
    shared = [a for a, b in zip(one, other, strict=False) if a == b]
    assert len(system) // BLOCK <= len(shared) < len(one)
    assert one[: len(shared)] == other[: len(shared)]
    assert not set(one[len(shared) :]) & set(other[len(shared) :])


def test_names_are_chained():
    same_end = prompt_blocks(json.dumps({"prompt": "x" * BLOCK + "z" * BLOCK}).encode())
    other = prompt_blocks(json.dumps({"prompt": "y" * BLOCK + "z" * BLOCK}).encode())
    assert len(same_end) == len(other) == 2
    assert not set(same_end) & set(other)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"prompt": null}', b"\xff", b"[" * 100_000])
def test_what_has_no_prompt_has_no_names(body):
    assert prompt_blocks(body) == ()


def test_a_long_prompt_has_names_for_its_beginning_alone():
    assert len(prompt_blocks(json.dumps({"prompt": "x" * BLOCK * BLOCKS * 2}).encode())) == BLOCKS
    assert len(prompt_blocks(json.dumps({"prompt": list(range(1000))}).encode())) > 1


def test_a_known_beginning_wins_until_its_replica_is_too_far_ahead():
    seen = PrefixMap()
    seen.sent((1, 2, 3), "b")
    seen.sent((1,), "a")
    assert ranked(seen, (1, 2, 9), {"a": 0, "b": SLACK, "c": 0})[0] == ["b"]
    assert ranked(seen, (1, 2, 9), {"a": 0, "b": SLACK + 1, "c": 0})[0] == ["a"]
    assert ranked(seen, (1, 2, 9), {"a": 20, "b": 30, "c": 20})[0] == ["b"]
    assert ranked(seen, (7,), {"a": 3, "b": 1, "c": 1})[0] == ["b", "c"]


@given(PROMPTS, st.lists(st.integers(0, 3), max_size=4), LOADS)
def test_every_replica_is_offered_once_and_none_far_ahead_first(sent, blocks, loads):
    seen = PrefixMap()
    for place, prompt in enumerate(sent):
        seen.sent(prompt, NAMES[place % 3])
    order = ranked(seen, blocks, loads)
    assert sorted(name for group in order for name in group) == sorted(loads)
    least = min(loads.values())
    assert all(loads[name] <= max(least + SLACK, 1.5 * least) for name in order[0])
    if any(seen.known(blocks, name) for name in order[0]):
        assert len({seen.known(blocks, name) for name in order[0]}) == 1


def test_replicas_that_are_gone_and_old_beginnings_are_forgotten():
    seen = PrefixMap(remembered=2)
    seen.sent((1, 2), "a")
    seen.sent((1,), "b")
    seen.keep({"b"})
    assert (seen.known((1, 2), "a"), seen.known((1, 2), "b")) == (0, 1)
    seen.sent((5, 6), "b")
    assert seen.known((1,), "b") == 0
    assert seen.known((5, 6), "b") == 2
