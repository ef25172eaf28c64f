"""Which tiles are tried for a product, and that every way of computing it can be timed."""

from __future__ import annotations

import pytest
import torch
from tests.tiny import CPU, tiny_config

pytest.importorskip("triton")

from recguide.bench.products import Bench, Product, asking, candidates, products_of, program_of, staged
from recguide.models.kernels.multiply import SHARED_BYTES, Tile, stages_of, step_bytes
from recguide.models.published import shape_of

SMALL, LARGE = Product("summed", 1536, 576), Product("gated", 4096, 14336)


def test_a_model_has_four_products_a_layer_and_its_head():
    assert [(p.kind, p.inputs, p.outputs) for p in products_of(shape_of("nld-3b"))] == [
        ("plain", 3072, 6144),
        ("summed", 4096, 3072),
        ("gated", 3072, 9216),
        ("summed", 9216, 3072),
        ("head", 3072, 131072),
    ]
    assert not any(product.small for product in products_of(shape_of("nld-3b")))
    assert all(p.small == (p.kind != "head") for p in products_of(tiny_config("llama")))


@pytest.mark.parametrize("product", [SMALL, LARGE])
@pytest.mark.parametrize("tokens", [1, 16, 48, 128])
def test_candidates_are_distinct_valid_and_few(product, tokens):
    tiles = candidates(product, tokens)
    assert len(set(tiles)) == len(tiles) <= 100
    for tile in tiles:
        assert tile.split == 1 or tile.split * 2 * tile.depth <= product.inputs
        blocks = 1 + (product.kind == "gated")
        assert stages_of(tile, blocks, 2) * step_bytes(tile, blocks, 2) <= SHARED_BYTES
        assert all(other.ahead * tile.depth * tile.split <= product.inputs for other in asking(product, tile))
        assert all(other.stages != tile.stages for other in staged(product, tile))
    assert asking(product, None) == staged(product, None) == []


def test_programs_are_shared_by_products_that_differ_in_size_or_split():
    tile, other = Tile(64, 16, 128, split=2), Tile(64, 16, 128, split=4)
    program = program_of(SMALL, tile, merged=False)
    assert program == program_of(Product("head", 576, 49152), other, merged=False)
    assert program != program_of(SMALL, tile, merged=True)
    assert program != program_of(SMALL, Tile(64, 16, 128, split=2, ahead=2), merged=False)
    assert program != program_of(Product("plain", 576, 960), tile, merged=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's; a GPU's are timed by the script")
@pytest.mark.parametrize("kind", ["plain", "gated", "summed", "head"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's bfloat16
def test_every_way_of_computing_a_product_runs(kind):
    bench = Bench(Product(kind, 32, 48), CPU, copies=2)
    tile = Tile(16, 16, 16, split=2 if kind == "summed" else 1)
    for run in (
        bench.launch(None, 19),
        bench.launch(tile, 19),
        bench.launch(tile, 19, merged=kind != "head"),
    ):
        for copy in range(bench.copies):
            run(copy)
