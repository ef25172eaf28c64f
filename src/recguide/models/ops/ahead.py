"""What a product fetches of the next one's matrix, so that the memory never waits for a kernel."""

from __future__ import annotations

from recguide.models.kernels.multiply import Following, Tile
from recguide.models.ops import Touched, Upcoming
from recguide.models.ops.detours import by_weights

AROUND_NORM = 0
"""Bytes that an H200 reads while one product ends, a norm is computed and the next begins: 4 microseconds."""
AROUND_ATTENTION = 0
"""Bytes to read while attention waits for itself; of a cache of 50 MiB."""
GRAIN = 64
"""Inputs that are fetched come in multiples of it: whole lines of the cache."""


def following(then: Upcoming, on: Touched, window: int, tile: Tile | None = None) -> Following | None:
    """The first `window` bytes that the next product reads, evenly from its programs' first inputs on.

    Args:
        tile: of the next product, if that is split.
    """
    if then is None:
        return None
    matrix, _ = by_weights(*then, on)
    inputs, outputs = matrix.shape
    parts, depth = (1, 1) if tile is None else (tile.split, tile.depth)
    reach = window // (outputs * parts * matrix.element_size()) // GRAIN * GRAIN
    return Following(matrix, min(reach, inputs), parts, depth) if reach > 0 else None
