"""Tokens coloured by how they came to be emitted.

Every colour has a contrast of at least 4.5 to black and to white, and every origin also differs in weight or
line, so that the picture survives any theme, colour-blindness and NO_COLOR.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rich.text import Text

from recguide.core import Chunk, Origin
from recguide.engine.text import Decode, Pieces, TextStream

STYLES = {
    Origin.PREFILL: "",
    Origin.AR: "",
    Origin.ACCEPTED: "#16863a",
    Origin.REUSED: "italic #a94fc4",
    Origin.CORRECTION: "underline #cf4520",
    Origin.BONUS: "bold #2377cc",
    Origin.DIFFUSION: "#16863a",
}
MEANINGS = {
    Origin.ACCEPTED: "accepted draft",
    Origin.REUSED: "accepted, from a reused branch",
    Origin.CORRECTION: "correction",
    Origin.BONUS: "bonus",
}


VISIBLE = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}
"""Control characters → their pictures (those above ASCII have none): a model must not steer the terminal."""


def legend() -> Text:
    """One line that names every colour."""
    entries = [Text(meaning, style=STYLES[origin]) for origin, meaning in MEANINGS.items()]
    return Text("   ").join(entries)


class Painter:
    """Cuts the text of a stream into pieces by the tokens that made it.

    The text shown is always that of the chunks, control characters made visible; tokens only say where a
    colour ends, so a piece that a stop string cut or that waits for the rest of a character cannot change
    what is printed.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int]) -> None:
        self._stream = TextStream(Pieces(decode), prompt, ())
        self._spans: deque[tuple[int, Origin]] = deque()

    def paint(self, chunk: Chunk) -> Text:
        """The chunk's text with its colours."""
        self._read(chunk)
        painted, rest = Text(), chunk.text.translate(VISIBLE)
        while rest:
            length, origin = self._spans.popleft() if self._spans else (len(rest), Origin.PREFILL)
            painted.append(rest[:length], style=STYLES[origin])
            if length > len(rest):
                self._spans.appendleft((length - len(rest), origin))
            rest = rest[length:]
        return painted

    def _read(self, chunk: Chunk) -> None:
        for token, origin in zip(chunk.token_ids, chunk.origins, strict=True):
            known = len(self._stream.text)
            self._stream.push(token, may_stop=False)
            if len(self._stream.text) > known:
                self._spans.append((len(self._stream.text) - known, origin))
