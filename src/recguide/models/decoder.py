"""The one decoder that every family shares: embedding, pre-norm layers, head; a pure function of its inputs.

It knows nothing of rows, caches or masks: `attend` decides what a token sees, so the same layers run causal
rows and draft rows, and training passes its own attention. Nor does it know how a device computes: its `ops`
do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import Tensor, nn

from recguide.attention.rotation import Rotation
from recguide.core import Attend
from recguide.models.adapter import Adapter, Delta
from recguide.models.config import ModelConfig
from recguide.models.ops import Ops, Touched
from recguide.models.ops.torch_ops import TorchOps
from recguide.models.rotary import Rotary
from recguide.models.weights import matrix, table

NO_DELTAS: Mapping[str, Delta] = {}


@dataclass(frozen=True, slots=True)
class Sequel:
    """What comes after a layer: the norm [hidden] and the matrix [hidden, out] of the next product."""

    norm: Tensor
    matrix: Tensor


class Layer(nn.Module):
    """One residual block. Query, key and value, and gate and up, are each one matrix product.

    Weights, all [in, out]: `qkv` [hidden, query + 2·kv], `output` [query, hidden], `gate_up`
    [hidden, 2·intermediate], `down` [intermediate, hidden]; and two norms [hidden].
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device, ops: Ops) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.attention_norm = table(hidden, dtype, device)
        self.qkv = matrix(hidden, config.query_size + 2 * config.kv_size, dtype, device)
        self.output = matrix(config.query_size, hidden, dtype, device)
        self.mlp_norm = table(hidden, dtype, device)
        self.gate_up = matrix(hidden, 2 * inner, dtype, device)
        self.down = matrix(inner, hidden, dtype, device)
        self.ops = ops
        self.head_dim = config.head_dim

    def forward(
        self,
        index: int,
        x: Tensor,
        normed: Tensor,
        sequel: Sequel,
        rotation: Rotation,
        attend: Attend,
        deltas: Mapping[str, Delta],
        next_deltas: Mapping[str, Delta],
        on: Touched,
    ) -> tuple[Tensor, Tensor]:
        """x [N, hidden] and its norm → the same after the layer, the norm being the sequel's.

        `deltas` apply to the tokens `on`; `next_deltas` are those of the next layer.
        """
        ops = self.ops
        output, gate_up, down = deltas.get("output"), deltas.get("gate_up"), deltas.get("down")
        qkv = ops.project(normed, self.qkv, deltas.get("qkv"), on, (self.output, output))
        attended = attend(index, qkv.view(qkv.shape[0], -1, self.head_dim), rotation)
        then = (self.gate_up, gate_up)
        x, normed = ops.residual(x, attended, self.output, self.mlp_norm, output, on, then)
        inner = ops.gated(normed, self.gate_up, gate_up, on, (self.down, down))
        then = (sequel.matrix, next_deltas.get("qkv"))
        return ops.residual(x, inner, self.down, sequel.norm, down, on, then)


class Decoder(nn.Module):
    """Embedding, layers, final norm and head. Parameters are allocated, not initialised, and frozen.

    Args:
        ops: how products are computed; None is plain PyTorch.
    """

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, device: torch.device, ops: Ops | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.ops = TorchOps(config.hidden_size, config.norm_eps, dtype, device) if ops is None else ops
        self.dtype = dtype
        self.device = device
        self.embedding = table((config.vocab_size, config.hidden_size), dtype, device)
        self.blocks = tuple(Layer(config, dtype, device, self.ops) for _ in range(config.layers))
        self.layers = nn.ModuleList(self.blocks)
        self.norm = table(config.hidden_size, dtype, device)
        # [vocab, hidden] like the embedding, which it may be.
        self.head = (
            self.embedding
            if config.tie_embeddings
            else table((config.vocab_size, config.hidden_size), dtype, device)
        )
        self.sequels = (
            *(Sequel(block.attention_norm, block.qkv) for block in self.blocks[1:]),
            Sequel(self.norm, self.head.t()),
        )
        self.rotary = Rotary(config, dtype, device)

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        *,
        adapter: Adapter | None = None,
        on: Touched = None,
        masked: Tensor | None = None,
    ) -> Tensor:
        """Hidden states after the final norm, [N, hidden].

        Args:
            tokens, positions: [N] int64; positions are absolute.
            attend: attention over the fused projections, not rotated yet.
            adapter: applies to the tokens `on` (None: to all); None for none.
            masked: [N] bool, MASK slots: those the adapter touches take its mask embedding, if it has one.
        """
        x = self.embed(tokens, adapter, on, masked)
        rotation = self.rotary.at(positions)
        deltas = (NO_DELTAS,) * len(self.blocks) if adapter is None else adapter.deltas
        normed = self.ops.norm(x, self.blocks[0].attention_norm)
        for index, (layer, sequel, own, after) in enumerate(
            zip(self.blocks, self.sequels, deltas, (*deltas[1:], NO_DELTAS), strict=True)
        ):
            # Not called through Module.__call__: its hook checks cost as much as a kernel.
            x, normed = layer.forward(index, x, normed, sequel, rotation, attend, own, after, on)
        return normed

    def embed(self, tokens: Tensor, adapter: Adapter | None, on: Touched, masked: Tensor | None) -> Tensor:
        """[N, hidden]: embeddings, with the adapter's mask embedding in the MASK slots that it touches."""
        x = F.embedding(tokens, self.embedding)
        if adapter is None or adapter.mask_embedding is None or masked is None:
            return x
        special = adapter.mask_embedding.to(x.dtype)
        if isinstance(on, slice):
            tail = torch.where(masked[on, None], special, x[on])
            return torch.cat((x[: on.start], tail))
        return torch.where((masked if on is None else masked & on)[:, None], special, x)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [W, hidden] → [W, vocab] float32 (float64 for a float64 model)."""
        return self.ops.logits(hidden, self.head)

    def randomise(self, seed: int) -> None:
        """Fills all weights from a seed, for tests and benchmarks: norms near 1, matrices of unit gain."""
        generator = torch.Generator().manual_seed(seed)
        for weight in self.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.data.copy_(
                noise / math.sqrt(self.config.hidden_size) if weight.dim() == 2 else 1 + noise / 10
            )
