"""Work lists used again: from one forward to the next texts grow, and often little else changes.

What a work list says depends on how rows lie, and on how many blocks of keys each tile sees; where the last
block ends is worked out in the forward (see `places`). So a list is made with some blocks to spare for each
tile, and serves again until rows have moved so far that some tile may see more blocks than it lists, or far
fewer; shortly before, it is made anew while nobody waits. Blocks that are listed and do not exist cost
nothing: an item ends where its keys do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from recguide.attention.alone import WorkAlone
from recguide.attention.work import CACHED, DRAFT, DRAFT_END, TOKENS, RowColumns, Tiling, work_list

Ints = NDArray[np.int32]

_Key = tuple[Hashable, Tiling]

KEPT = 64
"""Arrangements of rows whose list is kept, the last one of each, and others that have been met."""

SPARE = 64
"""Keys that a tile's list has to spare when it is made, in whole blocks."""
SOON = 32
"""Positions that a list has still to serve for; if fewer, it is made anew beforehand. A round moves a request
no further than a block."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A list, and how far it serves.

    Attributes:
        begin: [rows], where the rows began for which it was made: prefix and stem.
        back, on: tokens that all rows may have moved at least, at most.
    """

    order: Ints
    work: Ints
    begin: Ints
    back: int
    on: int

    def serves(self, begin: Ints) -> int:
        """Positions that rows which begin there may move on, negative if it does not serve them."""
        moved = begin - self.begin
        return self.on - int(moved.max()) if moved.min() >= self.back else -1


class WorkLists(Protocol):
    """Makes work lists."""

    def work_list(self, lies: Hashable, rows: RowColumns, tiling: Tiling) -> tuple[Ints, Ints]:
        """What `work.work_list` returns, but for where keys end, and with blocks to spare where it does not
        matter. The arrays are kept here.

        Args: lies: tells rows apart that differ in more than prefixes and stems.
        """
        ...

    def until(self, lies: Hashable, tiling: Tiling, prefix: int) -> int:
        """The furthest prefix that the list made for this one serves as well, of rows that lie so, whatever
        their stems; −1 if that is not known."""
        ...


class RecentWork:
    """Makes work lists, from recent ones where it can."""

    def __init__(self) -> None:
        self._alone = WorkAlone()
        self._known: OrderedDict[_Key, _Known] = OrderedDict()
        self._met: OrderedDict[_Key, None] = OrderedDict()
        self._short: dict[_Key, RowColumns] = {}
        """Those that will not serve much longer, and whom they have served."""

    def work_list(self, lies: Hashable, rows: RowColumns, tiling: Tiling) -> tuple[Ints, Ints]:
        return self.listed(lies, rows, tiling, lasting=False)

    def until(self, lies: Hashable, tiling: Tiling, prefix: int) -> int:
        return self._alone.until(lies, tiling, prefix)

    @property
    def lasting(self) -> WorkLists:
        """The same for rows that are about to move: their list serves them then."""
        return _Lasting(self)

    def listed(self, lies: Hashable, rows: RowColumns, tiling: Tiling, *, lasting: bool) -> tuple[Ints, Ints]:
        """As `work_list`, or `lasting.work_list`."""
        alone = self._alone.work_list(lies, rows, tiling)
        if alone is not None:
            return alone
        key = (lies, tiling)
        known = self._known.get(key)
        if known is None and not lasting and self._is_new(key):
            return work_list(rows, tiling)
        left = -1 if known is None else known.serves(rows.prefix + rows.stem)
        if known is None or left < 0:
            known = self._make(key, rows)
        elif left < SOON and not tiling.exact:
            self._short[key] = rows
        return known.order, known.work

    def refresh(self) -> None:
        """Makes a list anew that will not serve much longer, one at a time."""
        self._alone.refresh()
        if self._short:
            self._make(*self._short.popitem())

    def _make(self, key: _Key, rows: RowColumns) -> _Known:
        self._short.pop(key, None)
        known = self._known[key] = _made(rows, key[1])
        self._known.move_to_end(key)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return known

    def _is_new(self, key: _Key) -> bool:
        """Whether rows lie like that for the first time: many requests hardly ever do so twice."""
        if key in self._met:
            return False
        self._met[key] = None
        if len(self._met) > KEPT:
            self._met.popitem(last=False)
        return True


@dataclass(frozen=True, slots=True)
class _Lasting:
    recent: RecentWork

    def work_list(self, lies: Hashable, rows: RowColumns, tiling: Tiling) -> tuple[Ints, Ints]:
        return self.recent.listed(lies, rows, tiling, lasting=True)

    def until(self, lies: Hashable, tiling: Tiling, prefix: int) -> int:
        return self.recent.until(lies, tiling, prefix)


def most_spare(tiling: Tiling) -> int:
    """Blocks to spare beyond which a list is made anew: the load of programs would be uneven."""
    return 2 * _spare(tiling)


def _spare(tiling: Tiling) -> int:
    return 0 if tiling.exact else -(-SPARE // tiling.keys)


def _made(rows: RowColumns, tiling: Tiling) -> _Known:
    spare = _spare(tiling)
    order, work = work_list(rows, tiling, spare)
    items = np.delete(work, tiling.programs, 0)  # the row on split tiles
    items = items[items[:, TOKENS] > 0]
    cached, flying = items[:, CACHED], items[:, DRAFT_END] - items[:, DRAFT]
    listed = tiling.blocks(cached, flying) + spare
    # Keys in flight do not move, and share a block with cached ones but in exact mode.
    keys, blocks = (cached, -(-cached // tiling.keys)) if tiling.exact else (cached + flying, listed)
    return _Known(
        order=order,
        work=work,
        begin=rows.prefix + rows.stem,
        back=int(((blocks - most_spare(tiling) - 1) * tiling.keys + 1 - keys).max()),
        on=int((blocks * tiling.keys - keys).min()),
    )
