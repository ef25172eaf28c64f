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

REMEMBERED = 1 << 16
"""Pairs of tokens whose text is kept: they come again, and decoding takes longer than all else here."""


class UndecodableTokens(RecGuideError):  # noqa: N818 - it names what was found
    """The tokenizer failed on the tokens of a request."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"text: the tokenizer failed on these tokens: {type(cause).__name__}: {cause}")


class Pieces:
    """A decoder that remembers what single tokens say, and what they add behind another.

    Args:
        decode: ids → text without special tokens.
        joins: whether the text of whole characters and more of them is that of each, joined.

    All methods raise UndecodableTokens where it fails.
    """

    def __init__(self, decode: Decode, *, joins: bool = False) -> None:
        self._decode, self._joins = decode, joins
        self._single: dict[int, str] = {}
        self._whole: dict[int, str] = {}
        """Of tokens that are whole characters; "" for others."""
        self._added: dict[tuple[int, int], str] = {}

    def text(self, ids: Sequence[int]) -> str:
        try:
            return self._decode(ids)
        except Exception as error:
            raise UndecodableTokens(error) from error

    def behind(self, before: int, token: int) -> str:
        """What a token adds to the text of another; "" unless both end with whole characters."""
        if self._joins:
            added = self._whole.get(token) or self._whole_of(token)
            if added and (self._whole.get(before) or self._whole_of(before)):
                return added
        pair = before, token
        added = self._added.get(pair)
        if added is None:
            if len(self._added) == REMEMBERED:
                self._added.clear()
            text = self.text(pair)
            added = "" if text.endswith(REPLACEMENT) else text[len(self._of_one(before)) :]
            self._added[pair] = added
        return added

    def _whole_of(self, token: int) -> str:
        text = self._of_one(token)
        self._whole[token] = whole = "" if REPLACEMENT in text else text
        return whole

    def _of_one(self, token: int) -> str:
        text = self._single.get(token)
        if text is None:
            text = self._single[token] = self.text((token,))
        return text


class TextStream:
    """The text of one choice as it grows.

    Args:
        pieces: says what tokens say.
        prompt: ids before the first.
        stops: strings that end it.

    Attributes:
        stop: the stop string that ended the text.
    """

    def __init__(self, pieces: Pieces, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self.stop: str | None = None
        self._pieces = pieces
        self._stops = tuple(stops)
        self._ids = list(prompt[-CONTEXT:])
        self._start = 0
        self._read = len(self._ids)
        self._ahead = 0
        self._taken: list[str] = []
        self._rest = ""
        """What was taken, and what was not; a stop string begins in the rest, as its beginning is held."""

    @property
    def text(self) -> str:
        """Everything decoded so far, cut before a stop string once one was found."""
        return "".join(self._taken) + self._rest

    def push(self, token: int, *, may_stop: bool) -> bool:
        """Adds a token; true if its text completes a stop string (looked for only if `may_stop`).

        Bytes that are no whole character yet are held back; what stands before them is not. Raises
        UndecodableTokens where the tokenizer fails.
        """
        return self._append(self._next(token), may_stop=may_stop)

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds tokens whose text ends nothing."""
        for token in tokens:
            self._rest += self._next(token)

    def finish(self) -> None:
        """Adds the bytes that are still held back, as they are; no token will follow."""
        if self.stop is None:
            self._rest += self._grown(held="")

    def take(self, *, final: bool) -> str:
        """The text since the last call; before the end, without a tail that may become a stop string."""
        piece, self._rest = self._rest, ""
        if self._stops and not final and (held := self._held(piece)):
            piece, self._rest = piece[:-held], piece[-held:]
        self._taken.append(piece)
        return piece

    def _next(self, token: int) -> str:
        """What a token adds: nearly always it stands behind one that is read."""
        ids, read = self._ids, self._read
        ids.append(token)
        if read == len(ids) - 1 and self._start == read - 1:
            piece = self._pieces.behind(ids[-2], token)
            if piece:
                self._start, self._read = read, read + 1
                return piece
        return self._grown(held=REPLACEMENT)

    def _grown(self, held: str) -> str:
        """What is new in the decoded text, but for a tail of `held` characters."""
        ids, start = self._ids, self._start
        before, now = self._pieces.text(ids[start : self._read]), self._pieces.text(ids[start:])
        whole = now.rstrip(held) if held and now.endswith(held) else now
        known = len(before) + self._ahead
        if len(whole) <= known:
            return ""
        if len(whole) == len(now):
            self._start, self._read, self._ahead = self._read, len(ids), 0
        else:
            self._ahead = len(whole) - len(before)
        return whole[known:]

    def _append(self, piece: str, *, may_stop: bool) -> bool:
        """Adds text; true if it completes a stop string, before which it is cut then."""
        searched = len(self._rest)
        self._rest += piece
        if not may_stop or not piece:
            return False
        hits = [
            (at, stop)
            for stop in self._stops
            if (at := self._rest.find(stop, max(0, searched - len(stop) + 1))) >= 0
        ]
        if not hits:
            return False
        at, self.stop = min(hits, key=lambda hit: hit[0])
        self._rest = self._rest[:at]
        return True

    def _held(self, text: str) -> int:
        """Length of the longest tail of the text that a stop string begins with."""
        longest = max([len(stop) - 1 for stop in self._stops])
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
