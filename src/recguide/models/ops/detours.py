"""How a product on a GPU takes an adapter in: by other weights, for all tokens or for those it touches."""

from __future__ import annotations

from torch import Tensor

from recguide.models.adapter import Delta, Folded
from recguide.models.kernels.multiply import Detour
from recguide.models.ops import Touched


def folded(delta: Delta) -> Folded:
    assert delta.folded is not None, "recguide.models.folding.fold comes before the first forward"
    return delta.folded


def by_weights(matrix: Tensor, delta: Delta | None, on: Touched) -> tuple[Tensor, Detour | None]:
    """The matrix for all tokens, and the merged one beside it for the touched ones of a mixed forward."""
    if delta is None:
        return matrix, None
    merged = folded(delta).merged
    return (merged, None) if on is None else (matrix, Detour(on=mask(on), merged=merged))


def mask(on: Touched) -> Tensor:
    assert isinstance(on, Tensor), "on a GPU the touched tokens are a mask"
    return on
