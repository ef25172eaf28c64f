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
from functools import lru_cache
from itertools import accumulate
from math import ceil

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Index = NDArray[np.intp]

FIELDS = 16
"""Columns of the work list. Row p is program p's first item, or zero for an idle program; then comes a row on
split tiles, then all other items."""

QUERY, TOKENS, HEAD, REQUEST = range(4)
"""Item: index into `order` of its first token, how many, key/value head, index of its block table."""
CACHED, DRAFT, DRAFT_END = range(4, 7)
"""Item: its tile's keys are positions 0..CACHED of the cache, then tokens order[DRAFT:DRAFT_END]. Where there
are none of these, both are the place of the request's first token."""
OPEN = 7
"""Item: cached keys that all tokens of the tile see."""
BEGIN, END = 8, 9
"""Item: its blocks among the tile's, cached keys first; in exact mode a block holds keys of one kind. Else
the last ones may lie beyond all keys: a list that is used again has some to spare."""
PARTIAL, HOME, RESULTS = range(10, 13)
"""Item: row of the workspace where its results go (exact mode: a block's after another's, unless the item
begins with block 0), and of its tile: first such row, and results. PARTIAL and HOME are -1 for a whole
tile."""
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
KEPT = 1024
"""Parts of tiles that are kept."""


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


def items_cap(tokens: int, requests: int, tiling: Tiling) -> int:
    """Rows that the work list of any batch of so many tokens and requests fits into."""
    tiles = tokens // tiling.tokens + min(tokens, requests)
    return tiling.programs + 1 + tiles * tiling.kv_heads + tiling.programs


def cut_evenly(count: int, blocks: int, tiling: Tiling) -> Ints:
    """The work list of so many whole tiles of request 0, each of so many blocks of cached keys."""
    tiles = np.zeros((count, FIELDS), np.int32)
    tiles[:, QUERY] = np.arange(0, count * tiling.tokens, tiling.tokens)
    tiles[:, TOKENS] = tiling.tokens
    return shared_out(tiles, [blocks] * count, tiling)


def shared_out(tiles: Ints, blocks: Sequence[int], tiling: Tiling) -> Ints:
    """The work list of tiles [tiles, FIELDS] that lack head and blocks."""
    total = sum(blocks) * tiling.kv_heads
    programs = _side_by_side(total, tiling)
    while True:
        most = max(tiling.grain, ceil(STREAM_MARGIN * total / programs))
        pieces = [-(-size // most) for size in blocks]
        if sum(pieces) * tiling.kv_heads <= programs:
            listed = _even(tiles, blocks, pieces, tiling)
        else:
            listed = _stream(tiles, np.array(blocks, np.int32), programs, tiling)
        if listed is not None:
            return listed
        programs //= 2


def _side_by_side(blocks: int, tiling: Tiling) -> int:
    """Programs that are worth it for so many blocks: all, or one on each multiprocessor."""
    return tiling.programs if blocks >= WORTH * tiling.programs else -(-tiling.programs // tiling.resident)


def _even(tiles: Ints, blocks: Sequence[int], parts: Sequence[int], tiling: Tiling) -> Ints | None:
    """The work list of tiles that are cut in so many parts of equal cost each, with a program for each part;
    None if the results of split tiles exceed the workspace."""
    heads, share, exact = tiling.kv_heads, tiling.share, tiling.exact
    tokens: list[int] = tiles[:, TOKENS].tolist()
    each = [_parts(*tile, heads, share, exact) for tile in zip(blocks, parts, tokens, strict=True)]
    home = list(accumulate([room for _, room in each], initial=0))
    if home[-1] > tiling.partial_rows:
        return None
    tiles = tiles.copy()
    tiles[:, HOME] = [at if room else 0 for at, (_, room) in zip(home, each, strict=False)]
    tiles[:, PARTIAL] = tiles[:, HOME]
    items = np.concatenate([items for items, _ in each])
    items += tiles.repeat([len(items) for items, _ in each], 0)
    work = np.zeros((tiling.programs + 1, FIELDS), np.int32)
    work[: len(items)] = items
    firsts = ((items[:, BEGIN] == 0) & (items[:, RESULTS] > 0)).nonzero()[0]
    most = max([count if room else 0 for count, (_, room) in zip(tokens, each, strict=True)])
    return _listed(work, firsts, most, tiling)


@lru_cache(KEPT)
def _parts(blocks: int, count: int, tokens: int, heads: int, share: int, exact: bool) -> tuple[Ints, int]:
    """What the parts of a tile do not share, [heads × count, FIELDS], and the rows that they take of
    the workspace."""
    items = np.zeros((heads, count, FIELDS), np.int32)
    head, nth = np.arange(heads)[:, None], np.arange(count + 1)
    plain = max(0, blocks - MASKED)
    spent = nth * (2 * blocks - plain) // count
    bounds = np.minimum(spent, (spent + plain) // 2).clip(nth, blocks - count + nth)
    items[:, :, HEAD] = head
    items[:, :, BEGIN], items[:, :, END] = bounds[:-1], bounds[1:]
    if count == 1:
        items[:, :, PARTIAL] = items[:, :, HOME] = -1
        return items.reshape(-1, FIELDS), 0
    # In exact mode the first part has one result, and each block of the others.
    before = 1 + bounds - bounds[1] if exact else nth
    before[0] = 0
    room = int(before[-1]) * tokens * share
    items[:, :, RESULTS], items[:, :, HOME] = before[-1], room * head
    items[:, :, PARTIAL] = room * head + before[:-1] * (tokens * share)
    return items.reshape(-1, FIELDS), heads * room


def _stream(tiles: Ints, blocks: Ints, programs: int, tiling: Tiling) -> Ints | None:
    """The work list of tiles of so many `blocks` [tiles] if each program gets an equal stretch of the row
    that they form, beginnings of tiles counted in; None as in `_even`.

    A stretch that would end near the beginning or the end of a tile ends there.
    """
    heads = tiling.kv_heads
    items = tiles.repeat(heads, 0)
    items.reshape(len(tiles), heads, FIELDS)[:, :, HEAD] = np.arange(heads)
    items[:, END] = blocks = blocks.repeat(heads)
    items[:, PARTIAL] = items[:, HOME] = -1

    ends = (blocks + float(START)).cumsum()
    at = ends - blocks
    share = float(ends[-1]) / programs
    near = max(tiling.grain, share / SNAP)
    # A stretch is more than a block: of fewer blocks than programs each would be a part of its own.
    first = np.minimum(np.ceil((at + near) / share), programs).astype(np.intp)
    parts = np.maximum(((ends - near) / share).astype(np.intp) - first + 2, 1)
    row = first - 1  # the program of its tile's first item; each of the others has the next one
    splits = (parts > 1).nonzero()[0]
    firsts, tokens = splits, items[splits, TOKENS]
    if len(splits):
        begins = parts.cumsum() - parts
        nth = np.arange(begins[-1] + parts[-1]) - begins.repeat(parts)
        row = row.repeat(parts) + nth
        begin = (row * share - (at - 0.5).repeat(parts)).astype(np.int32)
        begin[begins] = 0
        firsts = begins[splits]
        results = 1 + blocks[splits] - begin[firsts + 1] if tiling.exact else parts[splits]
        room = results * tokens * tiling.share
        home = room.cumsum() - room
        if home[-1] + room[-1] > tiling.partial_rows:
            return None
        items[splits, RESULTS], items[splits, HOME] = results, home
        items = items.repeat(parts, 0)
        before = (items[:, RESULTS] - items[:, END] + begin) * (nth > 0) if tiling.exact else nth
        items[:, PARTIAL] = items[:, HOME] + before * items[:, TOKENS] * tiling.share
        items[:, BEGIN] = begin
        np.copyto(items[:-1, END], begin[1:], where=begin[1:] > 0)
    # Whoever shares a program with the item before goes behind all that do not.
    follows = (row[1:] == row[:-1]).nonzero()[0]
    work = np.zeros((tiling.programs + 1 + len(follows), FIELDS), np.int32)
    items[follows, NEXT] = row[follows + 1] = np.arange(tiling.programs + 1, len(work))
    work[row] = items
    return _listed(work, row[firsts], int(tokens.max()) if len(splits) else 0, tiling)


def _listed(work: Ints, firsts: Index, most: int, tiling: Tiling) -> Ints:
    """A work list that has all items, with the rest: the rows of split tiles' first items, and the tokens of
    the largest such tile."""
    work[: len(firsts), MERGE] = firsts
    about = work[tiling.programs]
    about[MERGES], about[MERGE_MOST], about[LISTED] = len(firsts), most, len(work)
    return work
