"""Text ↔ token ids for requests, and what a single token is called in an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol, TypeVar

from recguide.core import ParameterError
from recguide.engine.text import REPLACEMENT

T = TypeVar("T")

AT_ONCE = 4_000
"""Characters or tokens that are turned on the event loop, in less time than a thread is worth."""
WORD_SIGN = "▁"
"""Stands for a space at a token's beginning in SentencePiece vocabularies, whose decoders drop it."""


class TextTokenizer(Protocol):
    """What a server needs of a tokenizer."""

    @property
    def chat_template(self) -> str | None: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def chat(self, messages: Sequence[Mapping[str, object]], /, **kwargs: object) -> list[int]: ...

    def token(self, token_id: int) -> str: ...


class NumberTokenizer:
    """For a model without a tokenizer: a prompt's bytes are its tokens, and output tokens are numbers."""

    chat_template = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        del add_special_tokens  # there are none
        return list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        del skip_special_tokens
        return "".join(f"{token} " for token in ids)

    def chat(self, messages: Sequence[Mapping[str, object]], /, **kwargs: object) -> list[int]:
        del messages, kwargs
        raise ParameterError("messages", "the model has no tokenizer, so no chat template; send a prompt")

    def token(self, token_id: int) -> str:
        return str(token_id)


class Named(NamedTuple):
    """A token as answers show it.

    Attributes:
        text: its text, or "bytes:\\x.." for bytes that are no whole character.
        bytes: its bytes; those of its text where the tokenizer does not say.
    """

    text: str
    bytes: list[int]


class Coder:
    """A tokenizer for an event loop: what is long runs in a thread of its own.

    Args:
        tokenizer: read by two threads at once, never changed.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self.named = lru_cache(maxsize=100_000)(self._named)

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        return await self._run(partial(self.tokenizer.encode, text, special), len(text))

    async def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        return await self._run(partial(self.tokenizer.decode, ids, False), len(ids))

    async def chat(
        self, messages: Sequence[Mapping[str, object]], template_arguments: Mapping[str, Any]
    ) -> list[int]:
        size = sum(len(str(turn.get("content") or "")) for turn in messages)
        return await self._run(partial(self.tokenizer.chat, messages, **template_arguments), size)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T], size: int) -> T:
        if size <= AT_ONCE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _named(self, token_id: int) -> Named:
        text, name = self.tokenizer.decode([token_id], False), self.tokenizer.token(token_id)
        if REPLACEMENT in text:
            data = byte_level(name)
            if data is not None:
                return Named("bytes:" + "".join(f"\\x{byte:02x}" for byte in data), list(data))
        elif name.startswith(WORD_SIGN) and not text.startswith(" "):
            text = f" {text}"
        return Named(text, list(text.encode()))


def byte_level(name: str) -> bytes | None:
    """The bytes of a token by its name in byte-level vocabularies, or of `<0x..>`; None for other names."""
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    alphabet = _alphabet()
    if all(sign in alphabet for sign in name):
        return bytes(alphabet[sign] for sign in name)
    return None


@lru_cache(maxsize=1)
def _alphabet() -> dict[str, int]:
    """The stand-ins for bytes: printable ones for themselves, the others from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
