"""The one decoder that every family shares: embedding, pre-norm layers, head; a pure function of its inputs.

It knows nothing of rows, caches or masks: `attend` decides what a token sees, so the same layers run
causal rows and draft rows, and training passes its own attention.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import Tensor, nn

from recguide.core import Attend
from recguide.models.adapter import Adapter, Delta
from recguide.models.config import ModelConfig
from recguide.models.rotary import Rotary, Rotation
from recguide.models.weights import linear_weight, vector_weight


class Layer(nn.Module):
    """One residual block. Query, key and value, and gate and up, are each one matrix product.

    Weights: `qkv` [query + 2·kv, hidden], `output` [hidden, query], `gate_up` [2·intermediate, hidden],
    `down` [hidden, intermediate], and two norms [hidden].
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.attention_norm = vector_weight(hidden, dtype, device)
        self.qkv = linear_weight(config.query_size + 2 * config.kv_size, hidden, dtype, device)
        self.output = linear_weight(hidden, config.query_size, dtype, device)
        self.mlp_norm = vector_weight(hidden, dtype, device)
        self.gate_up = linear_weight(2 * inner, hidden, dtype, device)
        self.down = linear_weight(hidden, inner, dtype, device)
        self._heads = (config.heads, config.kv_heads, config.head_dim)
        self._norm = ((hidden,), config.norm_eps)

    def forward(
        self, index: int, x: Tensor, rotation: Rotation, attend: Attend, deltas: LayerDeltas
    ) -> Tensor:
        """x [N, hidden] → [N, hidden]."""
        shape, eps = self._norm
        attended = self._attention(
            index, F.rms_norm(x, shape, self.attention_norm, eps), rotation, attend, deltas
        )
        x = x + attended
        return x + self._mlp(F.rms_norm(x, shape, self.mlp_norm, eps), deltas)

    def _attention(
        self, index: int, x: Tensor, rotation: Rotation, attend: Attend, deltas: LayerDeltas
    ) -> Tensor:
        heads, kv_heads, head_dim = self._heads
        qkv = deltas.linear("qkv", x, self.qkv).unflatten(-1, (heads + 2 * kv_heads, head_dim))
        turned = rotation.turn(qkv[:, : heads + kv_heads])
        q, k = turned[:, :heads], turned[:, heads:]
        if rotation.query_scale is not None:
            q = q * rotation.query_scale
        attended = attend(index, q, k, qkv[:, heads + kv_heads :])
        return deltas.linear("output", attended.flatten(-2), self.output)

    def _mlp(self, x: Tensor, deltas: LayerDeltas) -> Tensor:
        gate, up = deltas.linear("gate_up", x, self.gate_up).chunk(2, -1)
        return deltas.linear("down", F.silu(gate) * up, self.down)


class LayerDeltas:
    """Matrix products of one layer, with the adapter's delta on the tail of the tokens."""

    __slots__ = ("_deltas", "_start")

    def __init__(self, deltas: dict[str, Delta], start: int) -> None:
        self._deltas = deltas
        self._start = start

    def linear(self, group: str, x: Tensor, weight: Tensor) -> Tensor:
        """x [N, in], weight [out, in] → [N, out]."""
        y = F.linear(x, weight)
        delta = self._deltas.get(group)
        if delta is not None:
            delta.add(x[self._start :], y[self._start :])
        return y


_NO_DELTAS = LayerDeltas({}, 0)


class Decoder(nn.Module):
    """Embedding, layers, final norm and head. Parameters are allocated, not initialised, and frozen."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.device = device
        self.embedding = vector_weight((config.vocab_size, config.hidden_size), dtype, device)
        self.layers = nn.ModuleList(Layer(config, dtype, device) for _ in range(config.layers))
        self.norm = vector_weight(config.hidden_size, dtype, device)
        # Never transposed like the layers' matrices: the head may be the embedding, which is read by row.
        self.head = (
            self.embedding
            if config.tie_embeddings
            else vector_weight((config.vocab_size, config.hidden_size), dtype, device)
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
        count = tokens.shape[0]
        start = count if adapter_start is None else adapter_start
        active = adapter if start < count else None
        x = F.embedding(tokens, self.embedding)
        if active is not None and active.mask_embedding is not None and masked is not None:
            x = _with_mask_embedding(x, start, masked, active.mask_embedding)
        rotation = self.rotary.at(positions)
        for index, layer in enumerate(self.layers):
            deltas = _NO_DELTAS if active is None else LayerDeltas(active.deltas[index], start)
            x = layer(index, x, rotation, attend, deltas)
        return F.rms_norm(x, (self.config.hidden_size,), self.norm, self.config.norm_eps)

    def randomise(self, seed: int) -> None:
        """Fills all weights from a seed, for tests and benchmarks: norms near 1, the rest of unit gain."""
        generator = torch.Generator().manual_seed(seed)
        for weight in self.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            gain = 1 / math.sqrt(weight.shape[-1]) if weight.dim() == 2 else 0.1
            weight.data.copy_(noise * gain + (1 if weight.dim() == 1 else 0))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [W, hidden] → [W, vocab] float32 (float64 for a float64 model)."""
        logits = F.linear(hidden, self.head)
        return logits if logits.dtype == torch.float64 else logits.float()


def _with_mask_embedding(x: Tensor, start: int, masked: Tensor, embedding: Tensor) -> Tensor:
    tail = torch.where(masked[start:, None], embedding.to(x.dtype), x[start:])
    return torch.cat((x[:start], tail))
