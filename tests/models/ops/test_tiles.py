"""No tile asks for more shared memory than a multiprocessor has, whatever variant of a product it cuts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from recguide.models.kernels.multiply import Tile, stages_of, step_bytes
from recguide.models.ops.exact import TILE, split_tile
from recguide.models.ops.tiles import MEASURED, MOST_TOKENS, bucket, by_rule, low_tile, tile_for

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
            ruled = by_rule(kind, inputs, outputs, bucket(tokens))
            chosen = tile_for(kind, inputs, outputs, tokens)
            found |= {(tile, flags) for tile in (ruled, chosen) if tile for flags in VARIANTS[kind]}
            found.add((low_tile(inputs, tokens), ()))
        merged = tile_for(kind, inputs, outputs, 2 * MOST_TOKENS, merged=True)
        assert merged is not None
        found |= {(merged, flags) for flags in VARIANTS[kind]}
    return found


@given(
    kind=st.sampled_from(sorted(VARIANTS)),
    inputs=st.integers(1, 4096).map(lambda n: 8 * n),
    outputs=st.integers(1, 2**18),
    width=st.sampled_from([16, 32, 64, 128]),
)
def test_any_shape_has_a_tile_that_fits(kind, inputs, outputs, width):
    tile = by_rule(kind, inputs, outputs, width)
    if tile is None:
        assert (kind, width) == ("head", 128), (
            "within a layer, none would leave mixed forwards to four kernels"
        )
        return
    assert tile.tokens == width
    assert tile.outputs in (16, 32, 64, 128)
    assert tile.depth in (64, 128)
    assert 1 <= tile.split <= max(1, inputs // tile.depth)
    assert tile.split == 1 or kind == "summed"
    for flags in VARIANTS[kind]:
        assert needed(tile, flags, 2) + BARRIERS <= OPTIN


def test_tokens_take_the_tile_of_their_multiple_of_16_or_power_of_two(monkeypatch):
    tile, other = Tile(16, 16, 64), Tile(32, 16, 64)
    monkeypatch.setitem(MEASURED, ("plain", 1, 1, 48), tile)
    monkeypatch.setitem(MEASURED, ("plain", 1, 1, 64), other)
    chosen = [tile_for("plain", 1, 1, tokens) for tokens in (32, 33, 48, 49, 64, 65)]
    ruled = [by_rule("plain", 1, 1, width) for width in (32, 128)]
    assert chosen == [ruled[0], tile, tile, other, other, ruled[1]]


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
    greedy |= {flags: replace(tile, ahead=2) for flags, tile in greedy.items()}
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
