"""Work lists from nothing but rows, of any number and kind, by columns: what those have to be that are put
together from what comes again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recguide.attention.work import (
    CACHED,
    DRAFT,
    DRAFT_END,
    FIELDS,
    OPEN,
    OWN,
    QUERY,
    REQUEST,
    SEEN,
    TOKEN,
    TOKENS,
    Tiling,
    shared_out,
)
from recguide.core import Row

Ints = NDArray[np.int32]
Index = NDArray[np.intp]


class RowColumns(NamedTuple):
    """Rows in packed order, by columns [rows]: what `Row` says, and the number of its tokens."""

    request: Ints
    prefix: Ints
    stem: Ints
    causal: NDArray[np.bool_]
    length: Ints

    @staticmethod
    def of(rows: Sequence[Row]) -> RowColumns:
        facts = [(row.request, row.prefix, row.stem, row.causal, len(row.tokens)) for row in rows]
        request, prefix, stem, causal, length = np.array(facts, np.int32).T
        return RowColumns(request, prefix, stem, causal > 0, length)

    def at(self, index: Index) -> RowColumns:
        return RowColumns(
            self.request[index], self.prefix[index], self.stem[index], self.causal[index], self.length[index]
        )


def work_list(rows: RowColumns, tiling: Tiling) -> tuple[Ints, Ints]:
    """The work of one forward.

    Returns `order` [N, 3], tokens grouped by request, each request's in packed order, and the work list
    [at most `items_cap`, FIELDS].
    """
    order, tiles = tiles_of(rows, tiling.tokens)
    blocks = blocks_of(tiles[:, CACHED], tiles[:, DRAFT_END] - tiles[:, DRAFT], tiling)
    return order, shared_out(tiles, blocks.tolist(), tiling)


def blocks_of(cached: Ints, flying: Ints, tiling: Tiling) -> Ints:
    """Of tiles the blocks of so many cached keys and keys in flight."""
    if tiling.exact:
        return -(-cached // tiling.keys) - -flying // tiling.keys
    return -(-(cached + flying) // tiling.keys)


def tiles_of(packed: RowColumns, size: int) -> tuple[Ints, Ints]:
    """`order`, and each request's tokens in tiles of so many: items [tiles, FIELDS] that lack head and
    blocks."""
    by_request = packed.request.argsort(kind="stable")
    rows = packed.at(by_request)
    at = _before(rows.length)
    index = np.arange(int(at[-1] + rows.length[-1]), dtype=np.int32)
    order = _ordered(packed, by_request, rows, at, index)

    first_row = _changes(rows.request)
    tokens = np.add.reduceat(rows.length, first_row)
    count = -(-tokens // size)
    before = _before(count)
    ahead = (np.arange(int(before[-1] + count[-1]), dtype=np.int32) - before.repeat(count)) * size
    begin = at[first_row].repeat(count)
    query = begin + ahead
    items = np.zeros((len(query), FIELDS), np.int32)
    items[:, QUERY] = query
    items[:, TOKENS] = np.minimum(size, tokens.repeat(count) - ahead)
    items[:, REQUEST] = rows.request[first_row].repeat(count)
    seen = order[:, SEEN]
    items[:, CACHED] = np.maximum.reduceat(seen, query)
    items[:, OPEN] = np.minimum.reduceat(seen, query)
    items[:, DRAFT], items[:, DRAFT_END] = _in_flight(rows, at, index, query, begin)
    return order, items


def _ordered(packed: RowColumns, by_request: Index, rows: RowColumns, at: Ints, index: Ints) -> Ints:
    """`order`, of `rows` that are those of `packed` by request; `at` is where each begins in it."""
    order = np.empty((len(index), 3), np.int32)
    # Of each row: where it lies, what its first token sees, itself; then what the next tokens add to that.
    # A causal token sees the cache up to itself, a draft row's its stem.
    of_row = np.empty((len(at), 3), np.int32)
    of_row[:, TOKEN] = _before(packed.length)[by_request] - at
    of_row[:, SEEN] = rows.prefix + np.where(rows.causal, 1 - at, rows.stem)
    of_row[:, OWN] = np.where(rows.causal, -1, by_request)
    order[:] = of_row.repeat(rows.length, 0)
    order[:, TOKEN] += index
    order[:, SEEN] += index * rows.causal.repeat(rows.length)
    return order


def _in_flight(rows: RowColumns, at: Ints, index: Ints, query: Ints, begin: Ints) -> tuple[Ints, Ints]:
    """The draft rows' tokens among which a tile's tokens see some: where they begin and end in `order`."""
    if rows.causal.all():
        return begin, begin
    ends = np.where(rows.causal, 0, at + rows.length).repeat(rows.length)
    draft_end = np.maximum(np.maximum.reduceat(ends, query), begin)
    begins = np.where(rows.causal, len(index), at).repeat(rows.length)
    return np.minimum(np.minimum.reduceat(begins, query), draft_end), draft_end


def _before(counts: Ints) -> Ints:
    """Sum of what precedes each."""
    return counts.cumsum(dtype=np.int32) - counts


def _changes(ordered: Ints) -> Index:
    """Where each value of an ordered array comes first."""
    new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return new.nonzero()[0]
