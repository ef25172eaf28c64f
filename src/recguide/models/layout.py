"""Which named matrices of a checkpoint make up which fused weight of the decoder."""

from __future__ import annotations

from dataclasses import dataclass

from recguide.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Part:
    """One linear module of a layer: rows [start, start + outputs) of the fused weight `group`.

    `module` is its name below `layers.N.` in a checkpoint, e.g. self_attn.q_proj.
    """

    module: str
    group: str
    start: int
    outputs: int
    inputs: int

    @property
    def short(self) -> str:
        """Last component of the name, e.g. q_proj."""
        return self.module.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class TensorNames:
    """How a family calls its tensors: `<body>.layers.N…`, `<body>.norm.weight`, and the head."""

    body: str
    head: str

    @property
    def embedding(self) -> str:
        return f"{self.body}.embed_tokens.weight"

    @property
    def norm(self) -> str:
        return f"{self.body}.norm.weight"

    def module(self, layer: int, module: str) -> str:
        return f"{self.body}.layers.{layer}.{module}"


ATTENTION_NORM = "input_layernorm"
MLP_NORM = "post_attention_layernorm"


def parts(config: ModelConfig) -> tuple[Part, ...]:
    """The seven linear modules of a layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, kv = config.query_size, config.kv_size
    return (
        Part("self_attn.q_proj", "qkv", 0, query, hidden),
        Part("self_attn.k_proj", "qkv", query, kv, hidden),
        Part("self_attn.v_proj", "qkv", query + kv, kv, hidden),
        Part("self_attn.o_proj", "output", 0, hidden, query),
        Part("mlp.gate_proj", "gate_up", 0, inner, hidden),
        Part("mlp.up_proj", "gate_up", inner, inner, hidden),
        Part("mlp.down_proj", "down", 0, hidden, inner),
    )
