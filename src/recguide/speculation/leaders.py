"""The most likely tokens of wide rows, without sorting them."""

from __future__ import annotations

from torch import Tensor

BLOCK = 64


def leaders(z: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row of z [S, V], falling: values [S, count] and their indices.

    Equal values stand in rising order of their index; which of several equal ones at the end are left out is
    not fixed. The largest of `count` blocks with the largest maxima are among them, so only these are sorted.
    """
    width = z.shape[1]
    if width % BLOCK or width < 8 * BLOCK * count:
        return _ordered(z.topk(count, dim=1))
    blocks = z.view(len(z), -1, BLOCK)
    chosen = blocks.amax(2).topk(count, dim=1, sorted=False).indices
    near = blocks.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).view(len(z), -1)
    values, at = near.topk(count, dim=1)
    return _ordered((values, chosen.gather(1, at // BLOCK) * BLOCK + at % BLOCK))


def first_largest(z: Tensor) -> tuple[Tensor, Tensor]:
    """Largest value of each row of z [S, V] and the lowest index that has it, each [S]; NaN if any is NaN."""
    width = z.shape[1]
    if width % BLOCK:
        peak = z.amax(1)
        return peak, z.argmax(1)
    blocks = z.view(len(z), -1, BLOCK)
    maxima = blocks.amax(2)
    block = maxima.argmax(1, keepdim=True)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK)).squeeze(1).argmax(1, keepdim=True)
    return maxima.gather(1, block).squeeze(1), (block * BLOCK + inside).squeeze(1)


def _ordered(found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Rows sorted by falling value, equal values by rising index."""
    values, indices = found
    indices, order = indices.sort(dim=1)
    values, again = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, indices.gather(1, again)
