"""What a load asks: prompts of a file or the built-in ones, dealt in an order that only the seed decides."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from recguide.bench.prompts import ACCEPTANCE, EXACTNESS
from recguide.core import ParameterError

FIELDS = ("messages", "prompt", "question")
"""Where a line of JSON may hold its prompt, the first one found counts."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: a text, or the turns of a chat.

    Attributes:
        number: its place in the file, from 0.
        content: text, or messages with role and content.
    """

    number: int
    content: str | tuple[Mapping[str, Any], ...]

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """The turns of a chat; a text is one turn of the user."""
        if isinstance(self.content, str):
            return [{"role": "user", "content": self.content}]
        return list(self.content)

    def marked(self, mark: str) -> Prompt:
        """The same behind a mark that no other request has, so that no prefix cache knows it."""
        if isinstance(self.content, str):
            return Prompt(self.number, f"{mark} {self.content}")
        first, *rest = self.content
        return Prompt(self.number, ({**first, "content": f"{mark} {first.get('content', '')}"}, *rest))


def built_in() -> tuple[Prompt, ...]:
    return tuple(Prompt(number, text) for number, text in enumerate((*ACCEPTANCE, *EXACTNESS)))


def read_prompts(file: Path) -> tuple[Prompt, ...]:
    """`.jsonl` holds an object a line with "messages", "prompt" or "question"; other files a text a line.

    Raises ParameterError that names file and line.
    """
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError("prompts", f"{file} cannot be read: {error}") from error
    # Not splitlines(): U+2028 and the like may stand unescaped inside a JSON string.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ParameterError("prompts", f"{file} holds none")
    if file.suffix != ".jsonl":
        return tuple(Prompt(place, line.rstrip("\r")) for place, (_, line) in enumerate(lines))
    return tuple(
        Prompt(place, _content(line, f"{file}, line {number}")) for place, (number, line) in enumerate(lines)
    )


def deal(prompts: Sequence[Prompt], seed: int, turn: int) -> Iterator[Prompt]:
    """Prompts without end: all of them, shuffled, then all again. The same seed and turn deal the same."""
    order = random.Random(f"{seed}/{turn}")  # a string seeds by its digest, the same everywhere
    while True:
        yield from order.sample(prompts, len(prompts))


def _content(line: str, where: str) -> str | tuple[Mapping[str, Any], ...]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ParameterError("prompts", f"{where}: not JSON") from error
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    field = next((name for name in FIELDS if name in fields), None)
    if field is None:
        raise ParameterError("prompts", f"{where}: not an object with one of {', '.join(FIELDS)}")
    found = fields[field]
    return _turns(found, where) if field == "messages" else _text(found, field, where)


def _text(found: object, field: str, where: str) -> str:
    if not isinstance(found, str) or not found:
        raise ParameterError("prompts", f'{where}: "{field}" must be a text')
    return found


def _turns(found: object, where: str) -> tuple[Mapping[str, Any], ...]:
    turns = cast("list[object]", found) if isinstance(found, list) else []
    if not turns or not all(isinstance(turn, dict) and "role" in turn for turn in turns):
        raise ParameterError("prompts", f'{where}: "messages" must be a list of turns with a role')
    return tuple(cast("list[Mapping[str, Any]]", turns))
