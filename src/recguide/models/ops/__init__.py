"""The linear algebra of a decoder layer: what one device and one promise (fast, or exact) make of it.

A decoder is given one of these values when it is made and never asks which:

- `torch_ops`: plain PyTorch, any device and precision; what the others are tested against.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from recguide.models.adapter import Delta

Touched = Tensor | slice | None
"""Which of N tokens an adapter's deltas apply to: a mask [N] bool, a tail slice, or None for every token."""


class Ops(Protocol):
    """Products of x [N, in] with matrices [in, out], each with the norm before it or the sum after it.

    `delta` is the adapter's share of the product (None for none) and `on` the tokens that get it.
    """

    def project(self, x: Tensor, norm: Tensor, matrix: Tensor, delta: Delta | None, on: Touched) -> Tensor:
        """RMSNorm of x [N, hidden] under the weight `norm` [hidden], times matrix [hidden, out]: [N, out]."""
        ...

    def gated(self, x: Tensor, norm: Tensor, gate_up: Tensor, delta: Delta | None, on: Touched) -> Tensor:
        """RMSNorm of x, times gate_up [hidden, 2·inner]; SiLU(gate) · up, [N, inner]."""
        ...

    def residual(self, x: Tensor, y: Tensor, matrix: Tensor, delta: Delta | None, on: Touched) -> Tensor:
        """x [N, hidden] + y [N, in] times matrix [in, hidden]: [N, hidden]."""
        ...

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm of x [N, hidden] under weight [hidden]."""
        ...

    def logits(self, hidden: Tensor, head: Tensor) -> Tensor:
        """hidden [W, hidden] times head [vocab, hidden]: [W, vocab] float32 (float64 for a float64 model)."""
        ...
