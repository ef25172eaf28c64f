"""Where tokens stand in their texts and in the cache, and what they see: what follows from where rows begin.

The host says two numbers of each row, its stem and its prefix. The rest is worked out where a forward's input
lies, first thing in the forward: on a GPU by one kernel, on a CPU by NumPy over the same memory. It may be
done again over the same input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from recguide.attention.columns import Arrays
from recguide.attention.work import (
    CACHED,
    LISTED,
    OPEN,
    QUERY,
    SEEN,
    TOKEN,
    TOKENS,
    Tiling,
)

Ints = NDArray[np.int32]

FACTS = ("row", "request", "slot", "stem", "prefix")
"""What every token knows of its row: one matrix, each row of it one field of PackedBatch."""
ROW, REQUEST, SLOT, STEM, PREFIX = range(5)

NAMES = ("facts", "begins", "positions", "kv_slots", "causal", "block_tables", "wanted", "order", "work")
"""Arrays that are read or written."""


@dataclass(frozen=True, slots=True)
class WantedPlaces:
    """Of W wanted slots [W] int32: position of the token that is picked, negative in padding, which stays as
    it is; position of its row's slot 0."""

    position: Tensor
    start: Tensor


def places_of(
    tensors: Mapping[str, Tensor], page_size: int, tiling: Tiling | None, wanted: WantedPlaces | None = None
) -> Callable[[], None]:
    """What works out the places of the batch in these arrays, time and again.

    Args:
        tensors: the arrays of a `BatchShape`, on the device.
        page_size: tokens of a page.
        tiling: the work list's; None without one.
        wanted: gets the places of the wanted slots.
    """
    if tensors["facts"].is_cuda:
        return lambda: place_by_kernel(tensors, page_size, tiling, wanted)
    arrays = {name: tensors[name].numpy() for name in NAMES}
    slots = None if wanted is None else (wanted.position.numpy(), wanted.start.numpy())
    return lambda: _place(arrays, page_size, tiling, slots)


def place_by_kernel(
    tensors: Mapping[str, Tensor], page_size: int, tiling: Tiling | None, wanted: WantedPlaces | None
) -> None:
    """The same in Triton."""
    from recguide.attention.kernels.place import BLOCK, ITEMS, place

    tokens, rows = len(tensors["tokens"]), 0 if tiling is None else len(tensors["work"])
    slots = 0 if wanted is None else len(wanted.position)
    spare = tensors["facts"]
    position, start = (spare, spare) if wanted is None else (wanted.position, wanted.start)
    token_programs, slot_programs = -(-tokens // BLOCK), -(-slots // BLOCK)
    # Triton's stubs, where it is installed, know neither launches nor plain integers as constants.
    cast("Any", place)[(token_programs + slot_programs + -(-rows // ITEMS),)](
        *(tensors[name] for name in NAMES),
        position,
        start,
        tokens,
        tensors["facts"].stride(0),
        tensors["begins"].stride(0),
        tensors["block_tables"].stride(0),
        slots,
        0 if tiling is None else tiling.programs,
        PAGE=page_size,
        TILE=1 if tiling is None else 1 << (tiling.tokens - 1).bit_length(),
        WORK=tiling is not None,
        num_warps=4,
    )


def _place(arrays: Arrays, page_size: int, tiling: Tiling | None, slots: tuple[Ints, Ints] | None) -> None:
    """The same in NumPy."""
    facts, causal = arrays["facts"], arrays["causal"]
    used = int(np.count_nonzero(facts[ROW] >= 0))
    at = slice(used)
    row, slot = facts[ROW, at], facts[SLOT, at]
    facts[STEM:, at] = arrays["begins"].take(row, 1)
    start = facts[STEM, at] + facts[PREFIX, at]
    positions = np.add(start, slot, out=arrays["positions"][at])
    written = int(np.count_nonzero(causal[at]))
    if written:
        _place_kv(arrays, positions[:written], page_size)
    ahead = causal[at] * (slot + 1)
    if slots is not None:
        position, begins = slots
        token = arrays["wanted"][: np.count_nonzero(position >= 0)]
        begins[: len(token)] = start[token]
        # Logits at slot i predict token i in a draft row, token i + 1 in a causal one.
        np.add(positions[token], causal[token], out=position[: len(token)])
    if tiling is not None:
        # A causal token sees the cache up to itself, a draft row's its stem, and causal rows have none.
        _place_work(arrays, start + ahead, tiling)


def _place_kv(arrays: Arrays, positions: Ints, page_size: int) -> None:
    """Where the causal tokens' KV goes; they lead."""
    tables, written = arrays["block_tables"], len(positions)
    page = positions // page_size
    # Of flat indices, as two of them at once take NumPy several times as long.
    where = arrays["facts"][REQUEST, :written] * tables.shape[1]
    where += page
    beyond = tables.reshape(-1).take(where)
    beyond -= page
    beyond *= page_size
    np.add(beyond, positions, out=arrays["kv_slots"][:written])


def _place_work(arrays: Arrays, seen: Ints, tiling: Tiling) -> None:
    """What tokens see [N], and within items the most and the least of it."""
    order, work = arrays["order"][: len(seen)], arrays["work"]
    order[:, SEEN] = seen[order[:, TOKEN]]
    work = work[: work[tiling.programs, LISTED]]
    item = work[:, TOKENS] > 0
    item[tiling.programs : tiling.programs + 1] = False  # the row on split tiles
    query, tile = np.unique(work[item, QUERY], return_inverse=True)
    if len(query):
        work[item, CACHED] = np.maximum.reduceat(order[:, SEEN], query)[tile]
        work[item, OPEN] = np.minimum.reduceat(order[:, SEEN], query)[tile]
