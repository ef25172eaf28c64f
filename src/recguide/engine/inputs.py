"""The input of one forward: arrays that the host fills, and the tables that the device reads.

All lie in one buffer. On a CPU both are the same memory; to a GPU one copy brings it, which a graph begins
with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from recguide.attention.columns import Column, Columns
from recguide.attention.packing import BatchShape, Flat, Tables, batch_of, fill_structure
from recguide.attention.places import WantedPlaces, places_of
from recguide.attention.recent import WorkLists
from recguide.attention.structure import Structure
from recguide.core import AdapterUse, PackedBatch
from recguide.engine.request import Sampling
from recguide.speculation.slots import INERT, SlotTable
from recguide.speculation.step import Judged, SettleShape, SettleTable, StepOutput

IMAGES = 2**21
"""Bytes of what is kept of structures by an input."""


@dataclass(frozen=True, slots=True)
class Room:
    """What fits into an input: a batch, and the blocks to settle."""

    batch: BatchShape
    settle: SettleShape

    def columns(self) -> Columns:
        return Columns(
            {
                "settle": Column((self.settle.words,)),
                "slots": Column((SlotTable.words(self.batch.wanted),)),
                **self.batch.columns(),
            }
        )


@dataclass(frozen=True, slots=True)
class _HostSlots:
    """The host's side of a SlotTable."""

    seed: NDArray[np.int64]
    position: NDArray[np.int32]
    slot: NDArray[np.int32]
    temperature: NDArray[np.float32]
    draft: NDArray[np.bool_]

    @staticmethod
    def over(words: Tensor, slots: int) -> _HostSlots:
        table = SlotTable.over(words, slots)
        return _HostSlots(*(getattr(table, column.name).numpy() for column in fields(_HostSlots)))

    def fill_structure(self, lies: Structure) -> None:
        """Writes what the structure of a batch decides, padding included, which its position alone marks:
        the others' are worked out in the forward."""
        used = len(lies.wanted)
        self.slot[:used] = lies.wanted[:, 1]
        self.draft[:used] = lies.wanted[:, 2]
        self.position[:used], self.position[used:] = 0, INERT

    def fill_in(self, flat: Flat, sampling: Sequence[Sampling]) -> None:
        """Writes the rest; `sampling` has an entry for each request."""
        lies, used = flat.structure, flat.wanted
        if len(sampling) == 1:
            self.seed[:used], self.temperature[:used] = sampling[0]
            return
        seeds, temperatures = zip(*sampling, strict=True)
        request = lies.wanted[:, 0].astype(np.intp)
        self.seed[:used] = np.array(seeds, np.int64)[request]
        self.temperature[:used] = np.array(temperatures, np.float32)[request]


class Inputs:
    """Arrays and tables of one room.

    Args:
        room: what fits.
        columns: the room's.
        host: the host's buffer [at least `columns.size`] uint8; pinned if it is `send` to a GPU.
        device: the device's; the same tensor on a CPU.
        use: what the adapter touches, for a batch that a graph is captured with.

    Attributes:
        size: bytes of all that fits.
    """

    def __init__(
        self, room: Room, columns: Columns, host: Tensor, device: Tensor, use: AdapterUse = AdapterUse.NONE
    ) -> None:
        self.room, self.size = room, columns.size
        self._bytes = host.numpy()
        self._arrays = columns.arrays(self._bytes)
        self._of_structure = self._bytes[columns.starts["slots"] : columns.starts["work"]]
        self._images: dict[Structure, NDArray[np.uint8]] = {}
        self._tables_at = columns.starts["block_tables"]
        self._host, self._device = host, device
        self._filled = 0
        self._judged = 0
        tensors = columns.tensors(device)
        self._tensors = tensors
        self.batch: PackedBatch = batch_of(tensors, room.batch, use=use)
        self.slots = SlotTable.over(tensors["slots"], room.batch.wanted)
        wanted = WantedPlaces(self.slots.position, self.slots.start)
        self._places = places_of(tensors, room.batch.page_size, room.batch.tiling, wanted)
        self._slots = _HostSlots.over(columns.tensors(host)["slots"], room.batch.wanted)
        self.settle = SettleTable(room.settle, tensors["settle"])
        self._said = np.empty(self.output_words, np.int32)
        self._output = StepOutput.read(self._said, room.settle, room.batch.wanted)

    def place(self) -> None:
        """Works out what follows from where rows begin, where the device reads it: a forward begins so."""
        self._places()

    def batch_with(self, flat: Flat) -> PackedBatch:
        """The batch with what the host knows of it."""
        return batch_of(self._tensors, self.room.batch, flat)

    @property
    def output_words(self) -> int:
        """int32 words of what a forward over these inputs decides."""
        return self.room.settle.output_words(self.room.batch.wanted)

    def read(self, words: NDArray[np.int32]) -> StepOutput:
        """What a forward over these inputs decided, from the words of its output: a copy, valid until another
        one's is read."""
        self._said[:] = words
        return self._output

    def saved(self) -> Tensor:
        """A copy of what is filled in."""
        return self._host[: self._filled].clone()

    def restore(self, saved: Tensor) -> None:
        """Fills in what was saved."""
        self._host[: len(saved)].copy_(saved)
        self._filled = len(saved)

    def clear(self) -> None:
        """Makes all of it padding, on the device too: a forward over it writes nothing."""
        self._host.zero_()
        self._arrays["facts"][:2] = -1
        self._arrays["kv_slots"][:] = -1
        self._slots.position[:] = INERT
        self._device.copy_(self._host)

    def fill(
        self,
        flat: Flat,
        tables: Tables,
        sampling: Sequence[Sampling],
        judged: Sequence[Judged],
        recent: WorkLists | None = None,
    ) -> None:
        """Writes a forward's rows and tables on the host.

        `sampling` has an entry for each request, `judged` the blocks to settle.
        """
        arrays, batch = self._arrays, self.room.batch
        self._fill_structure(flat.structure)
        flat.fill_in(arrays, tables, batch.tiling, recent)
        self._slots.fill_in(flat, sampling)
        self.room.settle.fill(arrays["settle"], judged)
        self._filled = self._tables_at + 4 * len(tables) * batch.pages
        self._judged = len(judged)

    def fill_step(
        self,
        before: Inputs,
        flat: Flat,
        grown: Iterable[tuple[int, NDArray[np.int32]]],
        recent: WorkLists | None = None,
    ) -> None:
        """Writes plain steps that follow those of `before`, an input of the same room, but for their tokens.

        `flat` stands a position further on; `grown` are the block tables that have new pages.
        """
        filled = before._filled
        self._bytes[:filled] = before._bytes[:filled]
        flat.fill_begins(self._arrays, grown, self.room.batch.tiling, recent)
        self._filled, self._judged = filled, before._judged
        self.count_down(slice(self._judged))

    def count_down(self, judged: slice | list[int], tokens: NDArray[np.int32] | int = 1) -> None:
        """These of the judged requests may emit so many tokens less, but one."""
        caps = self._caps
        caps[judged] = np.maximum(1, caps[judged] - tokens)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Those of the batch, on the host, to be changed."""
        return self._arrays["tokens"]

    @property
    def blocks(self) -> NDArray[np.int32]:
        """The words of the settle table, on the host, to be changed."""
        return self._arrays["settle"]

    @property
    def tables(self) -> NDArray[np.int32]:
        """[requests, pages] block tables, on the host, to be changed."""
        return self._arrays["block_tables"]

    def begins(self, rows: int) -> NDArray[np.int32]:
        """[2, rows] stems and prefixes in packed order, on the host, to be changed."""
        return self._arrays["begins"][:, :rows]

    @property
    def fewest_left(self) -> int:
        """Tokens that each of the judged requests may still emit, at least."""
        return int(self._caps.min())

    @property
    def _caps(self) -> NDArray[np.int32]:
        return self.room.settle.caps(self._arrays["settle"], self._judged)

    def move(self, flat: Flat, recent: WorkLists | None = None) -> None:
        """The same rows where `flat` has them."""
        flat.fill_begins(self._arrays, (), self.room.batch.tiling, recent)

    def send(self) -> None:
        """Begins to copy what is filled in to the device."""
        if self._device is not self._host:
            self._device[: self._filled].copy_(self._host[: self._filled], non_blocking=True)

    def write_to(self, memory: NDArray[np.uint8]) -> None:
        """Copies what is filled in to the beginning of other memory of the host."""
        memory[: self._filled] = self._bytes[: self._filled]

    def _fill_structure(self, lies: Structure) -> None:
        """Writes what the structure decides, as bytes if it did so before."""
        image = self._images.get(lies)
        if image is not None:
            self._of_structure[:] = image
            return
        fill_structure(self._arrays, lies)
        self._slots.fill_structure(lies)
        if lies.is_kept:
            if len(self._images) * len(self._of_structure) > IMAGES:
                self._images.clear()
            self._images[lies] = self._of_structure.copy()
