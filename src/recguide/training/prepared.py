"""Prompts as the token ids that the model is asked with, kept in a file: tokenising many takes a while."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from recguide.core import ParameterError
from recguide.models.tokenizer import Tokenizer
from recguide.training.prompts import Prompt

OnCount = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Prompts and their token ids, in the same order; `held` are the indices that are never trained on."""

    prompts: tuple[Prompt, ...]
    tokens: tuple[tuple[int, ...], ...]
    held: frozenset[int] = frozenset()

    def select(self, keep: Sequence[int]) -> Prepared:
        """The prompts at the given indices, in that order."""
        return Prepared(
            tuple(self.prompts[index] for index in keep),
            tuple(self.tokens[index] for index in keep),
            frozenset(place for place, index in enumerate(keep) if index in self.held),
        )


def prepare(
    prompts: Sequence[Prompt], tokenizer: Tokenizer, file: Path, on_count: OnCount = lambda *_: None
) -> Prepared:
    """Token ids of every prompt: from `file` if it holds those of these prompts, else kept there."""
    digest = _digest(prompts, tokenizer)
    if file.is_file():
        with np.load(file, allow_pickle=False) as stored:
            if str(stored["digest"]) == digest:
                flat, offsets = stored["tokens"].astype(np.int64), stored["offsets"].tolist()
                pieces = (tuple(flat[a:b].tolist()) for a, b in pairwise(offsets))
                return Prepared(tuple(prompts), tuple(pieces))
    tokens: list[tuple[int, ...]] = []
    for prompt in prompts:
        tokens.append(tuple(asked(prompt.text, tokenizer)))
        if len(tokens) % 1000 == 0:
            on_count(len(tokens), len(prompts))
    _keep(tokens, digest, file)
    return Prepared(tuple(prompts), tuple(tokens))


def asked(text: str, tokenizer: Tokenizer) -> list[int]:
    """One user turn in the model's chat template; the plain text for a model without one."""
    if tokenizer.chat_template is None:
        return tokenizer.encode(text)
    return tokenizer.chat([{"role": "user", "content": text}])


def unused_special(tokenizer: Tokenizer, prepared: Prepared, taken: Sequence[int]) -> int:
    """A special token that no prompt holds and that does not end a text: it can stand for MASK.

    Raises ParameterError if there is none.
    """
    seen = {token for tokens in prepared.tokens for token in tokens} | set(taken)
    free = [token for token in tokenizer.special_ids if token not in seen]
    if not free:
        raise ParameterError("mask_token_id", "the tokenizer has no unused special token; name one")
    return max(free)


def _digest(prompts: Sequence[Prompt], tokenizer: Tokenizer) -> str:
    found = hashlib.sha256(f"{tokenizer.size} {tokenizer.chat_template}".encode())
    for prompt in prompts:
        found.update(prompt.text.encode() + b"\0")
    return found.hexdigest()


def _keep(tokens: Sequence[Sequence[int]], digest: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    flat = np.array([token for piece in tokens for token in piece], dtype=np.uint32)
    narrow = flat.astype(np.uint16) if not len(flat) or flat.max() < 2**16 else flat
    offsets = np.cumsum([0, *(len(piece) for piece in tokens)])
    part = file.with_suffix(".part")
    with part.open("wb") as stream:
        np.savez_compressed(stream, tokens=narrow, offsets=offsets, digest=np.array(digest))
    part.replace(file)
