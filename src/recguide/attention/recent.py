"""Work lists used again: from one forward to the next texts grow, and often little else changes.

What a work list says depends on how rows lie, and on how many blocks of keys each tile sees; where the last
block ends is worked out in the forward (see `places`). So a list is made with some blocks to spare for each
tile, and serves again until texts have grown so far that some tile may see more blocks than it lists, or far
fewer; shortly before, it is made anew while nobody waits. Blocks that are listed and do not exist cost
nothing: an item ends where its keys do.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from operator import add
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from recguide.attention.alone import SOON, WorkAlone
from recguide.attention.structure import Structure
from recguide.attention.tiles import tiles_of_all, work_of
from recguide.attention.work import Tiling, shared_out

Ints = NDArray[np.int32]

_Key = tuple[Structure, Tiling, bytes]
"""How rows lie, how they are cut, and in exact mode their stems."""

KEPT = 64
"""Arrangements of rows whose list is kept, the last one of each, and others that have been met."""

SPARE = 64
"""Keys that a tile's list has to spare when it is made, in whole blocks."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A list, and how far it serves.

    Attributes:
        prefixes: [rows], those for which it was made.
        back, on: tokens that all of them may have grown at least, at most.
    """

    work: Ints
    prefixes: Ints
    back: int
    on: int

    def serves(self, prefixes: Ints) -> int:
        """Positions that texts may grow which are so long, negative if it does not serve them."""
        grown = prefixes - self.prefixes
        return self.on - int(grown.max()) if grown.min() >= self.back else -1


class WorkLists(Protocol):
    """Makes work lists."""

    def work_list(self, lies: Structure, begins: Ints, tiling: Tiling) -> Ints:
        """What `tiles.work_of` makes, but for where keys end, and with blocks to spare where it does not
        matter. The array is kept here.
        """
        ...


class RecentWork:
    """Makes work lists, from recent ones where it can."""

    def __init__(self) -> None:
        self._alone = WorkAlone()
        self._known: OrderedDict[_Key, _Known] = OrderedDict()
        self._met: OrderedDict[_Key, None] = OrderedDict()
        self._passing: _Key | None = None
        """Of those whose list is kept, the one that never comes again: it serves until the next such."""
        self._short: dict[_Key, Ints] = {}
        """Those that will not serve much longer, and where rows began that they have served."""

    def work_list(self, lies: Structure, begins: Ints, tiling: Tiling) -> Ints:
        return self.listed(lies, begins, tiling, lasting=False)

    def until(self, lies: Structure, tiling: Tiling, prefix: int) -> int:
        """The furthest prefix that the list made for this one serves as well, of rows that lie so, whatever
        their stems; −1 if that is not known."""
        return self._alone.until(lies, tiling, prefix)

    @property
    def lasting(self) -> WorkLists:
        """The same for rows that are about to move: their list serves them then."""
        return _Lasting(self)

    def listed(self, lies: Structure, begins: Ints, tiling: Tiling, *, lasting: bool) -> Ints:
        """As `work_list`, or `lasting.work_list`."""
        alone = self._alone.work_list(lies, int(begins[1, 0]), tiling)
        if alone is not None:
            return alone
        key = lies, tiling, begins[0].tobytes() if tiling.exact else b""
        known = self._known.get(key)
        if known is None and not lasting and self._is_new(key):
            return work_of(lies, begins, tiling)
        left = -1 if known is None else known.serves(begins[1])
        if known is None or left < 0:
            known = self._make(key, begins)
        elif left < SOON and not tiling.exact:
            self._short[key] = begins.copy()
        return known.work

    def refresh(self) -> None:
        """Makes a list anew that will not serve much longer, one at a time."""
        self._alone.refresh()
        if self._short:
            self._make(*self._short.popitem())

    def _make(self, key: _Key, begins: Ints) -> _Known:
        self._short.pop(key, None)
        if not key[0].is_kept:
            if self._passing is not None:
                self._known.pop(self._passing, None)
            self._passing = key
        known = self._known[key] = _made(key[0], begins, key[1])
        self._known.move_to_end(key)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return known

    def _is_new(self, key: _Key) -> bool:
        """Whether rows lie like that for the first time: many requests hardly ever do so twice."""
        if key in self._met:
            return False
        if not key[0].is_kept:
            return True
        self._met[key] = None
        if len(self._met) > KEPT:
            self._met.popitem(last=False)
        return True


@dataclass(frozen=True, slots=True)
class _Lasting:
    recent: RecentWork

    def work_list(self, lies: Structure, begins: Ints, tiling: Tiling) -> Ints:
        return self.recent.listed(lies, begins, tiling, lasting=True)


def most_spare(tiling: Tiling) -> int:
    """Blocks to spare beyond which a list is made anew: the load of programs would be uneven."""
    return 2 * _spare(tiling)


def _spare(tiling: Tiling) -> int:
    return 0 if tiling.exact else -(-SPARE // tiling.keys)


def _made(lies: Structure, begins: Ints, tiling: Tiling) -> _Known:
    tiles, keys = tiles_of_all(lies, begins, tiling)
    # Keys in flight do not move, and share a block with cached ones but in exact mode.
    listed = [-(-cached // tiling.keys) + _spare(tiling) for cached, _ in keys]
    flying = [-(-flying // tiling.keys) for _, flying in keys]
    room = [blocks * tiling.keys - cached for blocks, (cached, _) in zip(listed, keys, strict=True)]
    return _Known(
        work=shared_out(tiles, list(map(add, listed, flying)), tiling),
        prefixes=begins[1].copy(),
        back=max(room) - (most_spare(tiling) + 1) * tiling.keys + 1,
        on=min(room),
    )
