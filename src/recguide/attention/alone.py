"""Work of a request that runs alone, put together from parts that come again.

Its rounds have many shapes, so the list of one hardly comes again before the text has outgrown it. But how
tiles are cut depends on little: on how many there are, and on their blocks of keys, of which all get the same
number. So one cut serves for a while, whatever the rows. What differs from shape to shape are the length of
the last tile, and the keys in flight that each tile meets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from recguide.attention.structure import Structure
from recguide.attention.tiles import tiles_of_all
from recguide.attention.work import (
    DRAFT,
    DRAFT_END,
    HOME,
    MERGE_MOST,
    MERGES,
    PARTIAL,
    QUERY,
    TOKENS,
    Tiling,
    cut_evenly,
)

Ints = NDArray[np.int32]
Index = NDArray[np.intp]

MOST = 512
"""Tokens. What is longer is a prompt's chunk, and hardly ever comes again."""
SHAPES, CUTS, LISTS = 1024, 16, 64
"""That are kept: the second of each number of tiles."""
SPARE = 64
"""Keys that a text may grow by, in whole blocks, before its tiles are cut anew."""
SOON = 32
"""Positions that a list has still to serve for; if fewer, what comes next is made beforehand, while nobody
waits. A round moves a request no further than a block."""
LATELY = 256
"""Positions in which so many tiles must have been met for that."""


class WorkAlone:
    """Makes the work lists of single requests."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[Structure, Tiling], _Shape | None] = {}
        self._cuts: dict[tuple[int, Tiling], _Cuts] = {}
        self._listed = lru_cache(LISTS)(_Cut.listed)
        self._prefix = 0
        """Where the last one stood."""

    def work_list(self, lies: Structure, prefix: int, tiling: Tiling) -> Ints | None:
        """What `tiles.work_of` makes, but for where keys end, and with a few blocks to spare; None for rows
        of several requests or very many tokens, and in exact mode.

        The array is kept here.
        """
        if len(lies.lengths) > 1 or lies.tokens > MOST:
            return None
        key = lies, tiling
        shape = self._shapes[key] if key in self._shapes else self._met(key)
        if shape is None:
            return None
        self._prefix = shape.cuts.met_at = prefix
        return self._listed(shape.cuts.over(prefix + shape.reach), shape)

    def until(self, lies: Structure, tiling: Tiling, prefix: int) -> int:
        """The furthest prefix that the list made for this one serves as well, of rows that lie so, whatever
        their stems; −1 if it makes none of them."""
        shape = self._shapes.get((lies, tiling))
        return -1 if shape is None else shape.cuts.until(prefix + shape.reach) - shape.reach

    def refresh(self) -> None:
        """Makes a cut that is soon needed, one at a time."""
        for cuts in self._cuts.values():
            if abs(self._prefix - cuts.met_at) <= LATELY and cuts.made(self._prefix + SOON + cuts.reach):
                return

    def _met(self, key: tuple[Structure, Tiling]) -> _Shape | None:
        if len(self._shapes) == SHAPES:
            self._shapes.clear()
        lies, tiling = key
        others = tiling.exact or lies.owners[0, 0]
        self._shapes[key] = shape = None if others else self._shape(lies, tiling)
        return shape

    def _shape(self, lies: Structure, tiling: Tiling) -> _Shape:
        tiles, keys = tiles_of_all(lies, np.zeros((2, len(lies.packed)), np.int32), tiling)
        reach = max([cached for cached, _ in keys])
        many = len(tiles), tiling
        if many not in self._cuts:
            self._cuts[many] = _Cuts(*many)
        cuts = self._cuts[many]
        cuts.reach = max(cuts.reach, reach)
        return _Shape(tiles[:, DRAFT : DRAFT_END + 1], int(tiles[-1, TOKENS]), reach, cuts)


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """What rows decide, wherever they begin.

    Attributes:
        flying: [tiles, 2], the fields DRAFT and DRAFT_END of each.
        last: tokens of the last tile.
        reach: keys beyond the prefix that a tile meets at most.
        cuts: of so many tiles.
    """

    flying: Ints
    last: int
    reach: int
    cuts: _Cuts


class _Cuts:
    """How so many tiles are cut, by their blocks.

    Attributes:
        reach: of all shapes.
        met_at: the prefix of the last forward with so many.
    """

    def __init__(self, tiles: int, tiling: Tiling) -> None:
        self.reach = self.met_at = 0
        self._tiles, self._tiling = tiles, tiling
        self._step = 1 + -(-SPARE // tiling.keys)
        """A tile gets so many blocks, or twice as many, and so on: so a cut serves for some positions."""
        self._known: dict[int, _Cut] = {}

    def over(self, keys: int) -> _Cut:
        """The cut of tiles that meet so many keys at most."""
        self.made(keys)
        return self._known[self._steps(keys)]

    def made(self, keys: int) -> bool:
        """Makes it if it is not there."""
        steps = self._steps(keys)
        if steps in self._known:
            return False
        if len(self._known) == CUTS:
            del self._known[next(iter(self._known))]
        self._known[steps] = _Cut.of(self._tiles, steps * self._step, self._tiling)
        return True

    def until(self, keys: int) -> int:
        """The most keys that the cut over so many serves."""
        return self._steps(keys) * self._step * self._tiling.keys

    def _steps(self, keys: int) -> int:
        return -(-keys // (self._step * self._tiling.keys))


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """How so many whole tiles are cut.

    Attributes:
        tiling: how.
        work: their list, without keys in flight.
        items: its rows that are items, tile by tile, and `tile`, that of each.
        ending: those of the last tile, and `nth`, how many of its results come before each.
        only: whether no other tile is split.
    """

    tiling: Tiling
    work: Ints
    items: Index | slice
    tile: Index
    ending: Index
    nth: Ints
    only: bool

    @staticmethod
    def of(tiles: int, blocks: int, tiling: Tiling) -> _Cut:
        work = cut_evenly(tiles, blocks, tiling)
        rows = work[:, TOKENS].nonzero()[0]
        items = rows[rows != tiling.programs]  # that one is on split tiles
        tile = work[items, QUERY] // tiling.tokens
        by_tile = tile.argsort(kind="stable")
        items, tile = items[by_tile], tile[by_tile].astype(np.intp)
        in_turn = bool((items == np.arange(len(items))).all())
        ending = items[tile == tiles - 1]
        before = np.maximum(0, work[ending, PARTIAL] - work[ending, HOME])
        return _Cut(
            tiling,
            work,
            slice(len(items)) if in_turn else items,
            tile,
            ending,
            before // (tiling.tokens * tiling.share),
            bool((work[items[tile < tiles - 1], PARTIAL] < 0).all()),
        )

    def listed(self, shape: _Shape) -> Ints:
        """The list of a shape that has as many tiles."""
        work, tiling = self.work.copy(), self.tiling
        work[self.items, DRAFT : DRAFT_END + 1] = shape.flying.take(self.tile, 0)
        missing = tiling.tokens - shape.last
        if missing:
            work[self.ending, TOKENS] = shape.last
            # The results of a tile lie close together.
            work[self.ending, PARTIAL] -= self.nth * (missing * tiling.share)
            if self.only and work[tiling.programs, MERGES]:
                work[tiling.programs, MERGE_MOST] = shape.last
        return work
