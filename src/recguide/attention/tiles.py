"""The work list of a forward, put together from the tiles of each request.

How a request's rows lie comes again and again, and how those of all requests do hardly ever. So the tiles of
each are kept, as they are where its text is empty and it is alone: elsewhere they lie behind those of others,
and see what is cached as well.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from recguide.attention.structure import KEPT_ROW, Structure
from recguide.attention.structure import REQUEST as REQUEST_OF
from recguide.attention.work import (
    CACHED,
    DRAFT,
    DRAFT_END,
    FIELDS,
    OPEN,
    QUERY,
    REQUEST,
    Tiling,
    shared_out,
)

Ints = NDArray[np.int32]

KEPT = 4096
"""Requests' rows whose tiles are kept."""

_REQUEST, _AT, _PREFIX, _NOTHING = range(4)
_MOVED = np.full(FIELDS, _NOTHING)
"""What is added to a field where a request is not alone."""
_MOVED[REQUEST], _MOVED[[QUERY, DRAFT, DRAFT_END]], _MOVED[[CACHED, OPEN]] = _REQUEST, _AT, _PREFIX


def work_of(lies: Structure, begins: Ints, tiling: Tiling) -> Ints:
    """The work list of a forward, [at most `items_cap`, FIELDS].

    Except in exact mode, draft rows are taken for such that see all of their request's causal row, so that
    it serves whatever stems.

    Args:
        lies: how its rows lie.
        begins: [2, rows] in packed order, their stems and prefixes.
    """
    tiles, keys = tiles_of_all(lies, begins, tiling)
    size = tiling.keys
    return shared_out(tiles, [-(-cached // size) - -flying // size for cached, flying in keys], tiling)


def tiles_of_all(lies: Structure, begins: Ints, tiling: Tiling) -> tuple[Ints, list[tuple[int, int]]]:
    """All tiles [tiles, FIELDS], lacking head and blocks, as `work_of` takes them.

    Also of each the keys that fill blocks with cached ones, and those that fill others.
    """
    size, lengths = tiling.tokens, lies.lengths
    # In exact mode the last block of a tile's cached keys has to be its own.
    stems = _stems(lies, begins[0]) if tiling.exact else [None] * len(lengths)
    own = [
        (_kept if mine[0] <= KEPT_ROW else _own)(mine, size, stem)
        for mine, stem in zip(lengths, stems, strict=True)
    ]
    moved = np.zeros((4, len(own)), np.int32)
    moved[:_NOTHING] = lies.owners
    moved[_PREFIX] = begins[1].take(moved[_PREFIX])
    tiles = np.concatenate([items for items, _ in own])
    tiles += moved.T.take(_MOVED, 1).repeat([len(items) for items, _ in own], 0)
    prefixes: list[int] = moved[_PREFIX].tolist()
    keys = [
        (prefix + cached, flying)
        for prefix, (_, each) in zip(prefixes, own, strict=True)
        for cached, flying in each
    ]
    return tiles, keys


def _stems(lies: Structure, stems: Ints) -> list[tuple[int, ...]]:
    """Those of each request's rows."""
    by_request = lies.facts[:, REQUEST_OF].take(lies.row_starts).argsort(kind="stable")
    counts = [len(lengths) - (not lengths[0]) for lengths in lies.lengths]
    each: list[int] = stems.take(by_request).tolist()
    return [tuple(each[end - count : end]) for count, end in zip(counts, accumulate(counts), strict=True)]


def _own(
    lengths: tuple[int, ...], size: int, stems: tuple[int, ...] | None
) -> tuple[Ints, list[tuple[int, int]]]:
    """A request's tiles of so many tokens at most, where it is alone and has no prefix.

    Args:
        lengths: as in `Structure`.
        stems: of its rows, in exact mode.
    """
    causal, *drafts = lengths
    ends = list(accumulate(lengths))
    seen = [causal] * len(drafts) if stems is None else stems[len(stems) - len(drafts) :]
    tiles: list[tuple[int, ...]] = []
    for query in range(0, ends[-1], size):
        end = min(query + size, ends[-1])
        mine = [row for row in range(len(drafts)) if ends[row] < end and query < ends[row + 1]]
        sees = [seen[row] for row in mine]
        if query < causal:
            sees += query + 1, min(end, causal)
        flying = (ends[mine[0]], ends[mine[-1] + 1]) if mine else (0, 0)
        tiles.append((query, end - query, 0, 0, max(sees), *flying, min(sees)))
    items = np.zeros((len(tiles), FIELDS), np.int32)
    items[:, : OPEN + 1] = tiles
    keys = [(tile[CACHED], tile[DRAFT_END] - tile[DRAFT]) for tile in tiles]
    return items, keys if stems is not None else [(cached + flying, 0) for cached, flying in keys]


_kept = lru_cache(KEPT)(_own)
