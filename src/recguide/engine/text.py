"""From token ids to text, token by token: incremental detokenising and stop strings.

A stream of text depends on the emitted tokens alone, not on how many a round emits, so every method gives the
same text and the same cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from recguide.core import RecGuideError

Decode = Callable[[Sequence[int]], str]

CONTEXT = 8
"""Prompt tokens that the first emitted tokens are decoded with: some tokenizers drop a leading space."""

REPLACEMENT = "\ufffd"
"""What decoders put for bytes that are no complete character (yet)."""


class UndecodableTokens(RecGuideError):  # noqa: N818 - it names what was found
    """The tokenizer failed on the tokens of a request."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"text: the tokenizer failed on these tokens: {type(cause).__name__}: {cause}")


def remembering(decode: Decode) -> Decode:
    """The same, with the text of every single token kept: each stream asks for it again at its next token."""
    known: dict[int, str] = {}

    def decoded(ids: Sequence[int]) -> str:
        if len(ids) != 1:
            return decode(ids)
        (token,) = ids
        text = known.get(token)
        if text is None:
            text = known[token] = decode(ids)
        return text

    return decoded


class TextStream:
    """The text of one choice as it grows.

    Attributes:
        text: everything decoded so far, cut before a stop string once one was found.
        stop: the stop string that ended the text.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self.text = ""
        self.stop: str | None = None
        self._decode = decode
        self._stops = tuple(stops)
        self._ids = list(prompt[-CONTEXT:])
        self._start = 0
        self._read = len(self._ids)
        self._ahead = 0
        self._released = 0

    def push(self, token: int, *, may_stop: bool) -> bool:
        """Adds a token; true if its text completes a stop string (looked for only if `may_stop`).

        Bytes that are no whole character yet are held back; what stands before them is not. Raises
        UndecodableTokens where the tokenizer fails.
        """
        self._ids.append(token)
        return self._grow(may_stop, held=REPLACEMENT)

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds tokens whose text ends nothing."""
        for token in tokens:
            self._ids.append(token)
            self._grow(may_stop=False, held=REPLACEMENT)

    def finish(self) -> None:
        """Adds the bytes that are still held back, as they are; no token will follow."""
        if self.stop is None:
            self._grow(may_stop=False, held="")

    def _grow(self, may_stop: bool, held: str) -> bool:
        """Takes over what is new in the decoded text, but for a tail of `held` characters."""
        ids, start = self._ids, self._start
        try:
            before, now = self._decode(ids[start : self._read]), self._decode(ids[start:])
        except Exception as error:
            raise UndecodableTokens(error) from error
        whole = now.rstrip(held) if held and now.endswith(held) else now
        known = len(before) + self._ahead
        if len(whole) <= known:
            return False
        if len(whole) == len(now):
            self._start, self._read, self._ahead = self._read, len(ids), 0
        else:
            self._ahead = len(whole) - len(before)
        if not may_stop:
            self.text += whole[known:]
            return False
        return self._append(whole[known:])

    def take(self, *, final: bool) -> str:
        """The text since the last call; before the end, without a tail that may become a stop string."""
        start, end = self._released, len(self.text)
        if self._stops and not final:
            end -= self._held()
        if end > start:
            self._released = end
        return self.text[start:end]

    def _append(self, piece: str) -> bool:
        """Adds text; true if it completes a stop string, before which it is cut then."""
        searched = len(self.text)
        self.text += piece
        hits = [
            (at, stop)
            for stop in self._stops
            if (at := self.text.find(stop, max(0, searched - len(stop) + 1))) >= 0
        ]
        if not hits:
            return False
        at, self.stop = min(hits, key=lambda hit: hit[0])
        self.text = self.text[:at]
        return True

    def _held(self) -> int:
        """Length of the longest tail of the text that a stop string begins with."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(self.text)), 0, -1):
            tail = self.text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
