"""A tokenizer's tokens as llguidance takes them: what each spells, and how forced text is cut into them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class SpelledTokens:
    """The attributes that `llguidance.TokenizerWrapper` asks for, and a call that cuts text.

    llguidance alone would cut the name of a special token in forced text into that token, which then spells
    nothing, and takes any added token in angle brackets for special. Here a token is special if the tokenizer
    says so, and text is never cut into special ones.

    Args:
        text: content of a tokenizer.json.
        size: tokens in all; those that the tokenizer does not know spell nothing.
        eos: a token that ends text.
    """

    bos_token_id = None

    def __init__(self, text: str, size: int, eos: int) -> None:
        from llguidance import LLTokenizer

        added: list[dict[str, Any]] = json.loads(text)["added_tokens"]
        self._cutter: LLTokenizer = LLTokenizer(text, eos_token=eos, slices=[])
        known = self._cutter.vocab_size
        self.eos_token_id = eos
        self.special_token_ids = [token["id"] for token in added if token["special"]]
        self.tokens = [self._cutter.decode_bytes([i]) if i < known else b"" for i in range(size)]
        self._special = frozenset(self.special_token_ids)

    def __call__(self, text: str) -> list[int]:
        tokens = self._cutter.tokenize_str(text)
        return tokens if self._special.isdisjoint(tokens) else self._cutter.greedy_tokenize(text)


def read_tokens(text: str, size: int, eos: list[int]) -> LLTokenizer:
    """The tokens of a tokenizer.json for a vocabulary of `size`, of which `eos` end text."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(SpelledTokens(text, size, eos[0])), eos_token=eos)
