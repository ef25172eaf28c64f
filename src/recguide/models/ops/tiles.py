"""Which tile computes which product, by its shape and the number of tokens: measured, else by rule."""

from __future__ import annotations

from typing import Literal

from recguide.models.kernels.launch import Tile

Kind = Literal["plain", "gated", "summed", "head"]
"""What becomes of a product: activations, gated activations, sums that are added elsewhere, logits."""

MOST_TOKENS = 128
"""Above, a product is bound by arithmetic, which the vendor's library does best."""
RESIDENT = 264
"""Programs that a large GPU holds at a time, two on each of its multiprocessors."""

MEASURED: dict[tuple[Kind, int, int, int], Tile | None] = {}
"""(kind, inputs, outputs, token bucket) → tile, or None for the vendor's library."""


def bucket(tokens: int) -> int:
    """Tokens rounded up to a width that programs have."""
    return max(16, 1 << (tokens - 1).bit_length())


def tile_for(kind: Kind, inputs: int, outputs: int, tokens: int) -> Tile | None:
    """The tile of [tokens, inputs] · [inputs, outputs] (`outputs` of gates alone), None for the library's."""
    if tokens > MOST_TOKENS:
        return None
    width = bucket(tokens)
    key = (kind, inputs, outputs, width)
    return MEASURED[key] if key in MEASURED else _by_rule(kind, inputs, outputs, width)


def low_tile(tokens: int) -> Tile:
    """The tile of a delta's inner product, whose outputs are so few that each program takes sixteen."""
    return Tile(16, bucket(tokens), depth=128, stages=4, ahead=512)


def _by_rule(kind: Kind, inputs: int, outputs: int, width: int) -> Tile:
    wide = outputs >= 64 * RESIDENT and kind != "gated"
    rows = 128 if wide or width >= MOST_TOKENS else 64
    columns = -(-outputs // rows)
    split = max(1, min(RESIDENT // columns, inputs // 256)) if kind == "summed" else 1
    in_flight = (2 if kind == "gated" else 1) * rows + width
    stages = max(3, min(8, 96 * 1024 // (in_flight * 128)))
    warps = 8 if rows == width == MOST_TOKENS else 4
    return Tile(rows, width, depth=64, split=split, stages=stages, warps=warps, ahead=512)
