"""A round of a request that runs alone, packed once: others of its shape are written over it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recguide.engine.flight import Ready
from recguide.speculation.rows import Branch, BranchKind
from recguide.speculation.step import CAP

Shape = tuple[int, tuple[tuple[BranchKind, int], ...]]
"""Slots of the block, and kind and slots of each branch."""


def shape_of(block: int, branches: Sequence[Branch]) -> Shape:
    return block, tuple([(branch.kind, branch.block) for branch in branches])


class Shaped:
    """A verification with branches, in an input that nobody else fills.

    Args:
        ready: it, packed; its request is the only one.
        until: the furthest prefix that the work which is listed serves.

    Attributes:
        until: as given.
        table: the block table that is filled in.
    """

    __slots__ = (
        *("table", "until", "_ready", "_tokens", "_settle", "_stems", "_prefixes", "_table"),
        *("_seed_at", "_drafted", "_judged", "_branches"),
    )

    def __init__(self, ready: Ready, until: int) -> None:
        inputs, lies, block = ready.inputs, ready.flat.structure, ready.docket.blocks[0]
        self._ready = ready = ready.staying()
        self.until, self.table, self._table = until, ready.plan[0].request.table.array, inputs.tables[0]
        room = inputs.room.settle
        self._seed_at, branches_at = room.block_at(0), room.branches_at(0)
        self._drafted = inputs.tokens[1:block]
        self._judged = inputs.blocks[self._seed_at + 1 : self._seed_at + block]
        stems, self._prefixes = ready.flat.begins
        # Single words are written in a third of the time through these.
        self._tokens, self._settle, self._stems = inputs.tokens.data, inputs.blocks.data, stems.data
        self._branches = [
            (row, first, branches_at + row - 1, branches_at + room.branches + row - 1)
            for row, first in enumerate(lies.first_tokens[1:].tolist(), 1)
        ]
        """Of each its row, its first token, and in the settle table its slot, and what its slot 0 holds."""

    def write(
        self, prefix: int, left: int, seed: int, drafted: NDArray[np.int32], branches: Sequence[Branch]
    ) -> Ready:
        """Another round of this shape.

        Args:
            prefix: tokens that are cached.
            left: tokens that may still be emitted.
            seed, drafted: the block, `drafted` [block - 1].
            branches: of the lengths and kinds of this shape.
        """
        tokens, settle, stems = self._tokens, self._settle, self._stems
        tokens[0] = settle[self._seed_at] = seed
        self._drafted[:] = self._judged[:] = drafted
        settle[CAP] = left
        self._prefixes[:] = prefix
        for branch, (row, first, slot, head) in zip(branches, self._branches, strict=True):
            stems[row] = settle[slot] = branch.slot
            if branch.head is not None:
                tokens[first] = settle[head] = branch.head
        return self._ready

    def read_from(self, table: NDArray[np.int32]) -> None:
        """Fills in its request's block table."""
        self._table[: len(table)] = self.table = table

    def standing_at(self, prefix: int) -> Ready:
        """The round that is written in, with so many tokens cached."""
        self._prefixes[:] = prefix
        return self._ready
