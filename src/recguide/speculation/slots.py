"""The wanted slots of a forward as a table on the device, and what a picker makes of them.

A table is views of int32 words, so that it travels to the device inside a step's one input buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.core import MIN_TEMPERATURE, RecGuideError, SamplingParams, Vocabulary
from recguide.speculation.picks import PickRow, Picks, pick

INERT = -1
"""Position of a slot that only pads the table: nothing is picked there."""


class SlotRun(NamedTuple):
    """Consecutive wanted slots of one row.

    `start` is the absolute position of the row's slot 0, `first` the run's first slot, `seed` the sampling
    seed (any where the temperature is 0).
    """

    start: int
    first: int
    length: int
    seed: int
    temperature: float
    draft: bool


@dataclass(frozen=True, slots=True)
class SlotTable:
    """W wanted slots, [W] each.

    Attributes:
        seed: int64, sampling seed.
        position: int32, absolute position of the picked token; INERT in padding.
        start: int32, absolute position of the row's slot 0.
        slot: int32, slot within its row.
        temperature: float32, 0 is greedy.
        draft: bool, whether the slot belongs to a draft row.
    """

    seed: Tensor
    position: Tensor
    start: Tensor
    slot: Tensor
    temperature: Tensor
    draft: Tensor

    def __len__(self) -> int:
        return len(self.position)

    @staticmethod
    def words(slots: int) -> int:
        """int32 words of a table of that many slots, one at least; an even number."""
        return _spans(slots)[-1].stop

    @staticmethod
    def over(words: Tensor, slots: int) -> SlotTable:
        """The table that `fill` wrote, without a copy; `words` start at an even word of their storage."""
        seed, position, start, slot, temperature, draft = (words[span] for span in _spans(slots))
        return SlotTable(
            seed=seed.view(torch.int64),
            position=position,
            start=start,
            slot=slot,
            temperature=temperature.view(torch.float32),
            draft=draft.view(torch.bool)[:slots],
        )

    @staticmethod
    def fill(words: NDArray[np.int32], slots: int, runs: Sequence[SlotRun]) -> None:
        """Writes a table of `slots` slots: those of `runs`, one after another, then padding.

        `words` hold `SlotTable.words(slots)` int32 that start at a multiple of 8 bytes.
        """
        seed, position, start, slot, temperature, draft = (words[span] for span in _spans(slots))
        columns = tuple(zip(*runs, strict=True)) if runs else ((),) * len(SlotRun._fields)
        starts, firsts, lengths, seeds, temperatures, drafts = columns
        length = np.array(lengths, dtype=np.int32)
        used = int(length.sum())
        if used > slots:
            raise RecGuideError(f"slots: {used} wanted and room for {slots}")
        begins = np.cumsum(length) - length
        inside = np.arange(used, dtype=np.int32) - np.repeat(
            begins - np.array(firsts, dtype=np.int32), length
        )
        begin = np.repeat(np.array(starts, dtype=np.int32), length)
        flags = np.repeat(np.array(drafts, dtype=np.bool_), length)
        words[:] = 0
        seed.view(np.int64)[:used] = np.repeat(np.array(seeds, dtype=np.int64), length)
        # Logits at slot i predict token i in a draft row, token i+1 in a causal one.
        position[:used] = begin + inside + ~flags
        position[used:] = INERT
        start[:used] = begin
        slot[:used] = inside
        temperature.view(np.float32)[:used] = np.repeat(np.array(temperatures, dtype=np.float32), length)
        draft.view(np.bool_)[:used] = flags


def _spans(slots: int) -> tuple[slice, ...]:
    """Words of each field, in the order of SlotTable's; all begin at an even word."""
    even, bools = slots + slots % 2, -(-slots // 8) * 2
    spans: list[slice] = []
    at = 0
    for room, used in ((2 * slots, 2 * slots), *((even, slots),) * 4, (bools, bools)):
        spans.append(slice(at, at + used))
        at += room
    return tuple(spans)


Picker = Callable[[Tensor, SlotTable], Picks]
"""(logits [W, V], table of W slots) → picks; padding slots get token 0. Edits and filters are not its affair.

On a device it reads nothing back and launches the same kernels whatever the table holds, so that it can be
captured in a CUDA graph.
"""


def torch_picker(vocabulary: Vocabulary) -> Picker:
    """`pick` as a picker. It reads the table on the host; BadLogits counts slots as rows."""

    def picks(logits: Tensor, table: SlotTable) -> Picks:
        used = int((table.position != INERT).sum())
        rows = [
            PickRow(
                # What fp32 made of the least temperature may lie below it.
                SamplingParams(temperature=max(t, MIN_TEMPERATURE) if t else 0.0, seed=seed),
                prompt=(),
                history=(),
                extra=(),
                position=position,
                count=1,
                draft=draft,
            )
            for t, seed, position, draft in zip(
                table.temperature[:used].tolist(),
                table.seed[:used].tolist(),
                table.position[:used].tolist(),
                table.draft[:used].tolist(),
                strict=True,
            )
        ]
        return pick(logits[:used], rows, vocabulary).padded(len(table))

    return picks
