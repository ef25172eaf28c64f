"""Rows laid end to end: from what the engine wants run to what a forward takes.

Everything is worked out on the host in NumPy and written into one buffer, which one copy brings to a device.
A `BatchShape` fixes where each array lies, so a CUDA graph finds the next batch in the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.attention.columns import Arrays, Column, Columns
from recguide.attention.recent import RecentWork
from recguide.attention.work import (
    FIELDS,
    OWN,
    SEEN,
    TOKEN,
    RowColumns,
    Tiling,
    items_cap,
    work_list,
)
from recguide.core import AdapterUse, PackedBatch, RecGuideError, Row

Ints = NDArray[np.int32]
Tables = Sequence[Sequence[int] | Ints]

FACTS = ("row", "request", "slot", "stem", "prefix")
"""What every token knows of its row: one matrix, each row of it one field of PackedBatch."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Room for a batch: query tokens, wanted logits, requests, and pages of a request.

    `tiling` is how the attention is cut, None for a backend that needs no work list.
    """

    tokens: int
    wanted: int
    requests: int
    pages: int
    tiling: Tiling | None = None

    def columns(self) -> dict[str, Column]:
        """The arrays of a batch; block tables come last, so that a copy may leave out unused ones."""
        n, tiling = self.tokens, self.tiling
        items = 0 if tiling is None else items_cap(n, self.requests, tiling)
        return {
            "facts": Column((len(FACTS), -(-n // 4) * 4)),  # so that each of its rows begins aligned
            "tokens": Column((n,)),
            "positions": Column((n,)),
            "kv_slots": Column((n,)),
            "order": Column((0 if tiling is None else n, len((TOKEN, SEEN, OWN)))),
            "causal": Column((n,), np.bool_),
            "masked": Column((n,), np.bool_),
            "adapter_on": Column((n,), np.bool_),
            "wanted": Column((self.wanted,)),
            "work": Column((items, FIELDS)),
            "block_tables": Column((self.requests, self.pages)),
        }


class Flat:
    """Rows as columns, and where their tokens go.

    Attributes:
        rows: as given.
        packed: their numbers in packed order.
        requests, starts, lengths, positions: [rows] int32, as given: request index, index of slot 0 among
            the tokens, slots, and absolute position of slot 0.
        causal: [rows] bool.
        wanted_row, wanted_slot: [W], row number and slot of each wanted logit.
        tokens, written, adapter_start: as in PackedBatch, without padding.

    Raises RecGuideError, naming the row, if they cannot run together.
    """

    __slots__ = (
        "_adapter",
        "_masked",
        "_prefixes",
        "_stems",
        "adapter_start",
        "causal",
        "lengths",
        "packed",
        "positions",
        "requests",
        "rows",
        "starts",
        "tokens",
        "wanted_row",
        "wanted_slot",
        "written",
    )

    def __init__(self, rows: Sequence[Row], tables: Tables, page_size: int) -> None:
        _check(rows, tables, page_size)
        facts = np.array(
            [
                (
                    row.request,
                    row.prefix,
                    row.stem,
                    row.causal,
                    row.adapter,
                    len(row.tokens),
                    len(row.masked),
                    len(row.wanted),
                )
                for row in rows
            ],
            np.int32,
        ).T
        self.rows = rows
        self.requests, self._prefixes, self._stems, causal, self._adapter = facts[:5]
        self.lengths, masked, wanted = facts[5:]
        self.positions = self._prefixes + self._stems
        self.causal = causal > 0
        # Causal rows write KV and lead; rows that the adapter touches trail.
        self.packed = np.argsort(self._adapter - causal, kind="stable")
        lengths = self.lengths[self.packed]
        ends = lengths.cumsum(dtype=np.int32)
        self.starts = np.empty_like(ends)
        self.starts[self.packed] = ends - lengths
        self.tokens = int(ends[-1])
        self.written = int(self.lengths @ causal)
        self.adapter_start = self.tokens - int(self.lengths @ self._adapter)
        self._masked = self.starts.repeat(masked) + self._slots(
            [row.masked for row in rows], masked, "has a mask slot"
        )
        self.wanted_row = np.arange(len(rows)).repeat(wanted)
        self.wanted_slot = self._slots([row.wanted for row in rows], wanted, "wants a slot")

    def _slots(self, each: Sequence[Sequence[int]], counts: Ints, what: str) -> Ints:
        """Slots of every row, one after another, none of which may lie outside its row."""
        slots = np.fromiter(chain.from_iterable(each), np.int32, int(counts.sum()))
        # As an unsigned number a negative one is too large as well.
        inside = slots.view(np.uint32) < self.lengths.repeat(counts).view(np.uint32)
        if not inside.all():
            number = np.arange(len(each)).repeat(counts)[~inside][0]
            raise RecGuideError(f"row {number}: {what} outside it")
        return slots

    @property
    def use(self) -> AdapterUse:
        if self.adapter_start == self.tokens:
            return AdapterUse.NONE
        return AdapterUse.ALL if self.adapter_start == 0 else AdapterUse.MIXED

    def shape(self, requests: int, pages: int, tiling: Tiling | None) -> BatchShape:
        """Room for these rows and no more."""
        return BatchShape(self.tokens, len(self.wanted_row), requests, pages, tiling)

    @property
    def packed_rows(self) -> list[Row]:
        return [self.rows[i] for i in self.packed.tolist()]

    def fill(
        self,
        arrays: Arrays,
        tables: Tables,
        page_size: int,
        tiling: Tiling | None = None,
        recent: RecentWork | None = None,
    ) -> None:
        """Writes the batch into arrays of its own shape or a larger one, padding included.

        `recent` spares most work lists of rows that come again.
        """
        lengths = self.lengths[self.packed]
        row = np.arange(len(lengths), dtype=np.int32).repeat(lengths)
        given = self.packed[row]
        request = self.requests[given]
        slot = np.arange(self.tokens, dtype=np.int32) - self.starts[given]
        self._fill_tokens(arrays, slot, self.positions[given])
        self._fill_facts(arrays["facts"], row, request, slot, self._stems[given], self._prefixes[given])
        self._fill_cache(arrays, tables, page_size, request)
        self._fill_flags(arrays)
        self._fill_work(arrays, tiling, recent)

    def _fill_tokens(self, arrays: Arrays, slot: Ints, start: Ints) -> None:
        n, w = self.tokens, len(self.wanted_row)
        tokens, positions, wanted = arrays["tokens"], arrays["positions"], arrays["wanted"]
        tokens[:n] = np.fromiter(chain.from_iterable(row.tokens for row in self.packed_rows), np.int32, n)
        np.add(start, slot, out=positions[:n])
        wanted[:w] = self.starts[self.wanted_row] + self.wanted_slot
        tokens[n:], positions[n:], wanted[w:] = 0, 0, 0

    def _fill_facts(self, facts: NDArray[Any], *columns: Ints) -> None:
        n = self.tokens
        for fact, column in zip(facts, columns, strict=True):
            fact[:n] = column
        facts[:2, n:], facts[2:, n:] = -1, 0  # of no row and no request

    def _fill_cache(self, arrays: Arrays, tables: Tables, page_size: int, request: Ints) -> None:
        """Block tables, and where the causal tokens' KV goes."""
        block_tables, kv_slots, written = arrays["block_tables"], arrays["kv_slots"], self.written
        for index, table in enumerate(tables):
            block_tables[index, : len(table)] = table
        page, offset = np.divmod(arrays["positions"][:written], page_size)
        kv_slots[:written] = block_tables[request[:written], page] * page_size + offset
        kv_slots[written:] = -1

    def _fill_flags(self, arrays: Arrays) -> None:
        causal, touched, masked = arrays["causal"], arrays["adapter_on"], arrays["masked"]
        causal[: self.written], causal[self.written :] = True, False
        touched[: self.adapter_start], touched[self.adapter_start :] = False, True
        touched[self.tokens :] = self.use is AdapterUse.ALL
        masked[:] = False
        masked[self._masked] = True

    def _fill_work(self, arrays: Arrays, tiling: Tiling | None, recent: RecentWork | None) -> None:
        if tiling is None:
            return
        columns = (self.requests, self._prefixes, self._stems, self.causal, self.lengths)
        rows = RowColumns(*(column[self.packed] for column in columns))
        make = work_list if recent is None else recent.work_list
        arrays["order"][: self.tokens], work = make(rows, tiling)
        arrays["work"][: len(work)] = work


def pack(
    rows: Sequence[Row],
    tables: Tables,
    page_size: int,
    device: torch.device | str = "cpu",
    tiling: Tiling | None = None,
) -> PackedBatch:
    """Packs rows of any number of requests into one forward without any padding (architecture §2).

    Args:
        rows: in any order; `wanted` of the result follows this order.
        tables: page ids of each request; `Row.request` is an index into it.
        page_size: tokens a page.
        device: where the tensors go.
        tiling: how the attention backend cuts its work; None if it needs no list.

    Raises RecGuideError for rows that cannot run together, naming the row.
    """
    flat = Flat(rows, tables, page_size)
    shape = flat.shape(len(tables), max(map(len, tables)), tiling)
    columns = Columns(shape.columns())
    buffer = np.zeros(columns.size, np.uint8)
    flat.fill(columns.arrays(buffer), tables, page_size, tiling)
    return batch_of(columns.tensors(torch.from_numpy(buffer).to(device)), shape, flat)


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
        row_starts=() if flat is None else tuple(flat.starts[flat.packed].tolist()),
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
        use=use if flat is None else flat.use,
        written=0 if flat is None else flat.written,
        kv_slots=tensors["kv_slots"],
        adapter_start=0 if flat is None else flat.adapter_start,
        block_tables=tensors["block_tables"],
        wanted=tensors["wanted"],
        order=tensors["order"],
        work=tensors["work"],
    )


# --- what cannot run together -------------------------------------------------------------------------------


def _check(rows: Sequence[Row], tables: Tables, page_size: int) -> None:
    """Row by row in plain Python: most batches have few rows, and few operations find no fault."""
    if not rows:
        raise RecGuideError("batch: no rows to run")
    prefixes: dict[int, int] = {}
    stems: dict[int, int] = {}
    for i, row in enumerate(rows):
        request, needed = row.request, row.prefix
        if not 0 <= request < len(tables) or not row.tokens or needed < 0 or row.stem < 0:
            raise _fault(i, row, tables)
        if row.causal:
            if row.stem or row.adapter or row.masked:
                raise _fault(i, row, tables)
            if request in stems:
                raise RecGuideError(f"row {i}: request {request} has two causal rows")
            stems[request] = len(row.tokens)
            needed += len(row.tokens)
        if prefixes.setdefault(request, row.prefix) != row.prefix:
            raise RecGuideError(f"row {i}: request {request} has rows with different prefixes")
        if needed > len(tables[request]) * page_size:
            held = len(tables[request]) * page_size
            raise RecGuideError(f"row {i}: needs {needed} cached tokens, its pages hold {held}")
    for i, row in enumerate(rows):
        if row.stem > stems.get(row.request, 0):
            length = stems.get(row.request, 0)
            raise RecGuideError(f"row {i}: stem {row.stem} exceeds its causal row's {length} tokens")


def _fault(i: int, row: Row, tables: Tables) -> RecGuideError:
    """What is wrong with a row by itself."""
    faults = (
        (not 0 <= row.request < len(tables), f"request {row.request} has no block table"),
        (not row.tokens, "has no tokens"),
        (row.prefix < 0 or row.stem < 0, "has a negative prefix or stem"),
        (row.causal and row.stem > 0, "is causal and has a stem"),
        (row.causal and row.adapter, "is causal and asks for the adapter"),
        (row.causal and len(row.masked) > 0, "is causal and has mask slots"),
    )
    return RecGuideError(f"row {i}: {next(message for bad, message in faults if bad)}")
