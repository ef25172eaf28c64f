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

from recguide.attention.work import CACHED, OPEN, REQUEST, SEEN, TOKEN, TOKENS, RowColumns, Tiling, work_list

Ints = NDArray[np.int32]

KEPT = 64
"""Lists that are kept, one for each arrangement of rows."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A list and what it was made for.

    Attributes:
        prefixes: [rows] of its rows.
        token_requests: [N] request of each token of `order`.
        items: rows of `work` that are items.
        requests, blocks: [items] request of each item, and blocks of cached keys of its tile.
    """

    order: Ints
    work: Ints
    prefixes: Ints
    token_requests: Ints
    items: NDArray[np.intp]
    requests: Ints
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
        if moved is not None:
            return moved
        order, work = work_list(rows, tiling)
        self._known[key] = _remembered(order, work, rows, tiling)
        self._known.move_to_end(key)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return order, work


def _remembered(order: Ints, work: Ints, rows: RowColumns, tiling: Tiling) -> _Known:
    items = (work[:, TOKENS] > 0).nonzero()[0]
    items = items[items != tiling.programs]  # the row on split tiles
    return _Known(
        order=order,
        work=work,
        prefixes=rows.prefix.copy(),
        token_requests=rows.request.repeat(rows.length)[order[:, TOKEN]],
        items=items,
        requests=work[items, REQUEST],
        blocks=_blocks(work[items, CACHED], tiling),
    )


def _moved(known: _Known, rows: RowColumns, tiling: Tiling) -> tuple[Ints, Ints] | None:
    """The list for other prefixes of the same rows; None if they take another one."""
    grown = np.empty(int(rows.request.max()) + 1, np.int32)
    grown[rows.request] = rows.prefix - known.prefixes
    by_item = grown[known.requests]
    cached = known.work[known.items, CACHED] + by_item
    if not np.array_equal(_blocks(cached, tiling), known.blocks):
        return None
    order, work = known.order.copy(), known.work.copy()
    order[:, SEEN] += grown[known.token_requests]
    work[known.items, CACHED] = cached
    work[known.items, OPEN] += by_item
    return order, work


def _blocks(cached: Ints, tiling: Tiling) -> Ints:
    return -(-cached // tiling.keys)
