"""What a grammar allows depends on the tokens before a slot and on nothing else."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.toy import byte_tokenizer_json

from recguide.core import ParameterError, Structure, Vocabulary
from recguide.speculation.grammar import Grammars

EOS, MASK, OPEN, CLOSE, LAST = range(256, 261)
SPECIALS = ("<eos>", "<mask>", "<think>", "</think>", "<end>")
WORDS = Structure("regex", "(ab|abc|b)*d?")
TOKENS = st.lists(st.sampled_from([*b"abcd", EOS, MASK, CLOSE]), max_size=8)


@cache
def grammars(size=261):
    vocabulary = Vocabulary(size=size, eos=(EOS, LAST), mask=MASK, think=(OPEN, CLOSE))
    return Grammars(lambda: byte_tokenizer_json(SPECIALS), 261, vocabulary)


def matcher(prompt=(), size=261):
    return grammars(size).matcher(WORDS, prompt)


def tokens(allowed, slot=0):
    return set(allowed.on(torch.device("cpu"))[slot].nonzero().flatten().tolist())


def after(history, prompt=()):
    """What a matcher that has seen nothing else allows."""
    return tokens(matcher(prompt).allowed(history))


def test_what_comes_first_next_and_last():
    assert after([]) == {*b"abd", EOS, LAST}
    assert after(b"a") == {*b"b"}
    assert after(b"ab") == {*b"abcd", EOS, LAST}
    assert after(b"abd") == {EOS, LAST}


@pytest.mark.parametrize("size", [261, 288, 300, 320, 257])
def test_ids_that_the_tokenizer_does_not_know_are_never_allowed(size):
    """A model's logits may be wider than its tokenizer, or narrower, and fill their last word or not."""
    allowed = matcher(size=size).allowed(b"ab", b"d")
    assert allowed.on(torch.device("cpu")).shape == (2, size)
    assert tokens(allowed, 1) == {EOS, LAST} & set(range(size))


@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=6))
def test_a_matcher_may_be_asked_anything_in_any_order(questions):
    """Every slot sees what a matcher sees that was never asked before, as far as tokens are allowed."""
    one = matcher()
    for history, following in questions:
        history = _legal(history)
        allowed = one.allowed(history, following)
        for slot in range(len(following) + 1):
            assert tokens(allowed, slot) == after([*history, *following[:slot]])
            if slot < len(following) and not _goes_on(allowed, slot, following[slot]):
                break


MERGES = (("a", "b"), ("c", "d"), ("ab", "cd"), ("b", "c"), ("d", "a"))
AB, CD, ABCD, BC, DA, END = range(256, 262)


@cache
def merged():
    """A tokenizer that can cut most texts in several ways."""
    return Grammars(lambda: byte_tokenizer_json(["<end>"], MERGES), 262, Vocabulary(size=262, eos=(END,)))


@given(
    st.sampled_from(["(abcd|bcd|d)*", "(abcdabcd|abcc)+", "[abcd]{3,9}", "a.*cd"]),
    st.lists(
        st.lists(st.sampled_from([*b"abcd", AB, CD, ABCD, BC, DA, END]), min_size=3, max_size=9), max_size=5
    ),
)
def test_tokens_of_several_bytes_change_nothing_of_that(expression, questions):
    """Nor that a matcher was also asked what is demanded, as drafts ask."""

    def fresh():
        return merged().matcher(Structure("regex", expression), ())

    one = fresh()
    for wanted in questions:
        history = _legal(wanted, lambda known: tokens(fresh().allowed(known)), ends=(END,))
        allowed = one.allowed(history, wanted)
        for slot in range(len(wanted) + 1):
            assert tokens(allowed, slot) == tokens(fresh().allowed([*history, *wanted[:slot]]))
            if slot < len(wanted) and ((slot, wanted[slot]) not in allowed or wanted[slot] == END):
                break
        demanded = one.demanded(history)
        assert demanded == fresh().demanded(history)
        assert not demanded or (0, demanded[0]) in one.allowed(history)


def _legal(wanted, allowed=after, ends=(EOS, LAST)):
    """The tokens as far as they may be emitted."""
    history: list[int] = []
    for token in wanted:
        if token in ends or token not in allowed(history):
            break
        history.append(token)
    return history


def _goes_on(allowed, slot, token):
    return (slot, token) in allowed and token not in (EOS, LAST)


@given(TOKENS, TOKENS)
def test_past_what_is_not_allowed_anything_goes(history, following):
    history = _legal(history)
    allowed = matcher().allowed(history, following)
    ended = False
    for slot, token in enumerate(following):
        ended = ended or not _goes_on(allowed, slot, token)
        if ended:
            assert tokens(allowed, slot + 1) == set(range(261))


@pytest.mark.parametrize("thoughts", range(4))
def test_thinking_that_the_prompt_opened_is_free_but_for_its_end(thoughts):
    history, prompt = [*b"xyz"][:thoughts], [1, OPEN, CLOSE, OPEN]
    free = set(range(261)) - {EOS, LAST}
    assert after(history, prompt) == free
    allowed = matcher(prompt).allowed(history, [7, CLOSE, *b"ab"])
    assert [tokens(allowed, slot) == free for slot in range(5)] == [True, True, False, False, False]
    assert tokens(allowed, 2) == after([])
    assert tokens(allowed, 4) == after(b"ab")
    assert after([*history, CLOSE, *b"ab"], prompt) == after(b"ab")


def test_thinking_that_is_closed_or_not_open_frees_nothing():
    assert after([], [OPEN, CLOSE]) == after([])
    assert after([], [CLOSE]) == after([])


def test_demanded_tokens_are_those_without_a_choice():
    one = grammars().matcher(Structure("regex", "(on|off)-now"), ())
    assert one.demanded([]) == [*b"o"]
    assert one.demanded(b"of") == [*b"f-now"]
    assert one.demanded(b"off-now") == []


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", ["<call>", "[CALL]", "call"])
def test_the_name_of_an_added_token_in_a_structure(name, special):
    """A special token spells nothing, so its name is spelled out; any other added token is text."""
    added = [{"id": 257, "content": name, "special": special}]
    grammars = Grammars(lambda: _with_added(added), 258, Vocabulary(size=258, eos=(256,)))
    one = grammars.matcher(Structure("regex", re.escape(name) + "!"), ())
    said = []
    while (token := min(tokens(one.allowed(said)))) != 256:
        said.append(token)
    assert said == [*([*name.encode()] if special else [257]), *b"!"]


def test_the_name_of_end_of_sequence_does_not_end_an_output():
    one = grammars().matcher(Structure("regex", "<eos>"), ())
    assert tokens(one.allowed([])) == {*b"<"}


def _with_added(added):
    content = json.loads(byte_tokenizer_json(["<end>"]))
    (template,) = content["added_tokens"]
    content["added_tokens"] += [{**template, **token} for token in added]
    return json.dumps(content)


def test_a_slot_alone_and_slots_followed_by_anything():
    allowed = matcher().allowed(b"a", b"b")
    assert tokens(allowed.one(1)) == after(b"ab")
    longer = allowed.one(0).followed_by_anything(3)
    assert [len(tokens(longer, slot)) for slot in range(3)] == [1, 261, 261]


def test_a_model_without_end_of_sequence_takes_no_structure():
    bare = Grammars(lambda: byte_tokenizer_json(SPECIALS), 261, Vocabulary(size=261, eos=()))
    with pytest.raises(ParameterError, match="end-of-sequence"):
        bare.matcher(WORDS, ())


def test_a_tokenizer_that_cannot_be_read_refuses_structures_and_nothing_else(caplog):
    broken = Grammars(lambda: '{"added_tokens": []}', 261, Vocabulary(size=261, eos=(EOS,)))
    broken.warm()
    assert "will be refused" in caplog.text
    with pytest.raises(ParameterError, match="tokenizer"):
        broken.matcher(WORDS, ())


@pytest.mark.parametrize(
    ("kind", "text"),
    [("xml", "x"), ("regex", ""), ("json_object", "{}"), ("json_schema", {}), ("regex", "a" * 70_000)],
)
def test_a_structure_that_is_none_is_refused(kind, text):
    with pytest.raises(ParameterError, match="structure"):
        Structure(kind, text)
