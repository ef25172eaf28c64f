"""The tokens that compete for each slot: logits without the mask token, read without being copied or sorted.

The largest ones are found through the maxima of blocks of tokens, which take the one pass over all logits
that picking cannot avoid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 64
AT_ONCE = 2**17
"""Logits in one piece of a pass over all of them."""
NEVER = float("-inf")


def on_device(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of numbers that the host knows, made without waiting for the device."""
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


class Field:
    """Logits of S slots over V tokens, among which the mask token counts as −inf.

    Attributes:
        z: [S, V or up to a block more]; still with the mask token's logit, −inf beyond the vocabulary.
        width: V.
        mask: the mask token, None for none.
    """

    def __init__(self, z: Tensor, mask: int | None) -> None:
        self.width = z.shape[1]
        self.mask = mask
        beyond = -self.width % BLOCK
        self.z = pad(z, (0, beyond), value=NEVER) if beyond else z.contiguous()
        self._every = torch.arange(len(z), device=z.device)
        self._blocks = self.z.view(len(z), self.z.shape[1] // BLOCK, BLOCK)
        self._maxima = self._blocks.amax(2)
        if mask is not None:
            block = self._blocks[:, mask // BLOCK].clone()
            block[:, mask % BLOCK] = NEVER
            self._maxima[:, mask // BLOCK] = block.amax(1)

    def first(self) -> tuple[Tensor, Tensor]:
        """Largest logit of each slot and the lowest token that has it, [S] each; NaN if any logit is NaN."""
        peaks, block = self._maxima.max(1)
        inside = self._read(self._every, block).argmax(1)
        return peaks, block * BLOCK + inside

    def leaders(self, slots: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The `count` ≤ V largest logits of slots [s], falling: values and tokens, [s, count] each.

        Equal logits stand in rising order of their tokens; which of the equal ones at the end are left out is
        not fixed. Where fewer are finite, what follows at −inf may lie beyond the vocabulary.
        """
        maxima = self._maxima[slots]
        # The `count` largest logits lie in the `count` blocks with the largest maxima.
        blocks = maxima.topk(min(count, maxima.shape[1]), dim=1, sorted=False).indices
        _, at = self._read(slots[:, None], blocks).flatten(1).topk(count, dim=1)
        tokens = (blocks.gather(1, at // BLOCK) * BLOCK + at % BLOCK).sort(dim=1).values
        values, order = self.at(slots[:, None], tokens).sort(dim=1, descending=True, stable=True)
        return values, tokens.gather(1, order)

    def shifted(self, slots: Tensor, peaks: Tensor) -> Iterator[Tensor]:
        """z − peak of all tokens at slots [s], rising, in pieces [some, ≥ V] to work on until the next one.

        A piece fits the cache of a CPU. The mask token is among the tokens.
        """
        if self.z.device.type != "cpu":
            yield self.z[slots].sub_(peaks[:, None])
            return
        step = max(1, AT_ONCE // self.width)
        room = self.z.new_empty(min(step, len(slots)), self.z.shape[1])
        for some, peak in zip(slots.split(step), peaks.split(step), strict=True):
            first, last = int(some[0]), int(some[-1])
            z = self.z[first : last + 1] if last - first + 1 == len(some) else self.z[some]
            yield torch.sub(z, peak[:, None], out=room[: len(some)])

    def at(self, slots: Tensor, tokens: Tensor) -> Tensor:
        """Logits of tokens; `slots` and `tokens` broadcast."""
        values = self.z[slots, tokens]
        return values if self.mask is None else values.masked_fill_(tokens == self.mask, NEVER)

    def row(self, slot: int) -> Tensor:
        """A copy of one slot's logits, [V]."""
        row = self.z[slot, : self.width].clone()
        if self.mask is not None:
            row[self.mask] = NEVER
        return row

    def _read(self, slots: Tensor, blocks: Tensor) -> Tensor:
        """Copies of blocks, [..., BLOCK]; `slots` and `blocks` broadcast."""
        values = self._blocks[slots, blocks]
        if self.mask is not None:
            values[..., self.mask % BLOCK].masked_fill_(blocks == self.mask // BLOCK, NEVER)
        return values


class HostField(Field):
    """The same on a CPU, where an operation on few numbers takes NumPy a fraction of PyTorch's time."""

    def __init__(self, z: Tensor, mask: int | None) -> None:
        super().__init__(z, mask)
        self._rows: NDArray[np.floating] = self.z.numpy()
        self._pieces: NDArray[np.floating] = self._blocks.numpy()
        self._tops: NDArray[np.floating] = self._maxima.numpy()

    def first(self) -> tuple[Tensor, Tensor]:
        every = np.arange(len(self._tops))
        block = self._tops.argmax(1)
        inside = self._copies(every, block).argmax(1)
        return torch.from_numpy(self._tops[every, block]), torch.from_numpy(block * BLOCK + inside)

    def leaders(self, slots: Tensor, count: int) -> tuple[Tensor, Tensor]:
        values, tokens = self.leading(slots.tolist(), count)
        return torch.from_numpy(values), torch.from_numpy(tokens)

    def leading(self, slots: Sequence[int], count: int) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
        """`leaders` as arrays."""
        values, tokens = zip(*(self._leading(slot, count) for slot in slots), strict=True)
        return np.stack(values), np.stack(tokens)

    def _leading(self, slot: int, count: int) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
        tops = self._tops[slot]
        blocks = np.flatnonzero(tops >= _nth(tops, min(count, len(tops))))
        values = self._copies(slot, blocks).ravel()
        inside = np.flatnonzero(values >= _nth(values, count))
        values = values[inside]
        order = np.argsort(-values, kind="stable")[:count]
        inside = inside[order]
        return values[order], blocks[inside // BLOCK] * BLOCK + inside % BLOCK

    def at_least(self, slot: int, bound: float) -> NDArray[np.int64]:
        """Tokens whose logit reaches the bound, with a little room for rounding, in rising order."""
        bound -= 1e-5 * (1 + abs(bound))
        blocks = np.flatnonzero(self._tops[slot] >= bound)
        which, inside = np.nonzero(self._copies(slot, blocks) >= bound)
        return blocks[which] * BLOCK + inside

    def of(self, slot: int, tokens: NDArray[np.int64]) -> NDArray[np.floating]:
        """Logits of tokens [n] in one slot."""
        values = self._rows[slot, tokens]
        if self.mask is not None:
            values[tokens == self.mask] = NEVER
        return values

    def _copies(self, slots: NDArray[np.int64] | int, blocks: NDArray[np.int64]) -> NDArray[np.floating]:
        """`_read` as arrays."""
        values = self._pieces[slots, blocks]
        if self.mask is not None:
            values[blocks == self.mask // BLOCK, self.mask % BLOCK] = NEVER
        return values


def field_of(z: Tensor, mask: int | None) -> Field:
    """The field of logits [S, V], of the kind for their device."""
    return (HostField if z.device.type == "cpu" else Field)(z, mask)


def _nth(values: NDArray[np.floating], n: int) -> np.floating:
    """The n-th largest."""
    return np.partition(values, -n)[-n]
