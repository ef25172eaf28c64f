"""The search for tiles without a GPU: what it chooses of made-up times, and what it says of them."""

from __future__ import annotations

from concurrent.futures import Executor, Future

import pytest

pytest.importorskip("triton")

from benchmarks.product_tiles import Case, Search, layer_rows

from benchmarks import product_tiles
from recguide.bench.products import Product
from recguide.models.kernels.multiply import Tile

SMALL, LARGE = Product("plain", 576, 960), Product("gated", 3072, 9216)
HALF, WHOLE = Tile(32, 16, 128), Tile(64, 64, 128)


class Inline(Executor):
    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Stopwatch:
    """Times a launch by what it is: a wider tile takes longer, more so with both matrices."""

    def us(self, launch, _):
        return launch


class FakeBench:
    copies = 4

    def __init__(self, product, device):
        pass

    def launch(self, tile, _, *, merged=False):
        return (
            99.0
            if tile is None
            else tile.tokens * (2.0 if merged else 1.0) + abs(tile.stages - 5) - tile.ahead
        )


@pytest.fixture
def search(monkeypatch):
    monkeypatch.setattr(product_tiles, "Bench", FakeBench)
    monkeypatch.setattr(product_tiles, "Timer", lambda *_: Stopwatch())

    def search(cases, budget, faulty=()):
        def compiled(_, tile, *__):
            return "does not fit" if tile.tokens in faulty else None

        monkeypatch.setattr(product_tiles, "compile_tile", compiled)
        found = Search(cases, Inline(), budget, 1)
        return found, list(found.run())

    return search


def test_the_fastest_is_found_also_among_other_stages(search):
    cases = [Case(SMALL, 48), Case(LARGE, 16)]
    found, lines = search(cases, 60.0)
    assert len(lines) == 6
    assert not found.failures
    best = [case.chosen() for case in cases]
    assert [(tile.tokens, tile.stages) for tile in best] == [(16, 5), (16, 5)]
    assert all(
        tile.ahead == max(asked.ahead for asked in case.times[False] if asked)
        for tile, case in zip(best, cases, strict=True)
    )
    small, large = (case.row() for case in cases)
    assert (small["us"], small["merged_us"], small["library_us"]) == (
        16.0 - best[0].ahead,
        32.0 - best[0].ahead,
        99.0,
    )
    assert large["merged_us"] is None
    key, _, value = cases[0].entry().partition(": ")
    assert eval(key) == ("plain", 576, 960, 48)
    assert eval(value.rstrip(","), {"Tile": Tile}) == cases[0].chosen()


def test_what_does_not_compile_is_never_timed(search):
    cases = [Case(SMALL, 48)]
    found, _ = search(cases, 60.0, faulty=(16,))
    assert found.failures
    assert cases[0].chosen().tokens == 32


def test_without_time_there_is_a_result_nevertheless(search):
    cases = [Case(SMALL, 48), Case(LARGE, 16)]
    search(cases, 0.0)
    assert [case.row()["tile"] for case in cases] == ["library", "library"]
    assert all(row["us"] is not None for row in layer_rows(cases))


def test_one_tile_serves_forwards_with_and_without_the_adapter():
    case = Case(SMALL, 64)
    case.times[False].update({None: 1.0, HALF: 3.0, WHOLE: 2.0})
    case.times[True].update({HALF: 3.0, WHOLE: 8.0})
    assert case.times[False][None] < 0.95 * 3.0
    assert case.chosen() is None, "the library gains more than a twentieth"
    case.times[False][None] = 2.9
    assert case.chosen() == HALF


def test_a_layer_is_the_sum_of_its_products_without_the_head():
    cases = [Case(SMALL, 16), Case(LARGE, 16), Case(Product("head", 576, 49152), 16)]
    for case in cases:
        case.times[False].update({None: 100.0, HALF: 2.0, case.now: 3.0})
        case.times[True].update({HALF: 4.0, case.now: 5.0})
    (row,) = layer_rows(cases)
    assert row == {"tokens": 16, "us": 4.0, "now_us": 6.0, "merged_us": 8.0, "now_merged_us": 10.0}
