"""Plain PyTorch: the definition of every operation, and what a CPU runs.

Operations are few and in place on purpose: at one token on a CPU each costs as much as a hundredth of a
layer's products, and a sum beside its terms is a copy of them first. What all layers compute alike lies in
the same place, so that views of it are made once a forward.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import Tensor

from recguide.models.adapter import Delta
from recguide.models.norm import RmsNorm
from recguide.models.ops import Touched
from recguide.models.views import columns, tail


@dataclass(frozen=True, slots=True)
class _Room:
    """Where a product goes: [N, width] and, of it, the first and the second half of the columns."""

    whole: Tensor
    gate: Tensor
    up: Tensor

    @staticmethod
    def of(tokens: int, width: int, like: Tensor) -> _Room:
        whole, half = like.new_empty(tokens, width), width // 2
        return _Room(whole, columns(whole, slice(0, half)), columns(whole, slice(half, 2 * half)))


class TorchOps:
    """`Ops` for models of one width, dtype and device.

    What `project` and `gated` return is valid until the same is asked for in the next layer, so one forward
    runs at a time.
    """

    folds = False

    def __init__(self, hidden_size: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self.norm = RmsNorm(hidden_size, eps, dtype, device)
        self._rooms: dict[int, _Room] = {}
        """Of this forward, by width."""

    def begin(self, x: Tensor) -> Tensor:
        self._rooms.clear()
        return self.norm.begin(x)

    def project(self, normed: Tensor, matrix: Tensor, delta: Delta | None, on: Touched) -> Tensor:
        return self._product(normed, matrix, delta, on).whole

    def gated(self, normed: Tensor, gate_up: Tensor, delta: Delta | None, on: Touched) -> Tensor:
        both = self._product(normed, gate_up, delta, on)
        return F.silu(both.gate, inplace=True).mul_(both.up)

    def residual(
        self, x: Tensor, y: Tensor, matrix: Tensor, norm: Tensor, delta: Delta | None, on: Touched
    ) -> tuple[Tensor, Tensor]:
        x = _with_delta(x.addmm_(y, matrix), y, delta, on)
        return x, self.norm(x, norm)

    def logits(self, hidden: Tensor, head: Tensor) -> Tensor:
        self._rooms.clear()  # else an idle engine would hold what a long prompt took
        return head_logits(hidden, head)

    def _product(self, x: Tensor, matrix: Tensor, delta: Delta | None, on: Touched) -> _Room:
        tokens, width = len(x), matrix.shape[1]
        room = self._rooms.get(width)
        if room is None or len(room.whole) != tokens:
            room = self._rooms[width] = _Room.of(tokens, width, x)
        torch.mm(x, matrix, out=room.whole)
        _with_delta(room.whole, x, delta, on)
        return room


def _with_delta(y: Tensor, x: Tensor, delta: Delta | None, on: Touched) -> Tensor:
    """y [N, out], the product of x [N, in], plus the adapter's delta on the touched tokens."""
    if delta is None:
        return y
    if on is None:
        delta.add(x, y)
    elif isinstance(on, Tensor):
        delta.add(x * on[:, None], y)
    else:
        delta.add(tail(x, on.start), tail(y, on.start))
    return y


def head_logits(hidden: Tensor, head: Tensor) -> Tensor:
    """hidden [W, hidden], head [vocab, hidden] → [W, vocab] float32 (float64 for a float64 model).

    Half-precision logits would round to equal values where tokens are close, and ties would decide the text;
    a GPU adds up in float32 anyway and can hand that out (without gradients).
    """
    half = hidden.dtype in (torch.bfloat16, torch.float16)
    if half and hidden.is_cuda and not torch.is_grad_enabled():
        return torch.mm(hidden, head.t(), out_dtype=torch.float32)
    logits = torch.mm(hidden, head.t())
    return logits if logits.dtype == torch.float64 else logits.float()
