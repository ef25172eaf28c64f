"""The picker of a device: one pass over the vocabulary yields everything that guidance and picks need.

Its tokens are those of `pick`. Its statistics count every token with its noise, where `pick` leaves out the
noise of unlikely ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from recguide.core import CANDIDATES, RecGuideError, Vocabulary
from recguide.speculation.picks import Picks
from recguide.speculation.slots import SlotTable


@dataclass(frozen=True, slots=True)
class Split:
    """How the vocabulary is cut; it decides speed and the last bits of statistics, no token.

    Attributes:
        chunk: tokens that a program reads, a power of two.
        warps: of that program.
        registers: of a thread at most. Greedy slots want many chunks under way, sampled ones registers.
    """

    chunk: int
    warps: int
    registers: int = 64


ALIKE = Split(1024, 4)
"""A cut for any number of slots, as exact mode needs it: statistics are then the same bits in any company."""


class FusedPicker:
    """A `Picker` in Triton, for slots without edits and filters.

    A pick depends on nothing but its slot's logits, sampling seed, position and temperature: neither on W nor
    on the split. The last bits of statistics, log-probabilities among them, depend on the split. What it
    needs on the device it puts there beforehand, so that calls can be captured.

    Args:
        vocabulary: its mask token is never picked.
        device: where logits and tables will lie.
        split: how the vocabulary is cut; None chooses by the number of slots.
    """

    def __init__(
        self, vocabulary: Vocabulary, device: torch.device | str = "cuda", split: Split | None = None
    ) -> None:
        ends = sorted({*vocabulary.eos} - {vocabulary.mask})
        left_out = ends if vocabulary.mask is None else [*ends, vocabulary.mask]
        room = 1 << max(0, len(ends) - 1).bit_length()
        padded_ends = [*ends, *[vocabulary.size] * (room - len(ends))]
        self._ends = torch.tensor(padded_ends, dtype=torch.int32, device=device)
        self._left_out = torch.tensor(left_out or [vocabulary.size], dtype=torch.int32, device=device)
        self._specials = len(left_out)
        self._mask = -1 if vocabulary.mask is None else vocabulary.mask
        self._split = split

    def __call__(self, logits: Tensor, table: SlotTable) -> Picks:
        """Picks of logits [W, V], float32 or float64, each slot's contiguous: two launches."""
        from recguide.speculation.kernels.picks import NUMBERS, REALS, conclude, scan

        slots, width = logits.shape
        if len(table) != slots:
            raise RecGuideError(f"logits: {slots} given for {len(table)} slots")
        split = self._split or split_for(slots, width)
        chunks = -(-width // split.chunk)
        device = logits.device
        reals = torch.empty(REALS, slots, chunks, dtype=torch.float32, device=device)
        numbers = torch.empty(NUMBERS, slots, chunks, dtype=torch.int32, device=device)
        tokens = torch.empty(1 + CANDIDATES, slots, dtype=torch.int64, device=device)
        found = torch.empty(4, slots, dtype=torch.float32, device=device)
        bad = torch.empty(slots, dtype=torch.bool, device=device)
        shared = (logits, logits.stride(0), table.seed, table.position, table.temperature, table.draft)
        # Triton's stubs, where it is installed, know neither launches nor plain integers as constants.
        cast("Any", scan)[(chunks, slots)](
            *shared,
            self._left_out,
            reals,
            numbers,
            width,
            SPECIALS=self._specials,
            CHUNK=split.chunk,
            num_warps=split.warps,
            maxnreg=split.registers,
        )
        cast("Any", conclude)[(slots,)](
            *shared,
            self._ends,
            self._mask,
            reals,
            numbers,
            tokens,
            found,
            bad,
            width,
            chunks,
            CHUNKS=1 << (chunks - 1).bit_length(),
            ENDS=len(self._ends),
            num_warps=1,
        )
        p1, p2, nats, logprobs = found
        return Picks(tokens[0], p1, p2, tokens[1:], nats, logprobs, bad)


ENOUGH = 1056
"""Programs from which on larger chunks cost nothing: eight for each of 132 multiprocessors."""


def split_for(slots: int, width: int) -> Split:
    """Small chunks where few slots have to fill a device, large ones where many do anyway."""
    if slots * width <= ENOUGH * 1024:
        return Split(1024, 4)
    return Split(2048, 4) if slots * width <= ENOUGH * 2048 else Split(4096, 8)
