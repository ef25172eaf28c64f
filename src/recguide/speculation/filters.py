"""min-p, top-k and top-p, in this order, each on what the one before it left (architecture §3, Picks).

All three keep the head of the tokens sorted by falling logit, equal logits by rising id. So a filter is a
number of kept tokens, and only that head is ever looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recguide.core import SamplingParams
from recguide.speculation.field import Field, on_device

FIRST_LOOK = 64
"""Leading tokens that are tried first; eight times as many whenever they do not settle it."""
UNIT = 2.0**40
"""Probability masses are whole multiples of 2⁻⁴⁰ of the largest: their sums do not depend on an order."""


def filters(params: SamplingParams) -> bool:
    """Whether any filter is on."""
    return params.min_p > 0 or params.top_k > 0 or params.top_p < 1


def kept(field: Field, slots: Tensor, params: Sequence[SamplingParams]) -> list[Tensor]:
    """Tokens that the filters of slots [s], rising, keep at their temperatures > 0: [n] each, falling."""
    limits = _Limits.of(params, field.width, slots.device)
    count = min(FIRST_LOOK, field.width)
    values, tokens = field.leaders(slots, count)
    totals = torch.zeros_like(slots)
    numbers = [i for i, slot in enumerate(params) if _nucleus_alone(slot)]
    if numbers:
        alone = on_device(numbers, torch.int64, slots.device)
        totals[alone] = _totals(field, slots[alone], values[alone, 0], limits.temperature[alone])
    counts, settled = _counts(values, limits, totals, whole=count == field.width)
    found: list[Tensor] = []
    for i, (number, enough) in enumerate(torch.stack([counts, settled.long()], dim=1).tolist()):
        only = slice(i, i + 1)
        found.append(
            tokens[i, :number] if enough else _widened(field, slots[only], limits.at(only), totals[only])
        )
    return found


@dataclass(frozen=True, slots=True)
class _Limits:
    """Parameters of s slots, [s] each; `top_k` is V where it is off."""

    temperature: Tensor
    min_p: Tensor
    top_k: Tensor
    top_p: Tensor
    nucleus_alone: Tensor
    """bool: top-p is on and the other two are off."""

    @staticmethod
    def of(params: Sequence[SamplingParams], width: int, device: torch.device) -> _Limits:
        def reals(values: Sequence[float]) -> Tensor:
            return on_device(values, torch.float64, device)

        return _Limits(
            temperature=reals([slot.temperature for slot in params]),
            min_p=reals([slot.min_p for slot in params]),
            top_k=on_device([min(slot.top_k, width) or width for slot in params], torch.int64, device),
            top_p=reals([slot.top_p for slot in params]),
            nucleus_alone=on_device([_nucleus_alone(slot) for slot in params], torch.bool, device),
        )

    def at(self, only: slice) -> _Limits:
        return _Limits(
            self.temperature[only],
            self.min_p[only],
            self.top_k[only],
            self.top_p[only],
            self.nucleus_alone[only],
        )


def _nucleus_alone(params: SamplingParams) -> bool:
    return params.top_p < 1 and params.min_p == 0 and params.top_k == 0


def _widened(field: Field, slot: Tensor, limits: _Limits, total: Tensor) -> Tensor:
    """Kept tokens of one slot [1] that the first look did not settle."""
    look = FIRST_LOOK
    while True:
        look = min(8 * look, field.width)
        if look > field.width // 8:
            look = field.width
            values, tokens = field.row(int(slot)).sort(descending=True, stable=True)
            values, tokens = values[None], tokens[None]
        else:
            values, tokens = field.leaders(slot, look)
        count, settled = _counts(values, limits, total, whole=look == field.width)
        if bool(settled):
            return tokens[0, : int(count)]


def _counts(values: Tensor, limits: _Limits, totals: Tensor, whole: bool) -> tuple[Tensor, Tensor]:
    """How many tokens of the sorted heads [s, n] are kept, and whether the heads are long enough to tell.

    `totals` [s] are the masses of all tokens, for slots where top-p is alone; `whole` heads have all tokens.
    """
    look = values.shape[1]
    masses = _masses(values - values[:, :1], limits.temperature)
    sums = masses.cumsum(1)
    before = torch.minimum((masses >= limits.min_p[:, None] * UNIT).sum(1), limits.top_k)
    totals = torch.where(limits.nucleus_alone, totals, sums.gather(1, before[:, None] - 1).squeeze(1))
    short = (sums < (limits.top_p * totals)[:, None]).sum(1) + 1
    count = torch.where(limits.top_p < 1, torch.minimum(before, short), before)
    # Beyond a head there may be tokens equal to its last one with a lower id.
    inside = (count < look) & (values.gather(1, count[:, None] - 1).squeeze(1) > values[:, -1])
    known = (limits.top_p == 1) | limits.nucleus_alone | (before < look)
    return count, (inside & known) | whole


def _totals(field: Field, slots: Tensor, peaks: Tensor, temperature: Tensor) -> Tensor:
    """Masses of all tokens of slots [s], rising, whose largest logits are `peaks` [s]."""
    totals: list[Tensor] = []
    start = 0
    for x in field.shifted(slots, peaks):
        masses = _masses(x, temperature[start : start + len(x)])
        if field.mask is not None:
            masses[:, field.mask] = 0
        totals.append(masses.sum(1))
        start += len(x)
    return torch.cat(totals)


def _masses(x: Tensor, temperature: Tensor) -> Tensor:
    """exp(x / temperature) in units of 2⁻⁴⁰, int64, for x = z − peak [s, n] ≤ 0, which is overwritten."""
    # Below e⁻³⁰ lies no multiple of the unit; unclamped, a CPU would crawl through subnormal numbers.
    return x.div_(temperature.to(x.dtype)[:, None]).clamp_(min=-30.0).exp_().mul_(UNIT).long()
