"""Work lists used again: from one forward to the next prefixes grow, and often little else changes.

What a work list says depends on the rows' lengths, stems and kinds, and on how many blocks of keys each tile
sees; the prefix itself only says where the last block ends. So a list that was made for such rows serves
again with its ends moved, until some tile sees another number of blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recguide.attention.work import CACHED, REQUEST, RowColumns, Tiling, work_list

Ints = NDArray[np.int32]

KEPT = 64
"""Lists that are kept, one for each arrangement of rows."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A list and what it was made for.

    Attributes:
        prefixes: [rows] of its rows.
        requests, ends, blocks: [items] request of each item, cached keys of its tile, and their blocks.
    """

    order: Ints
    work: Ints
    prefixes: Ints
    requests: Ints
    ends: Ints
    blocks: Ints


class RecentWork:
    """Makes work lists, from recent ones where it can."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[bytes | Tiling, ...], _Known] = OrderedDict()

    def work_list(self, rows: RowColumns, tiling: Tiling) -> tuple[Ints, Ints]:
        """What `work.work_list` returns. The arrays are kept here: they are for reading."""
        columns = (rows.request, rows.stem, rows.causal, rows.length)
        key = (*(column.tobytes() for column in columns), tiling)
        known = self._known.get(key)
        moved = None if known is None else _moved(known, rows, tiling)
        if known is not None and moved is not None:
            return known.order, moved
        order, work = work_list(rows, tiling)
        self._known[key] = _remembered(order, work, rows, tiling)
        self._known.move_to_end(key)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return order, work


def _remembered(order: Ints, work: Ints, rows: RowColumns, tiling: Tiling) -> _Known:
    items = work[tiling.programs + 1 :]
    ends = items[:, CACHED].copy()
    return _Known(order, work, rows.prefix.copy(), items[:, REQUEST].copy(), ends, _blocks(ends, tiling))


def _moved(known: _Known, rows: RowColumns, tiling: Tiling) -> Ints | None:
    """The list for other prefixes of the same rows; None if they take another one."""
    by_request = np.empty(int(rows.request.max()) + 1, np.int32)
    by_request[rows.request] = rows.prefix - known.prefixes
    ends = known.ends + by_request[known.requests]
    if not np.array_equal(_blocks(ends, tiling), known.blocks):
        return None
    work = known.work.copy()
    work[tiling.programs + 1 :, CACHED] = ends
    return work


def _blocks(ends: Ints, tiling: Tiling) -> Ints:
    return -(-ends // tiling.keys)
