"""The one decoder that every family shares: embedding, pre-norm layers, head; a pure function of its inputs.

It knows nothing of rows, caches or masks: `attend` decides what a token sees, so the same layers run causal
rows and draft rows, and training passes its own attention. Nor does it know how a device computes: its `ops`
do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import Tensor, nn

from recguide.core import Attend, RecGuideError, Turn
from recguide.models.adapter import Adapter, Delta
from recguide.models.config import ModelConfig
from recguide.models.ops import Ops, Touched
from recguide.models.ops.torch_ops import TorchOps
from recguide.models.rotary import Rotary
from recguide.models.weights import matrix, table

NO_DELTAS: Mapping[str, Delta] = {}


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
        norms: tuple[Tensor, ...],
        rotation: Turn,
        attend: Attend,
        deltas: Mapping[str, Delta],
        on: Touched,
    ) -> tuple[Tensor, Tensor]:
        """x [N, hidden] and its norm → the same after the layer, the norm being that of the next one.

        `norms` are the weights of its MLP's and of that one; `deltas` apply to the tokens `on`.
        """
        ops = self.ops
        qkv = ops.project(normed, self.qkv, deltas.get("qkv"), on)
        attended = attend(index, qkv.view(qkv.shape[0], -1, self.head_dim), rotation)
        x, normed = ops.residual(x, attended, self.output, norms[0], deltas.get("output"), on)
        inner = ops.gated(normed, self.gate_up, deltas.get("gate_up"), on)
        return ops.residual(x, inner, self.down, norms[1], deltas.get("down"), on)


class Decoder(nn.Module):
    """Embedding, layers, final norm and head. Parameters are allocated, not initialised, and frozen.

    Args:
        ops: how products are computed; None is plain PyTorch.

    Attributes:
        norms: weights of the norms before each layer's attention and MLP, and of the last one.
        arranged: whether the weights lie as `recguide.models.arranging` puts them, no longer as in a
            checkpoint.
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
        each = chain.from_iterable((block.attention_norm, block.mlp_norm) for block in self.blocks)
        self.norms: tuple[Tensor, ...] = (*each, self.norm)
        # [vocab, hidden] like the embedding, which it may be.
        self.head = (
            self.embedding
            if config.tie_embeddings
            else table((config.vocab_size, config.hidden_size), dtype, device)
        )
        self.rotary = Rotary(config, dtype, device)
        self.arranged = False

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

        Raises RecGuideError for an adapter that is arranged otherwise.
        """
        if adapter is not None and adapter.arranged != self.arranged:
            raise RecGuideError("adapter: its weights are not arranged as the decoder's; load both anew")
        x = self.ops.begin(self.embed(tokens, adapter, on, masked))
        rotation = self.rotary.at(positions)
        norms = self.norms
        normed = self.ops.norm(x, norms[0])
        for index, layer in enumerate(self.blocks):
            behind = norms[2 * index + 1 : 2 * index + 3]
            deltas = NO_DELTAS if adapter is None else adapter.deltas[index]
            # Not called through Module.__call__: its hook checks cost as much as a kernel.
            x, normed = layer.forward(index, x, normed, behind, rotation, attend, deltas, on)
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
