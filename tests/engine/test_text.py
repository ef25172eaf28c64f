"""Text grows token by token: characters are never split, stop strings never leak, nothing is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.fake import decode

from recguide.engine.text import Pieces, TextStream

BYTES = st.lists(st.integers(0, 255), max_size=40)
WORDS = st.text(alphabet="ab€😀<", min_size=1, max_size=6)


def streamed(ids, stops=(), may_stop=True, pieces=None, prompt=()):
    stream = TextStream(pieces or Pieces(decode), prompt, stops)
    deltas = []
    for token in ids:
        if stream.push(token, may_stop=may_stop):
            break
        deltas.append(stream.take(final=False))
    stream.finish()
    return stream, [*deltas, stream.take(final=True)]


@given(BYTES)
def test_deltas_join_to_the_text_and_the_text_is_all_of_it(ids):
    stream, deltas = streamed(ids)
    assert "".join(deltas) == stream.text == decode(ids)


JOINING = Pieces(decode, joins=True)


@given(BYTES, st.lists(st.integers(0, 255), max_size=3), st.lists(WORDS, max_size=2))
def test_what_tokens_say_alone_is_what_they_say_together(ids, prompt, stops):
    """Where a decoder joins them; pieces are remembered from one text to the next."""
    stream, deltas = streamed(ids, stops, prompt=prompt)
    joined, same = streamed(ids, stops, pieces=JOINING, prompt=prompt)
    assert (joined.text, joined.stop, same) == (stream.text, stream.stop, deltas)


@given(st.text(alphabet="aé€😀", max_size=20))
def test_no_delta_splits_a_character(text):
    _, deltas = streamed(list(text.encode()))
    assert all("\ufffd" not in delta for delta in deltas)


@given(st.text(alphabet="ab€😀<", max_size=30), st.lists(WORDS, min_size=1, max_size=3))
def test_the_earliest_stop_string_cuts_and_never_leaks(text, stops):
    stream, deltas = streamed(list(text.encode()), stops)
    # Told token by token: a stop string counts as soon as its last character is there.
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if not ends:
        assert stream.text == "".join(deltas) == text
        assert stream.stop is None
        return
    at, stop = min((ends[0] - len(stop), stop) for stop in stops if text[: ends[0]].endswith(stop))
    assert stream.text == "".join(deltas) == text[:at]
    assert stream.stop == stop


def test_a_held_back_tail_is_released_at_the_end():
    _, deltas = streamed(list(b"so it EN"), ["END"])
    assert deltas[-1] == "EN"
    assert "".join(deltas) == "so it EN"


def test_stop_strings_are_left_alone_while_they_may_not_stop():
    stream, deltas = streamed(list(b"xENDy"), ["END"], may_stop=False)
    assert stream.text == "xENDy"
    assert stream.stop is None
    assert "".join(deltas) == "xENDy"


def pieces(ids):
    return b"".join({1: b"X\xe2", 2: b"\x82\xac", 3: b"a"}[token] for token in ids).decode(errors="replace")


def test_a_stop_string_counts_before_the_character_its_token_began():
    stream = TextStream(Pieces(pieces), (), ["X"])
    assert not stream.push(3, may_stop=True)
    assert stream.push(1, may_stop=True)
    stream.finish()
    assert (stream.text, stream.stop) == ("a", "X")


def test_whole_characters_of_a_token_are_released_and_its_begun_one_is_held():
    stream = TextStream(Pieces(pieces), (), [])
    stream.push(1, may_stop=True)
    assert stream.take(final=False) == "X"
    stream.push(2, may_stop=True)
    stream.push(3, may_stop=True)
    assert stream.take(final=False) == "€a"
