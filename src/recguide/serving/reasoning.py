"""Reasoning apart from the answer: what a model says inside <think> … </think>, and what comes after."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from recguide.models.tokenizer import THINK_MARKS


class Split(NamedTuple):
    """What more there is of each."""

    reasoning: str
    content: str


class _Place(Enum):
    START = auto()
    INSIDE = auto()
    AFTER = auto()


class ReasoningSplitter:
    """Splits a growing text, the same however it is cut into pieces.

    All text comes out again but the tags: what stands between them, and white space before the first, is
    reasoning. A <think> counts only where a text begins with it; later it is a word like any other.

    Args:
        opened: whether the prompt ends inside a <think>.
        tags: what opens and closes reasoning.
    """

    def __init__(self, *, opened: bool, tags: tuple[str, str] = THINK_MARKS) -> None:
        self._opening, self._closing = tags
        self._place = _Place.INSIDE if opened else _Place.START
        self._held = ""

    def push(self, text: str) -> Split:
        """What the text adds, without a tail that may become a tag."""
        self._held += text
        reasoning = ""
        if self._place is _Place.START:
            begun = self._held.lstrip()
            if begun.startswith(self._opening):
                reasoning = self._held[: len(self._held) - len(begun)]
                self._held = begun[len(self._opening) :]
                self._place = _Place.INSIDE
            elif self._opening.startswith(begun):
                return Split("", "")
            else:
                self._place = _Place.AFTER
        if self._place is _Place.INSIDE:
            inside, closed, after = self._held.partition(self._closing)
            if not closed:
                end = len(inside) - overlap(inside, self._closing)
                self._held = inside[end:]
                return Split(reasoning + inside[:end], "")
            reasoning += inside
            self._held, self._place = after, _Place.AFTER
        content, self._held = self._held, ""
        return Split(reasoning, content)

    def finish(self) -> Split:
        """What is still held back; no text will follow."""
        held, self._held = self._held, ""
        return Split(held, "") if self._place is _Place.INSIDE else Split("", held)


def overlap(text: str, tag: str) -> int:
    """Length of the longest tail of the text that the tag begins with, and is longer than."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if tag.startswith(text[-length:]):
            return length
    return 0
