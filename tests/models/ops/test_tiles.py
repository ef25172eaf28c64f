"""No tile asks for more shared memory than a multiprocessor has, whatever variant of a product it cuts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path

import pytest

pytest.importorskip("triton")

from recguide.models.kernels.multiply import Tile, stages_of, step_bytes
from recguide.models.ops import tiles
from recguide.models.ops.exact import TILE, split_tile
from recguide.models.ops.tiles import MEASURED, MOST_TOKENS, bucket, low_tile, tile_for

OPTIN = 227 * 1024
"""Shared memory of a program on an H100 or H200, in bytes."""
BARRIERS = 1024
"""More than what steps in flight need to be waited for."""
VARIANTS = {
    "plain": ((), ("DUAL",), ("EXTRA",)),
    "gated": (("GATED",), ("GATED", "DUAL"), ("GATED", "EXTRA")),
    "summed": ((), ("DUAL",), ("BESIDE",)),
    "head": ((),),
}
SHAPES = {(kind, inputs, outputs) for kind, inputs, outputs, _ in MEASURED}
SHAPES |= {("plain", 3072, 5120), ("summed", 9216, 3072), ("gated", 3072, 9216), ("head", 3072, 131072)}


def needed(tile: Tile, flags: tuple[str, ...], size: int) -> int:
    """Bytes of the loop that holds most; of several loops in branches one runs."""
    blocks = 1 + ("GATED" in flags)
    return stages_of(tile, blocks, size) * step_bytes(tile, blocks, size)


def every_tile() -> set[tuple[Tile, tuple[str, ...]]]:
    found: set[tuple[Tile, tuple[str, ...]]] = set()
    for kind, inputs, outputs in SHAPES:
        for tokens in range(1, MOST_TOKENS + 1):
            ruled = tiles._by_rule(kind, inputs, outputs, bucket(tokens))
            chosen = tile_for(kind, inputs, outputs, tokens) or ruled
            found |= {(tile, flags) for tile in (ruled, chosen) for flags in VARIANTS[kind]}
            found.add((low_tile(inputs, tokens), ()))
        merged = tile_for(kind, inputs, outputs, 2 * MOST_TOKENS, merged=True)
        assert merged is not None
        found |= {(merged, flags) for flags in VARIANTS[kind]}
    return found


@pytest.mark.parametrize("size", [2, 4])
def test_every_variant_of_every_tile_fits(size):
    exact = {split_tile(inputs, outputs) for _, inputs, outputs in SHAPES} | {TILE}
    cases = {(tile, flags) for tile in exact for kind in VARIANTS for flags in VARIANTS[kind]}
    for tile, flags in cases | (every_tile() if size == 2 else set()):
        assert needed(tile, flags, size) + BARRIERS <= OPTIN


def test_the_compiler_takes_what_the_formula_says():
    """The greediest tile of each variant, and the one whose two loops once did not share their memory."""
    greedy = {
        flags: max((tile for tile, f in every_tile() if f == flags), key=lambda t: needed(t, flags, 2))
        for kind in VARIANTS.values()
        for flags in kind
    }
    cases = [*greedy.items(), (("BESIDE",), Tile(64, 64, 128, split=2, stages=6)), (("GATED", "DUAL"), TILE)]
    asked = [(astuple(tile), dict.fromkeys(flags, True), "bf16") for flags, tile in cases]
    here = Path(__file__)
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(here.parents[3] / "src")}
    run = subprocess.run(
        [sys.executable, str(here.with_name("compiled.py"))],
        input=json.dumps(asked),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    for (flags, tile), shared in zip(cases, json.loads(run.stdout), strict=True):
        assert shared <= needed(tile, flags, 2) + BARRIERS, (flags, tile)
