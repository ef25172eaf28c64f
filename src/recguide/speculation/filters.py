"""min-p, top-k and top-p, in this order, each on what the one before it left (architecture §3, Picks).

All three keep the head of the tokens sorted by falling logit, equal logits by rising id. So a filter is a
number of kept tokens, and only that head is ever looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from recguide.core import SamplingParams
from recguide.speculation.leaders import leaders

FIRST_LOOK = 64
"""Leading tokens that are tried first; eight times as many whenever they do not settle it."""
UNIT = 2.0**40
"""Probability masses are whole multiples of 2⁻⁴⁰ of the largest: their sums do not depend on an order."""


def filters(params: SamplingParams) -> bool:
    """Whether any filter is on."""
    return params.min_p > 0 or params.top_k > 0 or params.top_p < 1


def kept(z: Tensor, params: SamplingParams) -> Tensor:
    """Tokens of one slot z [V] that its filters keep at its temperature > 0: ids [n] by falling logit."""
    width, look = len(z), FIRST_LOOK
    while True:
        look = min(look, width)
        head = _head(z, look)
        count = _count(z, head.values, params)
        # Beyond the head there may be tokens equal to its last one with a lower id.
        if look == width or (count < look and bool(head.values[count - 1] > head.values[-1])):
            return head.ids[:count]
        look *= 8


@dataclass(frozen=True, slots=True)
class _Head:
    values: Tensor
    ids: Tensor


def _head(z: Tensor, look: int) -> _Head:
    if look == len(z):
        values, ids = z.sort(descending=True, stable=True)
        return _Head(values, ids)
    values, ids = leaders(z[None], look)
    return _Head(values[0], ids[0])


def _count(z: Tensor, head: Tensor, params: SamplingParams) -> int:
    """How many tokens of the sorted head are kept; all of them if it is too short to tell."""
    masses = _masses(head, head[0], params.temperature)
    count = len(head)
    if params.min_p > 0:
        count = int((masses >= params.min_p * UNIT).sum())
    if params.top_k > 0:
        count = min(count, params.top_k)
    if params.top_p == 1:
        return count
    if params.min_p > 0 or params.top_k > 0:
        if count == len(head) < len(z):
            return count
        total = masses[:count].sum()
    else:
        total = _masses(z, head[0], params.temperature).sum()
    short = masses[:count].cumsum(0) < params.top_p * float(total)
    return min(count, int(short.sum()) + 1)


def _masses(z: Tensor, peak: Tensor, temperature: float) -> Tensor:
    """exp((z − peak) / temperature) in units of 2⁻⁴⁰, int64."""
    return ((z.double() - peak.double()) / temperature).exp_().mul_(UNIT).long()
