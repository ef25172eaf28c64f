"""Rows and targets of ways of decoding, on a toy model and on made-up sums."""

from __future__ import annotations

import pytest
from benchmarks.single_request import AR, WAYS, Sum, Way, parse, side_by_side, way_rows, way_targets
from tests.toy import toy_model

from recguide.bench.decoding import Decoding
from recguide.core import RoundStats
from recguide.engine.engine import Engine, EngineConfig

PROMPTS = [list(b"What is it?"), list(b"x"), list(b"river " * 4)]


@pytest.fixture(scope="module")
def sums():
    engine = Engine(toy_model(), str, EngineConfig(kv_cache_tokens=1024))
    ways = (AR, Way("linear", 4), Way("recguide", 4))
    return side_by_side(lambda _: engine, ways, PROMPTS, 12, ar_every=2)


def test_every_way_decodes_every_text_but_plain_decoding_is_sampled(sums):
    assert [len(found.rates) for found in sums.values()] == [2, 3, 3]
    assert [found.tokens for found in sums.values()] == [2 * 11, 3 * 11, 3 * 11]


def test_rows_compare_with_plain_decoding(sums):
    plain, *others = way_rows(sums, "real")
    assert (plain["method"], plain["speedup"], plain["tpf"]) == ("ar", 1.0, 1.0)
    assert plain["query_tokens_per_forward"] == 1
    for row in others:
        assert row["speedup"] == pytest.approx(row["tokens_per_s"] / plain["tokens_per_s"])
        assert row["acceptance_is"] == "real"
        assert row["efficiency"] is None  # a CPU has no graphs
        assert row["query_tokens_per_forward"] > 1


def made_up(rate, graph_share=None):
    wall_ms = 1e6 / rate
    graph_ms = None if graph_share is None else graph_share * wall_ms
    found = Sum()
    found.add(Decoding(1, 1000, (wall_ms,), RoundStats(tokens=1000, forwards=100), 1000.0, graph_ms=graph_ms))
    return found


def test_targets_by_model():
    ways = {AR: 200, Way("linear", 16): 360, Way("recguide", 16): 1190, Way("recguide", 32): 1400}
    sums = {way: made_up(rate, 0.96 if way.block == 16 else 0.9) for way, rate in ways.items()}
    rows = way_rows(sums, "replayed acceptance")
    asked = way_targets("nld-8b", rows)
    speedups = {target.name: target for target in asked if target.name.endswith("x AR")}
    assert [(t.value, t.target, t.met) for t in speedups.values()] == [(5.95, 6.0, False), (7.0, 6.6, True)]
    assert all("replayed acceptance" in name for name in speedups)
    efficiencies = [target for target in asked if "efficiency" in target.name]
    assert [target.met for target in efficiencies] == [False, True, True, False]
    demo = way_targets("smollm2-135m", way_rows(sums, "real"))
    assert [(t.target, t.met) for t in demo] == [(1.7, True), (2.0, True)]


def test_an_efficiency_that_was_not_measured_has_no_target():
    rows = way_rows({AR: made_up(200), Way("recguide", 16): made_up(1300)}, "replayed acceptance")
    assert [target.name for target in way_targets("nld-14b", rows)] == [
        "nld-14b, recguide B = 16, replayed acceptance: x AR"
    ]


def test_defaults_depend_on_the_model():
    assert (parse([]).texts, parse([]).tokens, parse([]).ar_every) == (6, 512, 2)
    demo = parse(["--model", "smollm2-135m"])
    assert (demo.texts, demo.tokens, demo.ar_every) == (100, 128, 1)
    quick = parse(["--quick", "--peer-loads"])
    assert (quick.texts, quick.peer_loads) == (2, [])
    assert len(WAYS) == 7
