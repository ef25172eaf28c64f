"""One training step's forward: the clean half as the model itself, the noisy half as the adapted drafter.

The clean half runs once, without gradient and without adapter; its keys and values are what the noisy half's
blocks see of their texts, layer by layer, as decoding sees the KV cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from recguide.training.network import Backbone, LayerWeights, Shape, finish, project
from recguide.training.steps import Step
from recguide.training.visibility import BlockMasks, Spans, attend, dense_clean, dense_noisy

Mask = Tensor | BlockMask


@dataclass(frozen=True, slots=True)
class Loaded:
    """A step's tensors on the device: `C` clean and `Q` noisy tokens, int64 (spans int32)."""

    clean_tokens: Tensor
    clean_positions: Tensor
    noisy_tokens: Tensor
    noisy_positions: Tensor
    masked: Tensor
    block_first: Tensor
    ahead: Tensor
    labels: Tensor
    teacher: Tensor
    spans: Spans


def load(step: Step, device: torch.device, mask_token: int) -> Loaded:
    """Moves a step to the device; MASK slots get the mask token."""

    def move(name: str, dtype: torch.dtype = torch.int64) -> Tensor:
        tensor = torch.from_numpy(getattr(step, name)).to(dtype)
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

    masked = move("masked").bool()
    return Loaded(
        clean_tokens=move("clean_tokens"),
        clean_positions=move("clean_positions"),
        noisy_tokens=move("noisy_tokens").masked_fill(masked, mask_token),
        noisy_positions=move("noisy_positions"),
        masked=masked,
        block_first=move("block_first"),
        ahead=move("ahead"),
        labels=move("labels"),
        teacher=move("teacher"),
        spans=Spans(
            clean_first=move("clean_first", torch.int32),
            noisy_first=move("noisy_first", torch.int32),
            noisy_limit=move("noisy_limit", torch.int32),
            noisy_block=move("noisy_block", torch.int32),
        ),
    )


def clean_layer(
    x: Tensor,
    weights: LayerWeights,
    cos: Tensor,
    sin: Tensor,
    query_scale: Tensor | None,
    mask: Mask,
    shape: Shape,
) -> tuple[Tensor, Tensor, Tensor]:
    """One causal layer over whole texts: x [C, hidden] → x, keys and values [C, kv_heads, dim]."""
    q, k, v = project(x, weights, cos, sin, query_scale, shape)
    return finish(x, attend(q, k, v, mask), weights, shape), k, v


def noisy_layer(
    x: Tensor,
    weights: LayerWeights,
    cos: Tensor,
    sin: Tensor,
    query_scale: Tensor | None,
    clean_k: Tensor,
    clean_v: Tensor,
    mask: Mask,
    shape: Shape,
) -> Tensor:
    """One layer over blocks: x [Q, hidden] → [Q, hidden]; sees clean keys and own block under the mask."""
    q, k, v = project(x, weights, cos, sin, query_scale, shape)
    attended = attend(q, torch.cat((clean_k, k)), torch.cat((clean_v, v)), mask)
    return finish(x, attended, weights, shape)


class Halves:
    """Runs both halves of steps of one size; on a GPU with compiled layers and block-sparse attention."""

    def __init__(self, backbone: Backbone, clean_tokens: int, noisy_tokens: int, *, compiled: bool) -> None:
        self._backbone = backbone
        self._masks = BlockMasks(clean_tokens, noisy_tokens, backbone.device) if compiled else None
        self._clean_layer: Callable[..., tuple[Tensor, Tensor, Tensor]] = clean_layer
        self._noisy_layer: Callable[..., Tensor] = noisy_layer
        if compiled:
            self._clean_layer = torch.compile(clean_layer, fullgraph=True, dynamic=False)
            self._noisy_layer = torch.compile(noisy_layer, fullgraph=True, dynamic=False)

    def masks(self, loaded: Loaded) -> tuple[Mask, Mask]:
        """Masks of the clean and of the noisy half; valid until the next call."""
        if self._masks is None:
            return dense_clean(loaded.spans), dense_noisy(loaded.spans)
        self._masks.fill(loaded.spans)
        return self._masks.clean, self._masks.noisy

    def clean(
        self, loaded: Loaded, mask: Mask, layers: Sequence[LayerWeights] | None = None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Final hidden states [C, hidden] and each layer's keys and values [C, kv_heads, dim].

        Args:
            layers: weights to use; None is the frozen backbone.
        """
        backbone = self._backbone
        rotation = backbone.rotation(loaded.clean_positions)
        x = F.embedding(loaded.clean_tokens, backbone.embedding)
        kept: list[tuple[Tensor, Tensor]] = []
        for weights in backbone.layers if layers is None else layers:
            x, k, v = self._clean_layer(
                x, weights, rotation.cos, rotation.sin, rotation.query_scale, mask, backbone.shape
            )
            kept.append((k, v))
        return backbone.final(x), kept

    def noisy(
        self,
        loaded: Loaded,
        mask: Mask,
        layers: Sequence[LayerWeights],
        mask_embedding: Tensor,
        kept: Sequence[tuple[Tensor, Tensor]],
    ) -> Tensor:
        """Final hidden states of the blocks, [Q, hidden]."""
        backbone = self._backbone
        rotation = backbone.rotation(loaded.noisy_positions)
        x = F.embedding(loaded.noisy_tokens, backbone.embedding)
        x = torch.where(loaded.masked[:, None], mask_embedding.to(x.dtype), x)
        for weights, (k, v) in zip(layers, kept, strict=True):
            x = self._noisy_layer(
                x, weights, rotation.cos, rotation.sin, rotation.query_scale, k, v, mask, backbone.shape
            )
        return backbone.final(x)
