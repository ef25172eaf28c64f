"""What runs it: a model as the engine sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from recguide.core.rows import PackedBatch

if TYPE_CHECKING:  # only names of types: a process that runs no model does without torch
    import torch
    from torch import Tensor


class Turn(Protocol):
    """How one forward's positions turn queries and keys: what attention needs of a `Rotation`."""

    @property
    def cos(self) -> Tensor: ...

    @property
    def sin(self) -> Tensor: ...

    @property
    def query_scale(self) -> Tensor | None: ...

    def turn(self, heads: Tensor) -> Tensor:
        """[N, any heads, dim] rotated."""
        ...

    def over(self, heads: int, kv_heads: int, scale: float = 1.0) -> Turn:
        """How whole projections turn: queries, which are scaled too, and keys, but not values."""
        ...

    def split(self, qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """qkv [N, heads + 2·kv_heads, dim] → q, k (both rotated), v [N, (kv_)heads, dim]."""
        ...


Attend = Callable[[int, "Tensor", Turn], "Tensor"]
"""(layer, qkv [N, heads + 2·kv_heads, dim], not rotated yet, rotation) → [N, heads · dim].

It may rotate in place.
"""


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one cached token costs: two tensors of [layers, kv_heads, head_dim]."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary's size and the ids that picks and settle treat specially.

    `mask` is None for a model that never learned to draft; `think` holds the ids of <think> and </think>.
    """

    size: int
    eos: tuple[int, ...]
    mask: int | None = None
    think: tuple[int, int] | None = None


def opens_thinking(prompt: Sequence[int], think: tuple[int, int] | None) -> bool:
    """Whether a prompt ends inside a <think>; `think` are the ids of <think> and </think>, None for none."""
    if think is None:
        return False
    return next((token for token in reversed(prompt) if token in think), None) == think[0]


class Backbone(Protocol):
    """What the engine needs of a model; a decoder with its adapter, or a scripted fake in tests."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def kv_shape(self) -> KVShape: ...

    @property
    def heads(self) -> int:
        """Query heads, a multiple of the cache's."""
        ...

    @property
    def adapted(self) -> bool:
        """Whether there is a draft adapter, so that rows with and without it are computed differently."""
        ...

    @property
    def diffusion_adapter(self) -> bool:
        """Whether block diffusion needs the adapter: a model that learned to draft by adapter does."""
        ...

    def forward(self, batch: PackedBatch, attend: Attend) -> Tensor:
        """Logits of the wanted tokens, [W, vocab] float32 (float64 for a float64 model)."""
        ...
