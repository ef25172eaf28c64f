"""Work lists used again: from one forward to the next texts grow, and often little else changes.

What a work list says depends on the rows' lengths and kinds, and on how many blocks of keys each tile sees;
prefixes and stems only say where the last block ends. So a list is made with a block to spare for each tile,
and serves again with its ends moved, until some tile sees more blocks than it lists, or far fewer. Blocks
that are listed and do not exist cost nothing: an item ends where its keys do.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recguide.attention.work import (
    CACHED,
    DRAFT,
    DRAFT_END,
    OPEN,
    QUERY,
    SEEN,
    TOKEN,
    TOKENS,
    RowColumns,
    Tiling,
    work_list,
)

Ints = NDArray[np.int32]
Index = NDArray[np.intp]

_Key = tuple[bytes | Tiling, ...]

KEPT = 64
"""Arrangements of rows whose list is kept, the last one of each, and others that have been met."""

SPARE = 1
"""Blocks that a tile's list has to spare when it is made."""
MOST_SPARE = 2 * SPARE
"""Beyond that a list is made anew: the load of programs would be uneven."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A list, and what it takes to move its ends.

    Attributes:
        row, ahead: [N], of each token of `order` its row, and the keys that it sees beyond prefix and stem.
        queries: [tiles], where each tile begins in `order`.
        flying: of each tile, keys in flight among which its tokens see some.
        blocks: of each tile, those listed.
        tile: of each row of `work` its tile; the number of tiles where the row is no item.
    """

    order: Ints
    work: Ints
    row: Index
    ahead: Ints
    queries: Index
    flying: Ints
    blocks: Ints
    tile: Index


class RecentWork:
    """Makes work lists, from recent ones where it can."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Key, _Known] = OrderedDict()
        self._met: OrderedDict[_Key, None] = OrderedDict()

    def work_list(self, rows: RowColumns, tiling: Tiling) -> tuple[Ints, Ints]:
        """What `work.work_list` returns, with blocks to spare where it does not matter.

        The arrays are kept here: the next call may change them.
        """
        key = (*[column.tobytes() for column in (rows.request, rows.causal, rows.length)], tiling)
        known = self._known.get(key)
        if known is None and self._is_new(key):
            return work_list(rows, tiling)
        if known is None or not _moved(known, rows, tiling):
            known = self._known[key] = _remembered(rows, tiling)
            self._known.move_to_end(key)
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        return known.order, known.work

    def _is_new(self, key: _Key) -> bool:
        """Whether rows lie like that for the first time: many requests hardly ever do so twice."""
        if key in self._met:
            return False
        self._met[key] = None
        if len(self._met) > KEPT:
            self._met.popitem(last=False)
        return True


def _remembered(rows: RowColumns, tiling: Tiling) -> _Known:
    spare = 0 if tiling.exact else SPARE
    order, work = work_list(rows, tiling, spare)
    row = np.arange(len(rows.length)).repeat(rows.length)[order[:, TOKEN]]
    is_item = work[:, TOKENS] > 0
    is_item[tiling.programs] = False  # the row on split tiles
    query = work[is_item, QUERY]
    begins = np.zeros(len(order), np.bool_)
    begins[query] = True
    queries = begins.nonzero()[0]
    tile_of_item = begins.cumsum()[query] - 1
    tile = np.full(len(work), len(queries))
    tile[is_item] = tile_of_item
    flying = np.zeros(len(queries), np.int32)
    flying[tile_of_item] = work[is_item, DRAFT_END] - work[is_item, DRAFT]
    blocks = tiling.blocks(np.maximum.reduceat(order[:, SEEN], queries), flying)
    return _Known(
        order=order,
        work=work,
        row=row,
        ahead=order[:, SEEN] - (rows.prefix + rows.stem)[row],
        queries=queries,
        flying=flying,
        blocks=blocks + spare,
        tile=tile,
    )


def _moved(known: _Known, rows: RowColumns, tiling: Tiling) -> bool:
    """Moves the list's ends to those of other prefixes and stems, unless these take another list."""
    seen = (rows.prefix + rows.stem)[known.row]
    seen += known.ahead
    ends = np.zeros((2, len(known.queries) + 1), np.int32)
    np.maximum.reduceat(seen, known.queries, out=ends[0, :-1])
    spare = known.blocks - tiling.blocks(ends[0, :-1], known.flying)
    if spare.min() < 0 or spare.max() > (0 if tiling.exact else MOST_SPARE):
        return False
    np.minimum.reduceat(seen, known.queries, out=ends[1, :-1])
    known.order[:, SEEN] = seen
    known.work[:, CACHED] = ends[0].take(known.tile)
    known.work[:, OPEN] = ends[1].take(known.tile)
    return True
