"""Rows laid end to end: from what the engine wants run to what a forward takes.

Everything is worked out on the host in NumPy and written into one buffer, which one copy brings to a device.
A `BatchShape` fixes where each array lies, so a CUDA graph finds the next batch in the same place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.attention.columns import Arrays, Column, Columns
from recguide.attention.places import FACTS, SLOT, STEM, places_of
from recguide.attention.recent import WorkLists
from recguide.attention.structure import MASKED, Structure, structure_of
from recguide.attention.tiles import work_of
from recguide.attention.work import FIELDS, OWN, SEEN, TOKEN, Tiling, items_cap
from recguide.core import AdapterUse, PackedBatch, RecGuideError, Row

Ints = NDArray[np.int32]
Tables = Sequence[Sequence[int] | Ints]


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Room for a batch: query tokens, wanted logits, requests, and pages of a request, of so many tokens.

    `tiling` is how the attention is cut, None for a backend that needs no work list.
    """

    tokens: int
    wanted: int
    requests: int
    pages: int
    page_size: int
    tiling: Tiling | None = None

    def columns(self) -> dict[str, Column]:
        """The arrays of a batch: first those that `fill_structure` writes, from "work" on all others.

        Block tables come last, so that a copy may leave out unused ones.
        """
        n, tiling = self.tokens, self.tiling
        items = 0 if tiling is None else items_cap(n, self.requests, tiling)
        return {
            "facts": Column((len(FACTS), -(-n // 4) * 4)),  # so that each of its rows begins aligned
            "tokens": Column((n,)),
            "positions": Column((n,)),
            "kv_slots": Column((n,)),
            "causal": Column((n,), np.bool_),
            "masked": Column((n,), np.bool_),
            "adapter_on": Column((n,), np.bool_),
            "wanted": Column((self.wanted,)),
            "order": Column((0 if tiling is None else n, len((TOKEN, SEEN, OWN)))),
            "work": Column((items, FIELDS)),
            "begins": Column((2, n)),  # stems and prefixes of at most so many rows, in packed order
            "block_tables": Column((self.requests, self.pages)),
        }


class Flat:
    """Rows, how they lie in a batch, and where in their texts.

    Attributes:
        rows: as given.
        structure: how they lie.
        begins: [2, rows] int32, stem and prefix of each, as given.

    Raises RecGuideError, naming the row, if they cannot run together.
    """

    __slots__ = ("begins", "rows", "structure")

    def __init__(self, rows: Sequence[Row], tables: Tables, page_size: int) -> None:
        self.rows = rows
        self.structure = structure_of(rows)
        _check(rows, self.structure, tables, page_size)
        self.begins = np.array([[row.stem for row in rows], [row.prefix for row in rows]], np.int32)

    def moved(self, by: int | Ints) -> Flat:
        """The same rows so many positions further on, all of them or each [rows]; `rows` are those that they
        were made from."""
        begins = self.begins.copy()
        begins[1] += by
        return self.beginning(begins)

    def beginning(self, begins: Ints) -> Flat:
        """The same rows with these stems and prefixes [2, rows]."""
        other = object.__new__(Flat)  # a tenth of what `copy` takes
        other.rows, other.structure, other.begins = self.rows, self.structure, begins
        return other

    @property
    def prefix_tokens(self) -> int:
        """M, the prefix of each request once."""
        return int(self._packed_begins[1].take(self.structure.owners[2]).sum())

    @property
    def tokens(self) -> int:
        return self.structure.tokens

    @property
    def wanted(self) -> int:
        """Number of wanted logits."""
        return len(self.structure.wanted)

    def shape(self, requests: int, pages: int, page_size: int, tiling: Tiling | None) -> BatchShape:
        """Room for these rows and no more."""
        return BatchShape(self.tokens, self.wanted, requests, pages, page_size, tiling)

    @property
    def packed_rows(self) -> Sequence[Row]:
        rows, lies = self.rows, self.structure
        return rows if lies.in_turn else [rows[i] for i in lies.packed.tolist()]

    def fill(
        self,
        arrays: Arrays,
        tables: Tables,
        tiling: Tiling | None = None,
        recent: WorkLists | None = None,
    ) -> None:
        """Writes the batch into arrays of its own shape or a larger one, padding included, but for what
        follows from where rows begin (see `places`).

        `recent` spares most work lists of rows that come again.
        """
        fill_structure(arrays, self.structure)
        self.fill_in(arrays, tables, tiling, recent)

    def fill_in(
        self,
        arrays: Arrays,
        tables: Tables,
        tiling: Tiling | None = None,
        recent: WorkLists | None = None,
    ) -> None:
        """Writes what `fill_structure` leaves out."""
        tokens = chain.from_iterable([row.tokens for row in self.packed_rows])
        arrays["tokens"][: self.tokens] = np.fromiter(tokens, np.int32, self.tokens)
        self.fill_begins(arrays, enumerate(tables), tiling, recent)

    def fill_begins(
        self,
        arrays: Arrays,
        tables: Iterable[tuple[int, Sequence[int] | Ints]],
        tiling: Tiling | None = None,
        recent: WorkLists | None = None,
    ) -> None:
        """Writes where rows begin, and what work that makes.

        `tables` are those of requests, by their numbers, that are not written yet.
        """
        lies, begins = self.structure, self._packed_begins
        arrays["begins"][:, : len(lies.packed)] = begins
        block_tables = arrays["block_tables"]
        for request, table in tables:
            block_tables[request, : len(table)] = table
        if tiling is not None:
            work = work_of(lies, begins, tiling) if recent is None else recent.work_list(lies, begins, tiling)
            arrays["work"][: len(work)] = work

    @property
    def _packed_begins(self) -> Ints:
        return self.begins if self.structure.in_turn else self.begins.take(self.structure.packed, 1)


def fill_structure(arrays: Arrays, lies: Structure) -> None:
    """Writes all of a batch that its structure decides, padding included."""
    n, w, facts = lies.tokens, len(lies.wanted), arrays["facts"]
    facts[:STEM, :n] = lies.facts[:, :STEM].T
    facts[:SLOT, n:], facts[SLOT:, n:] = -1, 0  # of no row and no request
    arrays["tokens"][n:], arrays["positions"][n:], arrays["kv_slots"][lies.written :] = 0, 0, -1
    causal, touched, masked = arrays["causal"], arrays["adapter_on"], arrays["masked"]
    causal[: lies.written], causal[lies.written :] = True, False
    touched[: lies.adapter_start], touched[lies.adapter_start :] = False, True
    touched[n:] = lies.use is AdapterUse.ALL
    masked[:n], masked[n:] = lies.facts[:, MASKED], False
    arrays["wanted"][:w], arrays["wanted"][w:] = lies.wanted[:, -1], 0
    if len(arrays["order"]):
        arrays["order"][:n] = lies.order


def pack(
    rows: Sequence[Row],
    tables: Tables,
    page_size: int,
    device: torch.device | str = "cpu",
    tiling: Tiling | None = None,
    recent: WorkLists | None = None,
) -> PackedBatch:
    """Packs rows of any number of requests into one forward without any padding (architecture §2).

    Args:
        rows: in any order; `wanted` of the result follows this order.
        tables: page ids of each request; `Row.request` is an index into it.
        page_size: tokens a page.
        device: where the tensors go.
        tiling: how the attention backend cuts its work; None if it needs no list.
        recent: spares most work lists of rows that come again.

    Raises RecGuideError for rows that cannot run together, naming the row.
    """
    flat = Flat(rows, tables, page_size)
    shape = flat.shape(len(tables), max(map(len, tables)), page_size, tiling)
    columns = Columns(shape.columns())
    buffer = np.zeros(columns.size, np.uint8)
    flat.fill(columns.arrays(buffer), tables, tiling, recent)
    tensors = columns.tensors(torch.from_numpy(buffer).to(device))
    places_of(tensors, page_size, tiling)()
    return batch_of(tensors, shape, flat)


def batch_of(
    tensors: dict[str, Tensor], shape: BatchShape, flat: Flat | None = None, use: AdapterUse = AdapterUse.NONE
) -> PackedBatch:
    """The batch that lies in these arrays.

    Without `flat` it is one that tells a graph where to look: it knows no rows, and `use` says what the
    adapter will touch.
    """
    row, request, slot, stem, prefix = tensors["facts"][:, : shape.tokens]
    return PackedBatch(
        rows=() if flat is None else tuple(flat.packed_rows),
        row_starts=() if flat is None else flat.structure.row_starts,
        tokens=tensors["tokens"],
        positions=tensors["positions"],
        row=row,
        request=request,
        slot=slot,
        stem=stem,
        prefix=prefix,
        causal=tensors["causal"],
        masked=tensors["masked"],
        adapter_on=tensors["adapter_on"],
        use=use if flat is None else flat.structure.use,
        written=0 if flat is None else flat.structure.written,
        kv_slots=tensors["kv_slots"],
        adapter_start=0 if flat is None else flat.structure.adapter_start,
        block_tables=tensors["block_tables"],
        wanted=tensors["wanted"],
        order=tensors["order"],
        work=tensors["work"],
    )


# --- what cannot run together -------------------------------------------------------------------------------


def _check(rows: Sequence[Row], lies: Structure, tables: Tables, page_size: int) -> None:
    """Row by row in plain Python: most batches have few rows, and few operations find no fault."""
    held = [len(table) * page_size for table in tables]
    for row, (first, cached, stem) in zip(rows, lies.bounds, strict=True):
        prefix, request = row.prefix, row.request
        if (
            request >= len(held)
            or not 0 <= prefix <= held[request] - cached
            or prefix != rows[first].prefix
            or not 0 <= row.stem <= stem
        ):
            raise _fault(rows, lies, held)


def _fault(rows: Sequence[Row], lies: Structure, held: Sequence[int]) -> RecGuideError:
    """What is wrong with the first row that cannot stand where it does."""
    for i, (row, (first, cached, stem)) in enumerate(zip(rows, lies.bounds, strict=True)):
        request, needed = row.request, row.prefix + cached
        room = held[request] if request < len(held) else 0
        faults = (
            (request >= len(held), f"request {request} has no block table"),
            (row.prefix < 0 or row.stem < 0, "has a negative prefix or stem"),
            (row.causal and row.stem > 0, "is causal and has a stem"),
            (row.prefix != rows[first].prefix, f"request {request} has rows with different prefixes"),
            (needed > room, f"needs {needed} cached tokens, its pages hold {room}"),
            (row.stem > stem, f"stem {row.stem} exceeds its causal row's {stem} tokens"),
        )
        for bad, message in faults:
            if bad:
                return RecGuideError(f"row {i}: {message}")
    raise AssertionError("called for rows that cannot run together")
