"""Which tile computes which product, by its shape and the number of tokens: measured, else by rule."""

from __future__ import annotations

from typing import Literal

from recguide.models.kernels.multiply import Tile

Kind = Literal["plain", "gated", "summed", "head"]
"""What becomes of a product: activations, gated activations, sums that are added elsewhere, logits."""

MOST_TOKENS = 128
"""Above, a product is bound by arithmetic, which the vendor's library does best."""
RESIDENT = 264
"""Programs that a large GPU holds at a time, two on each of its multiprocessors."""

MERGED = Tile(outputs=64, tokens=64, depth=64, stages=4)
"""Where the library would be chosen and some tokens take the merged matrix."""

MEASURED: dict[tuple[Kind, int, int, int], Tile | None] = {
    ("gated", 5120, 16384, 128): Tile(128, 128, 64, 1, 4, 8),
    ("gated", 5120, 16384, 16): Tile(64, 16, 128, 1, 3, 4),
    ("gated", 5120, 16384, 32): Tile(64, 32, 64, 1, 5, 4),
    ("gated", 5120, 16384, 64): Tile(64, 64, 64, 1, 4, 4),
    ("head", 5120, 131072, 128): None,
    ("head", 5120, 131072, 16): Tile(64, 16, 128, 1, 5, 4),
    ("head", 5120, 131072, 32): Tile(64, 32, 128, 1, 4, 4),
    ("head", 5120, 131072, 64): Tile(128, 64, 128, 1, 4, 4),
    ("plain", 5120, 6144, 128): Tile(64, 128, 64, 1, 8, 4),
    ("plain", 5120, 6144, 16): Tile(64, 16, 128, 1, 5, 4),
    ("plain", 5120, 6144, 32): Tile(128, 32, 128, 1, 5, 4),
    ("plain", 5120, 6144, 64): Tile(64, 64, 128, 1, 6, 4),
    ("summed", 16384, 5120, 128): Tile(128, 128, 128, 3, 3, 8),
    ("summed", 16384, 5120, 16): Tile(64, 16, 128, 3, 5, 4),
    ("summed", 16384, 5120, 32): Tile(128, 32, 128, 3, 5, 4),
    ("summed", 16384, 5120, 64): Tile(128, 64, 128, 3, 4, 4),
    ("summed", 4096, 5120, 128): Tile(64, 128, 64, 3, 4, 4),
    ("summed", 4096, 5120, 16): Tile(64, 16, 128, 3, 5, 4),
    ("summed", 4096, 5120, 32): Tile(64, 32, 128, 2, 4, 4),
    ("summed", 4096, 5120, 64): Tile(64, 64, 128, 2, 3, 4),
    ("gated", 4096, 14336, 128): Tile(64, 128, 64, 1, 3, 8),
    ("gated", 4096, 14336, 16): Tile(64, 16, 128, 1, 5, 4),
    ("gated", 4096, 14336, 32): Tile(64, 32, 128, 1, 2, 4),
    ("gated", 4096, 14336, 64): Tile(64, 64, 128, 1, 4, 4),
    ("head", 4096, 131072, 128): None,
    ("head", 4096, 131072, 16): Tile(64, 16, 128, 1, 3, 4),
    ("head", 4096, 131072, 32): Tile(64, 32, 128, 1, 2, 4),
    ("head", 4096, 131072, 64): Tile(128, 64, 128, 1, 4, 4),
    ("plain", 4096, 6144, 128): Tile(64, 128, 128, 1, 4, 4),
    ("plain", 4096, 6144, 16): Tile(64, 16, 128, 1, 5, 4),
    ("plain", 4096, 6144, 32): Tile(128, 32, 128, 1, 5, 4),
    ("plain", 4096, 6144, 64): Tile(64, 64, 128, 1, 6, 4),
    ("summed", 14336, 4096, 128): Tile(64, 128, 128, 2, 4, 4),
    ("summed", 14336, 4096, 16): Tile(64, 16, 128, 6, 5, 4),
    ("summed", 14336, 4096, 32): Tile(64, 32, 128, 2, 8, 4),
    ("summed", 14336, 4096, 64): Tile(64, 64, 128, 2, 6, 4),
    ("summed", 4096, 4096, 128): Tile(64, 128, 128, 2, 4, 4),
    ("summed", 4096, 4096, 16): Tile(64, 16, 128, 2, 5, 4),
    ("summed", 4096, 4096, 32): Tile(64, 32, 128, 2, 4, 4),
    ("summed", 4096, 4096, 64): Tile(64, 64, 128, 2, 6, 4),
    ("gated", 576, 1536, 128): Tile(64, 64, 128, 1, 4, 4),
    ("gated", 576, 1536, 16): Tile(64, 16, 128, 1, 5, 4),
    ("gated", 576, 1536, 32): Tile(64, 32, 128, 1, 5, 4),
    ("gated", 576, 1536, 64): Tile(64, 64, 128, 1, 4, 4),
    ("head", 576, 49152, 128): None,
    ("head", 576, 49152, 16): None,
    ("head", 576, 49152, 32): Tile(128, 32, 64, 1, 3, 4),
    ("head", 576, 49152, 64): Tile(64, 64, 64, 1, 4, 4),
    ("plain", 576, 960, 128): Tile(64, 64, 128, 1, 3, 4),
    ("plain", 576, 960, 16): Tile(64, 16, 128, 1, 3, 4),
    ("plain", 576, 960, 32): Tile(64, 32, 128, 1, 4, 4),
    ("plain", 576, 960, 64): Tile(64, 64, 128, 1, 3, 4),
    ("summed", 1536, 576, 128): Tile(64, 64, 128, 6, 2, 4),
    ("summed", 1536, 576, 16): Tile(16, 16, 128, 4, 3, 4),
    ("summed", 1536, 576, 32): Tile(16, 32, 128, 4, 3, 4),
    ("summed", 1536, 576, 64): Tile(16, 64, 128, 6, 2, 4),
    ("summed", 576, 576, 128): Tile(64, 64, 64, 4, 2, 4),
    ("summed", 576, 576, 16): Tile(32, 16, 64, 4, 2, 4),
    ("summed", 576, 576, 32): Tile(32, 32, 64, 4, 2, 4),
    ("summed", 576, 576, 64): Tile(64, 64, 64, 4, 2, 4),
}
"""(kind, inputs, outputs, token bucket) → tile, or None for the vendor's library: the fastest on an H200.

Within a layer it is one of ours even where the library's is a little faster alone: that waits until the
kernel before it has ended, and lets the next one wait likewise.
"""


def bucket(tokens: int) -> int:
    """Tokens rounded up to a width that programs have."""
    return max(16, 1 << (tokens - 1).bit_length())


def tile_for(kind: Kind, inputs: int, outputs: int, tokens: int, *, merged: bool = False) -> Tile | None:
    """The tile of [tokens, inputs] · [inputs, outputs] (`outputs` of gates alone), None for the library's.

    `merged`: some tokens take a second matrix, for which the library would need four kernels.
    """
    width = bucket(tokens)
    key = (kind, inputs, outputs, width)
    if tokens > MOST_TOKENS:
        tile = None
    else:
        tile = MEASURED[key] if key in MEASURED else _by_rule(kind, inputs, outputs, width)
    return MERGED if tile is None and merged else tile


def low_tile(inputs: int, tokens: int) -> Tile:
    """The tile of a delta's inner product alone: with so few outputs, programs share the inputs."""
    return Tile(16, min(64, bucket(tokens)), depth=128, split=max(1, min(4, inputs // 512)))


def _by_rule(kind: Kind, inputs: int, outputs: int, width: int) -> Tile:
    wide = outputs >= 64 * RESIDENT and kind != "gated"
    rows = 128 if wide or width >= MOST_TOKENS else 64
    columns = -(-outputs // rows)
    split = max(1, min(RESIDENT // columns, inputs // 256)) if kind == "summed" else 1
    in_flight = (2 if kind == "gated" else 1) * rows + width
    stages = max(3, min(8, 96 * 1024 // (in_flight * 128)))
    warps = 8 if rows == width == MOST_TOKENS else 4
    return Tile(rows, width, depth=64, split=split, stages=stages, warps=warps)
