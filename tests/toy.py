"""A real decoder of a few thousand random weights with a byte tokenizer: everything but good text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tests.tiny import byte_token
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from recguide.core import ParameterError
from recguide.models.config import ModelConfig, RopeConfig
from recguide.models.loading import Model

EOS, MASK = 256, 257


class ByteTokenizer:
    """Bytes as tokens; the chat template puts U and A before the turns."""

    name = "toy"
    size = 258
    joins = True
    special_ids = frozenset({EOS, MASK})
    think_ids = None

    def __init__(self, chat_template: str | None = "U{user} A{assistant} {shout}") -> None:
        self.chat_template = chat_template

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def json(self) -> str:
        return byte_tokenizer_json(("<eos>", "<mask>"))

    def token(self, token_id: int) -> str:
        return f"<{token_id}>"

    def chat(self, messages: Sequence[Any], **kwargs: object) -> list[int]:
        if set(kwargs) - {"shout"}:
            raise ParameterError("chat_template_kwargs", "the template knows only shout")
        turns = "".join(f"{turn['role'][0].upper()}{turn['content']}\n" for turn in messages)
        return self.encode(turns + ("A!" if kwargs.get("shout") else "A"))


def byte_tokenizer_json(specials: Sequence[str], merges: Sequence[tuple[str, str]] = ()) -> str:
    """The tokenizer.json of bytes as tokens, followed by merged ones, if any, and special tokens."""
    names = [*map(byte_token, range(256)), *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(BPE(vocab={name: i for i, name in enumerate(names)}, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    return tokenizer.to_str()


def toy_model(*, drafts: bool = True, chat_template: str | None = "U A shout", seed: int = 0) -> Model:
    config = ModelConfig(
        family="llama",
        vocab_size=258,
        hidden_size=32,
        intermediate_size=48,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=8,
        norm_eps=1e-5,
        rope=RopeConfig(theta=10_000.0),
        query_scale=None,
        tie_embeddings=True,
        max_positions=1024,
        bos_token_id=None,
        eos_token_ids=(EOS,),
        mask_token_id=MASK if drafts else None,
        block_size=None,
        native_drafts=drafts,
    )
    tokenizer: Any = ByteTokenizer(chat_template)
    return Model.random(config, seed=seed, dtype=torch.float64, tokenizer=tokenizer)
