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
STEP = 16
"""Tokens are measured in multiples of it, or else in powers of two."""

MERGED = Tile(outputs=64, tokens=64, depth=64, stages=4)
"""Where the library would be chosen and some tokens take the merged matrix."""

MEASURED: dict[tuple[Kind, int, int, int], Tile | None] = {
    ("plain", 576, 960, 16): Tile(64, 16, 128, 1, 5, 4, 4),
    ("plain", 576, 960, 32): Tile(64, 16, 128, 1, 5, 4, 4),
    ("plain", 576, 960, 48): Tile(64, 16, 128, 1, 4, 4, 4),
    ("plain", 576, 960, 64): Tile(64, 32, 128, 1, 5, 4, 4),
    ("plain", 576, 960, 80): Tile(64, 16, 128, 1, 4, 4, 4),
    ("plain", 576, 960, 96): Tile(64, 16, 128, 1, 4, 4, 4),
    ("plain", 576, 960, 128): Tile(64, 16, 128, 1, 4, 4, 4),
    ("summed", 576, 576, 16): Tile(32, 16, 128, 2, 4, 4, 2),
    ("summed", 576, 576, 32): Tile(32, 16, 128, 2, 4, 4, 2),
    ("summed", 576, 576, 48): Tile(64, 16, 128, 2, 4, 4, 2),
    ("summed", 576, 576, 64): Tile(64, 16, 128, 2, 4, 4, 2),
    ("summed", 576, 576, 80): Tile(64, 16, 128, 2, 4, 4, 2),
    ("summed", 576, 576, 96): Tile(64, 16, 128, 2, 4, 4, 2),
    ("summed", 576, 576, 128): Tile(64, 32, 128, 2, 4, 4, 2),
    ("gated", 576, 1536, 16): Tile(64, 16, 128, 1, 4, 4, 4),
    ("gated", 576, 1536, 32): Tile(64, 16, 128, 1, 4, 4, 4),
    ("gated", 576, 1536, 48): Tile(64, 16, 128, 1, 5, 4, 0),
    ("gated", 576, 1536, 64): Tile(64, 16, 128, 1, 4, 4, 0),
    ("gated", 576, 1536, 80): Tile(64, 32, 128, 1, 4, 4, 0),
    ("gated", 576, 1536, 96): Tile(64, 32, 128, 1, 4, 4, 0),
    ("gated", 576, 1536, 128): Tile(64, 32, 128, 1, 4, 4, 0),
    ("summed", 1536, 576, 16): Tile(64, 16, 128, 6, 4, 4, 2),
    ("summed", 1536, 576, 32): Tile(64, 16, 128, 6, 4, 4, 2),
    ("summed", 1536, 576, 48): Tile(64, 16, 128, 6, 4, 4, 2),
    ("summed", 1536, 576, 64): Tile(64, 32, 128, 6, 4, 4, 2),
    ("summed", 1536, 576, 80): Tile(64, 32, 128, 6, 4, 4, 2),
    ("summed", 1536, 576, 96): Tile(64, 32, 128, 6, 4, 4, 2),
    ("summed", 1536, 576, 128): Tile(64, 128, 128, 6, 4, 4, 2),
    ("head", 576, 49152, 16): Tile(64, 16, 64, 1, 3, 4, 0),
    ("head", 576, 49152, 32): Tile(128, 32, 64, 1, 3, 4, 2),
    ("head", 576, 49152, 48): Tile(64, 64, 64, 1, 4, 4, 4),
    ("head", 576, 49152, 64): Tile(64, 64, 64, 1, 2, 4, 2),
    ("head", 576, 49152, 80): None,
    ("head", 576, 49152, 96): None,
    ("head", 576, 49152, 128): None,
    ("plain", 3072, 6144, 16): Tile(64, 16, 128, 1, 6, 4, 2),
    ("plain", 3072, 6144, 32): Tile(64, 32, 128, 1, 6, 4, 2),
    ("plain", 3072, 6144, 48): Tile(64, 64, 128, 1, 5, 4, 2),
    ("plain", 3072, 6144, 64): Tile(64, 64, 128, 1, 6, 4, 2),
    ("plain", 3072, 6144, 80): None,
    ("plain", 3072, 6144, 96): None,
    ("plain", 3072, 6144, 128): None,
    ("summed", 4096, 3072, 16): Tile(64, 16, 128, 4, 3, 4, 2),
    ("summed", 4096, 3072, 32): Tile(64, 32, 128, 2, 5, 4, 2),
    ("summed", 4096, 3072, 48): Tile(64, 64, 128, 2, 5, 4, 2),
    ("summed", 4096, 3072, 64): Tile(64, 64, 128, 2, 5, 4, 2),
    ("summed", 4096, 3072, 80): Tile(64, 128, 128, 2, 8, 4, 2),
    ("summed", 4096, 3072, 96): Tile(64, 128, 128, 2, 8, 4, 2),
    ("summed", 4096, 3072, 128): Tile(64, 128, 128, 2, 8, 4, 2),
    ("gated", 3072, 9216, 16): Tile(128, 16, 128, 1, 4, 4, 0),
    ("gated", 3072, 9216, 32): Tile(128, 32, 128, 1, 8, 4, 4),
    ("gated", 3072, 9216, 48): Tile(128, 64, 64, 1, 6, 8, 2),
    ("gated", 3072, 9216, 64): Tile(128, 64, 64, 1, 6, 8, 0),
    ("gated", 3072, 9216, 80): None,
    ("gated", 3072, 9216, 96): None,
    ("gated", 3072, 9216, 128): None,
    ("summed", 9216, 3072, 16): Tile(64, 16, 128, 5, 4, 4, 0),
    ("summed", 9216, 3072, 32): Tile(128, 32, 128, 5, 4, 4, 2),
    ("summed", 9216, 3072, 48): Tile(128, 64, 128, 5, 6, 4, 0),
    ("summed", 9216, 3072, 64): Tile(128, 64, 128, 5, 6, 4, 2),
    ("summed", 9216, 3072, 80): None,
    ("summed", 9216, 3072, 96): Tile(64, 128, 128, 2, 6, 4, 2),
    ("summed", 9216, 3072, 128): Tile(64, 128, 128, 2, 6, 4, 2),
    ("head", 3072, 131072, 16): Tile(64, 16, 128, 1, 5, 4, 0),
    ("head", 3072, 131072, 32): Tile(64, 32, 128, 1, 2, 4, 0),
    ("head", 3072, 131072, 48): Tile(128, 64, 128, 1, 6, 4, 0),
    ("head", 3072, 131072, 64): Tile(128, 64, 128, 1, 5, 4, 0),
    ("head", 3072, 131072, 80): Tile(128, 128, 128, 1, 8, 8, 0),
    ("head", 3072, 131072, 96): None,
    ("head", 3072, 131072, 128): None,
    ("plain", 4096, 6144, 16): Tile(64, 16, 128, 1, 6, 4, 2),
    ("plain", 4096, 6144, 32): Tile(128, 32, 128, 1, 6, 4, 0),
    ("plain", 4096, 6144, 48): Tile(64, 64, 128, 1, 8, 4, 4),
    ("plain", 4096, 6144, 64): Tile(64, 64, 128, 1, 6, 4, 4),
    ("plain", 4096, 6144, 80): None,
    ("plain", 4096, 6144, 96): None,
    ("plain", 4096, 6144, 128): None,
    ("summed", 4096, 4096, 16): Tile(64, 16, 128, 2, 5, 4, 0),
    ("summed", 4096, 4096, 32): Tile(64, 32, 128, 2, 5, 4, 0),
    ("summed", 4096, 4096, 48): Tile(64, 64, 128, 2, 5, 4, 0),
    ("summed", 4096, 4096, 64): Tile(64, 64, 128, 2, 5, 4, 0),
    ("summed", 4096, 4096, 80): Tile(64, 128, 128, 2, 4, 4, 0),
    ("summed", 4096, 4096, 96): Tile(64, 128, 128, 2, 4, 4, 0),
    ("summed", 4096, 4096, 128): Tile(64, 128, 128, 2, 4, 4, 0),
    ("gated", 4096, 14336, 16): Tile(128, 16, 128, 1, 8, 4, 2),
    ("gated", 4096, 14336, 32): Tile(64, 32, 128, 1, 2, 4, 2),
    ("gated", 4096, 14336, 48): Tile(64, 64, 128, 1, 4, 4, 0),
    ("gated", 4096, 14336, 64): Tile(64, 64, 128, 1, 2, 4, 2),
    ("gated", 4096, 14336, 80): Tile(64, 128, 64, 1, 3, 8, 2),
    ("gated", 4096, 14336, 96): Tile(128, 128, 64, 1, 6, 8, 4),
    ("gated", 4096, 14336, 128): Tile(64, 128, 64, 1, 3, 8, 2),
    ("summed", 14336, 4096, 16): Tile(128, 16, 128, 4, 4, 4, 2),
    ("summed", 14336, 4096, 32): Tile(64, 32, 128, 2, 5, 4, 2),
    ("summed", 14336, 4096, 48): Tile(64, 64, 128, 2, 5, 4, 2),
    ("summed", 14336, 4096, 64): Tile(64, 64, 128, 2, 6, 4, 4),
    ("summed", 14336, 4096, 80): Tile(64, 128, 128, 2, 6, 4, 2),
    ("summed", 14336, 4096, 96): Tile(64, 128, 128, 2, 5, 4, 2),
    ("summed", 14336, 4096, 128): Tile(64, 128, 128, 2, 8, 4, 4),
    ("head", 4096, 131072, 16): Tile(64, 16, 128, 1, 3, 4, 0),
    ("head", 4096, 131072, 32): Tile(64, 32, 128, 1, 2, 4, 0),
    ("head", 4096, 131072, 48): Tile(128, 64, 128, 1, 4, 4, 4),
    ("head", 4096, 131072, 64): Tile(128, 64, 128, 1, 2, 4, 0),
    ("head", 4096, 131072, 80): Tile(128, 128, 128, 1, 3, 8, 0),
    ("head", 4096, 131072, 96): None,
    ("head", 4096, 131072, 128): None,
    ("plain", 5120, 6144, 16): Tile(64, 16, 128, 1, 6, 4, 0),
    ("plain", 5120, 6144, 32): Tile(128, 32, 128, 1, 5, 4, 0),
    ("plain", 5120, 6144, 48): Tile(64, 64, 128, 1, 8, 4, 2),
    ("plain", 5120, 6144, 64): Tile(64, 64, 128, 1, 8, 4, 4),
    ("plain", 5120, 6144, 80): None,
    ("plain", 5120, 6144, 96): None,
    ("plain", 5120, 6144, 128): None,
    ("summed", 4096, 5120, 16): Tile(64, 16, 128, 3, 4, 4, 0),
    ("summed", 4096, 5120, 32): Tile(64, 32, 128, 2, 4, 4),
    ("summed", 4096, 5120, 48): Tile(128, 64, 128, 3, 5, 4, 2),
    ("summed", 4096, 5120, 64): Tile(128, 64, 128, 3, 4, 4, 0),
    ("summed", 4096, 5120, 80): None,
    ("summed", 4096, 5120, 96): None,
    ("summed", 4096, 5120, 128): None,
    ("gated", 5120, 16384, 16): Tile(128, 16, 128, 1, 5, 4, 0),
    ("gated", 5120, 16384, 32): Tile(64, 32, 64, 1, 5, 4),
    ("gated", 5120, 16384, 48): Tile(64, 64, 128, 1, 8, 4, 0),
    ("gated", 5120, 16384, 64): Tile(64, 64, 128, 1, 5, 4, 0),
    ("gated", 5120, 16384, 80): Tile(128, 128, 64, 1, 6, 8, 2),
    ("gated", 5120, 16384, 96): Tile(128, 128, 64, 1, 5, 8, 2),
    ("gated", 5120, 16384, 128): Tile(128, 128, 64, 1, 5, 8, 4),
    ("summed", 16384, 5120, 16): Tile(64, 16, 128, 3, 4, 4, 0),
    ("summed", 16384, 5120, 32): Tile(128, 32, 128, 3, 5, 4),
    ("summed", 16384, 5120, 48): Tile(128, 64, 128, 3, 4, 4, 2),
    ("summed", 16384, 5120, 64): Tile(128, 64, 128, 3, 5, 4, 2),
    ("summed", 16384, 5120, 80): Tile(128, 128, 128, 3, 3, 8, 0),
    ("summed", 16384, 5120, 96): Tile(128, 128, 128, 3, 3, 8, 0),
    ("summed", 16384, 5120, 128): Tile(128, 128, 128, 3, 3, 8, 0),
    ("head", 5120, 131072, 16): Tile(64, 16, 128, 1, 4, 4, 0),
    ("head", 5120, 131072, 32): Tile(64, 32, 128, 1, 2, 4, 0),
    ("head", 5120, 131072, 48): Tile(128, 64, 128, 1, 4, 4, 4),
    ("head", 5120, 131072, 64): Tile(128, 64, 128, 1, 6, 4, 0),
    ("head", 5120, 131072, 80): None,
    ("head", 5120, 131072, 96): None,
    ("head", 5120, 131072, 128): None,
}
"""(kind, inputs, outputs, tokens at most) → tile, or None for the vendor's library: the fastest on an H200,
as `benchmarks/product_tiles.py` finds it.

Within a layer it is one of ours even where the library's is a little faster alone: that waits until the
kernel before it has ended, and lets the next one wait likewise. Of 14B the tiles of 32 tokens are those of
the fastest whole forward: what was fastest beside a norm alone made that 3 % slower.
"""


def bucket(tokens: int) -> int:
    """Tokens rounded up to a width that programs have."""
    return max(16, 1 << (tokens - 1).bit_length())


def tile_for(kind: Kind, inputs: int, outputs: int, tokens: int, *, merged: bool = False) -> Tile | None:
    """The tile of [tokens, inputs] · [inputs, outputs] (`outputs` of gates alone), None for the library's.

    `merged`: some tokens take a second matrix, for which the library would need four kernels.
    """
    tile = None if tokens > MOST_TOKENS else _of_few(kind, inputs, outputs, tokens)
    return MERGED if tile is None and merged else tile


def _of_few(kind: Kind, inputs: int, outputs: int, tokens: int) -> Tile | None:
    for measured in (-(-tokens // STEP) * STEP, bucket(tokens)):
        key = (kind, inputs, outputs, measured)
        if key in MEASURED:
            return MEASURED[key]
    return by_rule(kind, inputs, outputs, bucket(tokens))


def low_tile(inputs: int, tokens: int) -> Tile:
    """The tile of a delta's inner product alone: with so few outputs, programs share the inputs."""
    return Tile(16, min(64, bucket(tokens)), depth=128, split=max(1, min(4, inputs // 512)))


def by_rule(kind: Kind, inputs: int, outputs: int, width: int) -> Tile | None:
    """The tile of a shape that is not measured: what those that are have in common."""
    if kind == "head" and width >= MOST_TOKENS:
        return None
    most_splits = min(3 if width >= 64 else 4, max(1, inputs // 256)) if kind == "summed" else 1
    rows = 128 if kind == "head" else 64
    while rows > 16 and -(-outputs // rows) * most_splits < RESIDENT // 4:
        rows //= 2
    split = max(1, min(most_splits, RESIDENT // -(-outputs // rows)))
    large = kind == "gated" and width >= MOST_TOKENS
    return Tile(rows, width, 64 if large else 128, split, stages=5, warps=8 if large else 4)
