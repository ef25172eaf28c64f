"""What a reader is told of one choice of a chat: reasoning, answer and tool calls apart, as text grows."""

from __future__ import annotations

from dataclasses import dataclass

from recguide.serving.reasoning import ReasoningSplitter
from recguide.serving.tools import Call, Heard, ToolParser


@dataclass(frozen=True, slots=True)
class Said:
    """What a piece of text adds to each."""

    reasoning: str
    content: str
    calls: tuple[Call, ...]

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)


class Hearing:
    """Hears one choice; the same however its text is cut into pieces.

    Args:
        opened: whether the prompt ends inside a <think>.
        parser: takes tool calls out of the answer; None if there are no tools.

    Attributes:
        calls: heard so far.
    """

    def __init__(self, *, opened: bool, parser: ToolParser | None) -> None:
        self.calls = 0
        self._splitter = ReasoningSplitter(opened=opened)
        self._parser = parser

    def hear(self, text: str, *, last: bool) -> Said:
        """What more may be told; with the last text all that was held back."""
        pieces = [self._splitter.push(text), *([self._splitter.finish()] if last else [])]
        heard = [self._parsed(piece.content) for piece in pieces]
        if last and self._parser is not None:
            heard.append(self._parser.finish())
        calls = tuple(call for each in heard for call in each.calls)
        self.calls += len(calls)
        return Said(
            "".join(piece.reasoning for piece in pieces), "".join(each.content for each in heard), calls
        )

    def _parsed(self, content: str) -> Heard:
        return Heard(content) if self._parser is None else self._parser.push(content)
