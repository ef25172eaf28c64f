"""Who computes what: a forward's attention cut into work items of similar cost.

A *tile* is a few tokens of one request, of whatever rows, with the query heads that share a key/value head; a
*block* is a few of its keys. A tile meets the keys that some token of it sees: cached ones, from position 0
up to the furthest seen (the causal row's own keys are in the cache by then), then those of draft rows in
flight. A work item is a tile with some of its blocks, in order. Tiles are split over items where there are
too few of them to occupy the device, and where that evens out the load of its programs; the results of a
split tile are merged.

Everything is plain NumPy on the host: no more is known than lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recguide.core import Row

Ints = NDArray[np.int32]

FIELDS = 16
"""Columns of the work list. Row p is program p's first item, or zero for an idle program; then comes a row on
split tiles, then all other items."""

QUERY, TOKENS, HEAD, REQUEST = range(4)
"""Item: index into `order` of its first token, how many, key/value head, index of its block table."""
CACHED, DRAFT, DRAFT_END = range(4, 7)
"""Item: its tile's keys are positions 0..CACHED of the cache, then tokens order[DRAFT:DRAFT_END]."""
OPEN = 7
"""Item: cached keys that all tokens of the tile see."""
BEGIN, END = 8, 9
"""Item: its blocks among the tile's, cached keys first; in exact mode a block holds keys of one kind. Else
the last ones may lie beyond all keys: a list that is used again has some to spare."""
PARTIAL, HOME, RESULTS = range(10, 13)
"""Item: row of the workspace where its results go (exact mode: a block's after another's, unless the item
begins with block 0), and of its tile: first such row, and results. PARTIAL is -1 for a whole tile."""
NEXT = 13
"""Item: row of the same program's next one; 0 for none."""
MERGE = 14
"""Row m: row of the first item of the m-th split tile."""
MERGES, MERGE_MOST, LISTED = range(3)
"""Row `programs`: how many tiles are split, the tokens of the largest one, and the rows of the whole list."""

TOKEN, SEEN, OWN = range(3)
"""Columns of `order`: token index, cached keys that it sees, and its row if that is a draft row, else -1."""

STREAM_MARGIN = 1.15
"""Each tile in equal pieces and a program for each is preferred if that costs up to this much in balance."""
SNAP = 16
"""A tile is not split to even out less than 1 / SNAP of a program's load."""
START = 2
"""What it costs to begin a tile, in blocks."""
MASKED = 2
"""Last blocks of a tile that cost twice what others do, where it is cut evenly: their keys are masked."""
WORTH = 4
"""Blocks for each program from which on several of them share a multiprocessor. With less to do, fewer and
larger items are better: what is split has to be merged."""
FEW_ROWS, FEW_TILES = 12, 16
"""Rows, and tiles full of tokens, up to which plain Python is faster than NumPy."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How attention is cut for one size of batch.

    Attributes:
        share: query heads that share a key/value head.
        kv_heads: key/value heads.
        rows: query rows of a tile, tokens × `share`, at most.
        keys: keys of a block.
        programs: programs that run side by side, at most; idle ones cost nothing.
        resident: how many of them share a multiprocessor.
        grain: blocks of an item, at least, where a tile is split.
        exact: whether the blocks of a split tile are kept apart until they are merged in order.
        partial_rows: rows of the workspace for the results of split tiles.
    """

    share: int
    kv_heads: int
    rows: int
    keys: int
    programs: int
    resident: int
    grain: int
    exact: bool
    partial_rows: int

    @property
    def tokens(self) -> int:
        """Tokens of a tile, at most."""
        return self.rows // self.share

    def blocks(self, cached: Ints, flying: Ints) -> Ints:
        """Of tiles the blocks of so many cached keys and keys in flight."""
        if self.exact:
            return -(-cached // self.keys) - -flying // self.keys
        return -(-(cached + flying) // self.keys)


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

    def at(self, index: NDArray[np.intp]) -> RowColumns:
        return RowColumns(
            self.request[index], self.prefix[index], self.stem[index], self.causal[index], self.length[index]
        )


def items_cap(tokens: int, requests: int, tiling: Tiling) -> int:
    """Rows that the work list of any batch of so many tokens and requests fits into."""
    tiles = tokens // tiling.tokens + min(tokens, requests)
    return tiling.programs + 1 + tiles * tiling.kv_heads + tiling.programs


def work_list(rows: RowColumns, tiling: Tiling, spare: int = 0) -> tuple[Ints, Ints]:
    """The work of one forward; each tile lists `spare` blocks more than its keys fill.

    Returns `order` [N, 3], tokens grouped by request, each request's in packed order, and the work list
    [at most `items_cap`, FIELDS].
    """
    order, tiles = tiles_of(rows, tiling)
    blocks = tiling.blocks(tiles[:, CACHED], tiles[:, DRAFT_END] - tiles[:, DRAFT])
    return order, _shared_out(tiles, blocks + spare, tiling)


def cut_evenly(count: int, blocks: int, tiling: Tiling) -> Ints:
    """The work list of so many whole tiles of request 0, each of so many blocks of cached keys."""
    tiles = np.zeros((count, FIELDS), np.int32)
    tiles[:, QUERY] = np.arange(0, count * tiling.tokens, tiling.tokens)
    tiles[:, TOKENS] = tiling.tokens
    return _shared_out(tiles, np.full(count, blocks, np.int32), tiling)


def _shared_out(tiles: Ints, blocks: Ints, tiling: Tiling) -> Ints:
    """The work list of tiles [tiles, FIELDS] that lack head and blocks."""
    blocks = blocks.repeat(tiling.kv_heads)
    programs = _side_by_side(int(blocks.sum()), tiling)
    while True:
        listed = _listed(_cut(blocks, tiling, programs), tiles, tiling)
        if listed is not None:
            return listed
        programs //= 2


def _side_by_side(blocks: int, tiling: Tiling) -> int:
    """Programs that are worth it for so many blocks: all, or one on each multiprocessor."""
    return tiling.programs if blocks >= WORTH * tiling.programs else -(-tiling.programs // tiling.resident)


# --- tiles --------------------------------------------------------------------------------------------------


def tiles_of(rows: RowColumns, tiling: Tiling) -> tuple[Ints, Ints]:
    """`order`, and each request's tokens in tiles: items [tiles, FIELDS] that lack head and blocks."""
    few = len(rows.length) <= FEW_ROWS and rows.length.sum() <= FEW_TILES * tiling.tokens
    return _tiles_of_few(rows, tiling) if few else _tiles(rows, tiling)


def _tiles_of_few(packed: RowColumns, tiling: Tiling) -> tuple[Ints, Ints]:
    """As `tiles_of`, for few rows in plain Python."""
    requests, prefixes, stems, causal, lengths = (column.tolist() for column in packed)
    starts = [0, *accumulate(lengths)]
    order = np.empty((starts[-1], 3), np.int32)
    tiles: list[list[int]] = []
    at = 0
    by_request = sorted(range(len(requests)), key=requests.__getitem__)
    for request, mine in groupby(by_request, requests.__getitem__):
        begin, spans = at, list[tuple[int, int, bool, int]]()
        for row in mine:
            prefix, writes, end = prefixes[row], causal[row], at + lengths[row]
            seen = prefix + (1 - begin if writes else stems[row])
            order[at:end, TOKEN] = np.arange(starts[row], starts[row + 1])
            order[at:end, SEEN] = np.arange(seen + at, seen + end) if writes else seen
            order[at:end, OWN] = -1 if writes else row
            spans.append((at, end, writes, seen))
            at = end
        queries = range(begin, at, tiling.tokens)
        tiles += [_tile_of_one(spans, query, min(query + tiling.tokens, at), request) for query in queries]
    items = np.zeros((len(tiles), FIELDS), np.int32)
    items[:, : OPEN + 1] = tiles
    return order, items


def _tile_of_one(spans: list[tuple[int, int, bool, int]], query: int, end: int, request: int) -> list[int]:
    """An item's fields up to OPEN for tokens query..end.

    `spans`: where each row begins and ends, whether it is causal, and what a token sees: this, plus its index
    if it is.
    """
    cached, open_keys, draft, draft_end = 0, 1 << 30, end, 0
    for first, last, causal, seen in spans:
        if first < end and last > query:
            low, high = (seen + max(first, query), seen + min(last, end) - 1) if causal else (seen, seen)
            cached, open_keys = max(cached, high), min(open_keys, low)
            if not causal:
                draft, draft_end = min(draft, first), max(draft_end, last)
    return [query, end - query, 0, request, cached, draft if draft_end else 0, draft_end, open_keys]


def _tiles(packed: RowColumns, tiling: Tiling) -> tuple[Ints, Ints]:
    """As `tiles_of`."""
    by_request = packed.request.argsort(kind="stable")
    rows = packed.at(by_request)
    at = _before(rows.length)
    index = np.arange(int(at[-1] + rows.length[-1]), dtype=np.int32)
    order = _ordered(packed, by_request, rows, at, index)

    first_row = _changes(rows.request)
    tokens = np.add.reduceat(rows.length, first_row)
    count = -(-tokens // tiling.tokens)
    before = _before(count)
    ahead = (np.arange(int(before[-1] + count[-1]), dtype=np.int32) - before.repeat(count)) * tiling.tokens
    query = at[first_row].repeat(count) + ahead
    items = np.zeros((len(query), FIELDS), np.int32)
    items[:, QUERY] = query
    items[:, TOKENS] = np.minimum(tiling.tokens, tokens.repeat(count) - ahead)
    items[:, REQUEST] = rows.request[first_row].repeat(count)
    seen = order[:, SEEN]
    items[:, CACHED] = np.maximum.reduceat(seen, query)
    items[:, OPEN] = np.minimum.reduceat(seen, query)
    if not rows.causal.all():
        items[:, DRAFT], items[:, DRAFT_END] = _in_flight(rows, at, index, query)
    return order, items


def _ordered(
    packed: RowColumns, by_request: NDArray[np.intp], rows: RowColumns, at: Ints, index: Ints
) -> Ints:
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


def _in_flight(rows: RowColumns, at: Ints, index: Ints, query: Ints) -> tuple[Ints, Ints]:
    """The draft rows' tokens among which a tile's tokens see some: where they begin and end in `order`."""
    ends = np.where(rows.causal, 0, at + rows.length).repeat(rows.length)
    draft_end = np.maximum.reduceat(ends, query)
    begins = np.where(rows.causal, len(index), at).repeat(rows.length)
    return np.minimum(np.minimum.reduceat(begins, query), draft_end), draft_end


def _before(counts: Ints) -> Ints:
    """Sum of what precedes each."""
    return counts.cumsum(dtype=np.int32) - counts


def _changes(ordered: Ints) -> NDArray[np.intp]:
    """Where each value of an ordered array comes first."""
    new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return new.nonzero()[0]


# --- items --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cut:
    """Tiles of all heads, cut.

    Attributes:
        tile: [items], tile of each.
        begin, end: [items], blocks of the tile.
        parts: [tiles], items of each.
        first: [programs + 1], first item of each program, and the number of items; None if every program but
            the last ones has one.
    """

    tile: NDArray[np.intp]
    begin: Ints
    end: Ints
    parts: Ints
    first: Ints | None


def _cut(blocks: Ints, tiling: Tiling, programs: int) -> _Cut:
    """Cuts tiles of `blocks` [tiles] into items for some of the tiling's programs."""
    total = int(blocks.sum())
    most = max(tiling.grain, ceil(STREAM_MARGIN * total / programs))
    pieces = -(-blocks // most)
    if int(pieces.sum()) <= programs:
        return _even(blocks, pieces)
    begins = _before(blocks)
    bounds, first = _stream(blocks, begins, total, programs, tiling.grain)
    idle = np.full(tiling.programs + 1 - len(first), len(bounds) - 1, np.int32)
    tile = np.searchsorted(begins, bounds[:-1], side="right") - 1
    begin, end = bounds[:-1] - begins[tile], bounds[1:] - begins[tile]
    parts = np.bincount(tile).astype(np.int32)
    return _Cut(tile, begin, end, parts, np.concatenate((first, idle)))


def _even(blocks: Ints, pieces: Ints) -> _Cut:
    """Each tile in pieces of equal cost, a program for each piece."""
    tile = np.arange(len(blocks)).repeat(pieces)
    size, count = blocks[tile], pieces[tile]
    nth = np.arange(len(tile), dtype=np.int32) - _before(pieces)[tile]
    plain = np.maximum(0, size - MASKED)
    cost = 2 * size - plain

    def bound(piece: Ints) -> Ints:
        spent = piece * cost // count
        return np.minimum(spent, (spent + plain) // 2).clip(piece, size - count + piece)

    return _Cut(tile, bound(nth), bound(nth + 1), pieces, None)


def _stream(blocks: Ints, begins: Ints, total: int, programs: int, grain: int) -> tuple[Ints, Ints]:
    """Each program an equal stretch of the row of tiles, beginnings of tiles counted in."""
    cost = blocks + START
    ends = cost.cumsum()
    share = float(ends[-1]) / programs
    cuts = np.arange(1, programs) * share
    tile = np.searchsorted(ends, cuts, side="right")
    size = blocks[tile]
    inside = np.rint(cuts - (ends[tile] - size)).clip(0, size)
    near = max(grain, share / SNAP)
    inside = np.where(inside < near, 0, np.where(size - inside < near, size, inside))
    splits = begins[tile] + inside.astype(np.int32)
    bounds = np.concatenate((begins, splits, [total])).astype(np.int32)
    bounds.sort()
    bounds = bounds[_changes(bounds)]
    first = np.searchsorted(bounds, np.concatenate(([0], splits, [total])))
    return bounds, first.astype(np.int32)


def _listed(cut: _Cut, tiles: Ints, tiling: Tiling) -> Ints | None:
    """The work list; None if the results of split tiles exceed the workspace."""
    one_head = cut.tile // tiling.kv_heads
    items = tiles.take(one_head, 0)
    items[:, HEAD] = cut.tile - one_head * tiling.kv_heads
    items[:, BEGIN], items[:, END] = cut.begin, cut.end
    split = _share(items, cut, tiling)
    if split is None:
        return None
    if cut.first is None:
        row = np.arange(len(items), dtype=np.int32)
        work = np.zeros((tiling.programs + 1, FIELDS), np.int32)
        work[: len(items)] = items
    else:
        row, rows = _placed(cut.first, tiling.programs)
        items[:-1, NEXT] = np.where(row[1:] > tiling.programs, row[1:], 0)
        work = np.zeros((rows, FIELDS), np.int32)
        work[row] = items
    if len(split):
        work[: len(split), MERGE] = row[split]
        work[tiling.programs, MERGES] = len(split)
        work[tiling.programs, MERGE_MOST] = items[split, TOKENS].max()
    work[tiling.programs, LISTED] = len(work)
    return work


def _share(items: Ints, cut: _Cut, tiling: Tiling) -> NDArray[np.intp] | None:
    """Gives the items of split tiles room in the workspace, if there is enough.

    Returns the first item of each split tile.
    """
    first = _before(cut.parts)
    if len(cut.parts) == len(items):
        items[:, PARTIAL] = -1
        return first[:0].astype(np.intp)
    parts = cut.parts[cut.tile]
    split = parts > 1
    results = split * (np.where(cut.begin > 0, cut.end - cut.begin, 1) if tiling.exact else np.int32(1))
    ends = (results * items[:, TOKENS] * tiling.share).cumsum()
    if ends[-1] > tiling.partial_rows:
        return None
    partial = np.zeros_like(ends)
    partial[1:] = ends[:-1]
    items[:, PARTIAL] = np.where(split, partial, -1)
    items[:, HOME] = partial[first][cut.tile]
    items[:, RESULTS] = np.add.reduceat(results, first)[cut.tile] if tiling.exact else parts
    return first[cut.parts > 1].astype(np.intp)


def _placed(first: Ints, programs: int) -> tuple[Ints, int]:
    """The row of each item, and how many rows there are, if program p does items first[p] to first[p + 1]."""
    items = int(first[-1])
    busy = (first[1:] > first[:-1]).nonzero()[0].astype(np.int32)
    row = np.full(items, -1, np.int32)
    row[first[busy]] = busy
    others = (row < 0).nonzero()[0]
    rows = programs + 1 + len(others)
    row[others] = np.arange(programs + 1, rows)
    return row, rows
