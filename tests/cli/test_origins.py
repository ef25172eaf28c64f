"""Colours that can be read anywhere, and pieces that add up to the text."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.style import Style
from tests.toy import ByteTokenizer

from recguide.cli.origins import MEANINGS, STYLES, VISIBLE, Painter, legend
from recguide.core import Chunk, Origin
from recguide.engine.text import Pieces, TextStream

SHOWN = list(MEANINGS)
UNSEEN = {chr(VISIBLE.get(code, code)): code for code in range(128)}
"""What is shown for an ASCII character → its code."""


def luminance(colour: tuple[int, int, int]) -> float:
    """Relative luminance as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("origin", SHOWN)
def test_a_colour_can_be_read_on_black_and_on_white(origin):
    colour = Style.parse(STYLES[origin]).color
    assert colour is not None
    light = luminance(tuple(colour.get_truecolor()))
    assert 1.05 / (light + 0.05) >= 4.5
    assert (light + 0.05) / 0.05 >= 4.5


def test_origins_differ_without_colour():
    marks = [(s.bold, s.italic, s.underline) for s in (Style.parse(STYLES[origin]) for origin in SHOWN)]
    assert len(set(marks)) == len(SHOWN)


def test_every_origin_has_a_style_and_the_legend_names_what_is_coloured():
    assert set(STYLES) == set(Origin)
    assert all(meaning in legend().plain for meaning in MEANINGS.values())


@given(
    text=st.text(min_size=1, max_size=30).filter(lambda text: "\ufffd" not in text),
    cuts=st.lists(st.integers(1, 9), max_size=40),
    stop=st.text(alphabet="abc", max_size=2),
)
def test_painted_pieces_add_up_to_the_text_and_keep_each_tokens_origin(text, cuts, stop):
    tokenizer = ByteTokenizer()
    stream = TextStream(Pieces(tokenizer.decode), (), (stop,) if stop else ())
    painter = Painter(tokenizer.decode, ())
    tokens = tokenizer.encode(text)
    shown, start = "", 0
    for size in [*cuts, len(tokens)]:
        ids = tuple(tokens[start : start + size])
        done = any(stream.push(token, may_stop=True) for token in ids) or start + size >= len(tokens)
        if done:
            stream.finish()
        painted = painter.paint(
            Chunk(0, stream.take(final=done), ids, tuple(SHOWN[token % 4] for token in ids), None)
        )
        if not stop and text.isascii():
            for span in painted.spans:
                piece = painted.plain[span.start : span.end]
                assert all(span.style == STYLES[SHOWN[UNSEEN[character] % 4]] for character in piece)
        shown += painted.plain
        start += size
        if done:
            break
    assert shown == stream.text.translate(VISIBLE)


def test_a_model_cannot_steer_the_terminal():
    tokenizer = ByteTokenizer()
    ids = tuple(tokenizer.encode("a\x1b[2J\r\n"))
    painted = Painter(tokenizer.decode, ()).paint(
        Chunk(0, tokenizer.decode(ids), ids, (Origin.AR,) * len(ids), None)
    )
    assert painted.plain == "a\u241b[2J\u240d\n"


@pytest.mark.parametrize("code", [*range(0x20), *range(0x7F, 0xA0)])
def test_no_control_character_reaches_the_terminal(code):
    """Those above ASCII too: U+009B alone begins a control sequence."""
    shown = chr(code).translate(VISIBLE)
    assert len(shown) == 1
    assert shown in "\n\t" or unicodedata.category(shown) != "Cc"
