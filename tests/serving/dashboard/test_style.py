"""Colours of the page can be read in both schemes."""

from __future__ import annotations

import re

import pytest

from recguide.serving.dashboard.routes import FOLDER

STYLE = (FOLDER / "style.css").read_text()
GROUNDS = ("bg", "card")
TEXTS = ("text", "muted", "accent", "good", "bad", "o-accepted", "o-reused", "o-correction", "o-bonus")
LINES = ("c1", "c2", "c3", "c4", "c5", "by-draft", "by-correction", "by-continuation", "by-any", "by-ar")


def colours(scheme):
    """Custom properties of a scheme that are colours."""
    selector = {"light": ":root {", "dark": ':root[data-theme="dark"] {'}[scheme]
    block = STYLE.split(selector)[1].split("}")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def luminance(colour):
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("ground", GROUNDS)
@pytest.mark.parametrize(("names", "least"), [(TEXTS, 4.5), (LINES, 3.0)])
def test_what_is_drawn_stands_out(scheme, ground, names, least):
    found = colours(scheme)
    assert {name: found[name] for name in names if contrast(found[name], found[ground]) < least} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_buttons_can_be_read(scheme):
    found = colours(scheme)
    assert contrast(found["on-accent"], found["accent"]) >= 4.5


def test_both_schemes_define_the_same_colours():
    assert set(colours("light")) == set(colours("dark"))


def test_every_colour_that_scripts_ask_for_is_defined():
    scripts = "".join(file.read_text() for file in FOLDER.glob("*.js"))
    asked = set(re.findall(r'colour: "([\w-]+)"', scripts)) | set(
        re.findall(r'colour\("([\w-]+)"\)', scripts)
    )
    assert asked <= set(colours("light"))
