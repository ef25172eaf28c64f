"""The linear algebra of a decoder layer: what one device and one promise (fast, or exact) make of it.

A decoder is given one of these values when it is made and never asks which:

- `torch_ops`: plain PyTorch, any device and precision; what the others are tested against.
- `fast`: a CUDA GPU in half precision, as fast as its memory is read.
- `exact`: a token's result is the same bits whatever else is in the batch.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from recguide.models.adapter import Delta

Touched = Tensor | slice | None
"""Which of N tokens an adapter's deltas apply to: a mask [N] bool, a tail slice, or None for every token."""


class Ops(Protocol):
    """Products of tokens [N, in] with matrices [in, out], and the norms between them.

    `delta` is the adapter's share of a product (None for none), `on` the tokens that get it. They are for
    inference: none has gradients.
    """

    @property
    def folds(self) -> bool:
        """Whether deltas must have been folded (`recguide.models.folding`) before they are used."""
        ...

    def begin(self, x: Tensor) -> Tensor:
        """The embeddings x [N, hidden] as `norm` and `residual` want them."""
        ...

    def project(self, normed: Tensor, matrix: Tensor, delta: Delta | None, on: Touched) -> Tensor:
        """normed [N, hidden] times matrix [hidden, out]: [N, out]."""
        ...

    def gated(self, normed: Tensor, gate_up: Tensor, delta: Delta | None, on: Touched) -> Tensor:
        """normed [N, hidden] times gate_up [hidden, 2·inner]; SiLU(gate) · up, [N, inner]."""
        ...

    def residual(
        self, x: Tensor, y: Tensor, matrix: Tensor, norm: Tensor, delta: Delta | None, on: Touched
    ) -> tuple[Tensor, Tensor]:
        """x [N, hidden] plus y [N, in] times matrix [in, hidden], and that sum's RMSNorm under `norm`.

        The sum may take x's place.
        """
        ...

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm of x [N, hidden] under weight [hidden]."""
        ...

    def logits(self, hidden: Tensor, head: Tensor) -> Tensor:
        """hidden [W, hidden] times head [vocab, hidden]: [W, vocab] float32 (float64 for a float64 model)."""
        ...
