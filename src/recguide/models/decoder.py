"""The one decoder that every family shares: embedding, pre-norm layers, head; a pure function of its inputs.

It knows nothing of rows, caches or masks: `attend` decides what a token sees, so the same layers run causal
rows and draft rows, and training passes its own attention. Operations per layer are few on purpose: at one
token on a CPU each costs as much as a hundredth of the layer's matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import Tensor, nn

from recguide.core import Attend
from recguide.models.adapter import Adapter, Delta
from recguide.models.config import ModelConfig
from recguide.models.norm import RmsNorm
from recguide.models.rotary import Rotary, Rotation
from recguide.models.weights import matrix, table

NO_DELTAS: Mapping[str, Delta] = {}


class Layer(nn.Module):
    """One residual block. Query, key and value, and gate and up, are each one matrix product.

    Weights, all [in, out]: `qkv` [hidden, query + 2·kv], `output` [query, hidden], `gate_up`
    [hidden, 2·intermediate], `down` [intermediate, hidden]; and two norms [hidden].
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.attention_norm = table(hidden, dtype, device)
        self.qkv = matrix(hidden, config.query_size + 2 * config.kv_size, dtype, device)
        self.output = matrix(config.query_size, hidden, dtype, device)
        self.mlp_norm = table(hidden, dtype, device)
        self.gate_up = matrix(hidden, 2 * inner, dtype, device)
        self.down = matrix(inner, hidden, dtype, device)
        self.normalise = RmsNorm(hidden, config.norm_eps, dtype, device)
        self.heads = config.heads
        self.turned_heads = config.heads + config.kv_heads
        self.head_dim = config.head_dim

    def forward(
        self,
        index: int,
        x: Tensor,
        rotation: Rotation,
        attend: Attend,
        deltas: Mapping[str, Delta],
        start: int,
    ) -> Tensor:
        """x [N, hidden] → [N, hidden]; `deltas` apply to tokens from `start` on."""
        normed = self.normalise(x, self.attention_norm)
        qkv = _with_delta(torch.mm(normed, self.qkv), normed, deltas.get("qkv"), start)
        heads = qkv.view(qkv.shape[0], -1, self.head_dim)
        turned = rotation.turn(heads[:, : self.turned_heads])
        q, k, v = turned[:, : self.heads], turned[:, self.heads :], heads[:, self.turned_heads :]
        if rotation.query_scale is not None:
            q = q * rotation.query_scale
        attended = attend(index, q, k, v).flatten(1)
        x = _with_delta(torch.addmm(x, attended, self.output), attended, deltas.get("output"), start)
        normed = self.normalise(x, self.mlp_norm)
        gate, up = _with_delta(torch.mm(normed, self.gate_up), normed, deltas.get("gate_up"), start).chunk(
            2, -1
        )
        inner = F.silu(gate) * up
        return _with_delta(torch.addmm(x, inner, self.down), inner, deltas.get("down"), start)


def _with_delta(y: Tensor, x: Tensor, delta: Delta | None, start: int) -> Tensor:
    """y [N, out], the product of x [N, in], plus the adapter's delta on the tokens from `start`."""
    if delta is not None:
        delta.add(x[start:], y[start:])
    return y


class Decoder(nn.Module):
    """Embedding, layers, final norm and head. Parameters are allocated, not initialised, and frozen."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.device = device
        self.embedding = table((config.vocab_size, config.hidden_size), dtype, device)
        self.blocks = tuple(Layer(config, dtype, device) for _ in range(config.layers))
        self.layers = nn.ModuleList(self.blocks)
        self.norm = table(config.hidden_size, dtype, device)
        self.normalise = RmsNorm(config.hidden_size, config.norm_eps, dtype, device)
        # [vocab, hidden] like the embedding, which it may be.
        self.head = (
            self.embedding
            if config.tie_embeddings
            else table((config.vocab_size, config.hidden_size), dtype, device)
        )
        self.rotary = Rotary(config, dtype, device)

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        *,
        adapter: Adapter | None = None,
        adapter_start: int | None = None,
        masked: Tensor | None = None,
    ) -> Tensor:
        """Hidden states after the final norm, [N, hidden].

        Args:
            tokens, positions: [N] int64; positions are absolute.
            attend: attention over queries, keys and values that are already rotated and scaled.
            adapter: applies to tokens from `adapter_start` on; None for none.
            adapter_start: first token the adapter touches; None is N, no token.
            masked: [N] bool, MASK slots: those the adapter touches take its mask embedding, if it has one.
        """
        start = tokens.shape[0] if adapter_start is None else adapter_start
        active = adapter if start < tokens.shape[0] else None
        x = self.embed(tokens, active, start, masked)
        rotation = self.rotary.at(positions)
        for index, layer in enumerate(self.blocks):
            deltas = NO_DELTAS if active is None else active.deltas[index]
            # Not called through Module.__call__: its hook checks cost as much as a kernel.
            x = layer.forward(index, x, rotation, attend, deltas, start)
        return self.normalise(x, self.norm)

    def embed(self, tokens: Tensor, adapter: Adapter | None, start: int, masked: Tensor | None) -> Tensor:
        """[N, hidden]: embeddings, with the adapter's mask embedding in MASK slots from `start` on."""
        x = F.embedding(tokens, self.embedding)
        if adapter is None or adapter.mask_embedding is None or masked is None:
            return x
        tail = torch.where(masked[start:, None], adapter.mask_embedding.to(x.dtype), x[start:])
        return torch.cat((x[:start], tail))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [W, hidden] → [W, vocab] float32 (float64 for a float64 model)."""
        return head_logits(hidden, self.head)

    def randomise(self, seed: int) -> None:
        """Fills all weights from a seed, for tests and benchmarks: norms near 1, matrices of unit gain."""
        generator = torch.Generator().manual_seed(seed)
        for weight in self.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.data.copy_(
                noise / math.sqrt(self.config.hidden_size) if weight.dim() == 2 else 1 + noise / 10
            )


def head_logits(hidden: Tensor, head: Tensor) -> Tensor:
    """hidden [W, hidden], head [vocab, hidden] → [W, vocab] float32 (float64 for a float64 model).

    Half-precision logits would round to equal values where tokens are close, and ties would decide the text;
    a GPU adds up in float32 anyway and can hand that out (without gradients).
    """
    half = hidden.dtype in (torch.bfloat16, torch.float16)
    if half and hidden.is_cuda and not torch.is_grad_enabled():
        return torch.mm(hidden, head.t(), out_dtype=torch.float32)
    logits = F.linear(hidden, head)
    return logits if logits.dtype == torch.float64 else logits.float()
