"""Forwards that are timed have the tokens, prefixes and rows that their point says."""

from __future__ import annotations

from statistics import median

import pytest
from tests.toy import toy_model

from recguide.bench.forwards import ForwardTimer, measure, sizes
from recguide.bench.profile import Point
from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.models.loading import load


class Watched:
    """A backbone that keeps the batches it was given."""

    def __init__(self, backbone):
        self.batches = []
        self._backbone = backbone

    def __getattr__(self, name):
        return getattr(self._backbone, name)

    def forward(self, batch, attend):
        self.batches.append(batch)
        return self._backbone.forward(batch, attend)


def engine(backbone):
    return Engine(backbone, lambda _: "", EngineConfig(kv_cache_tokens=4096))


@pytest.mark.parametrize("drafts", [True, False])
@pytest.mark.parametrize(
    "point", [Point(1, 1, 32), Point(2, 2, 16), Point(16, 1, 128), Point(37, 3, 64), Point(64, 4, 256)]
)
def test_a_point_is_run_as_it_says(point, drafts):
    watched = Watched(toy_model(drafts=drafts))
    runner = engine(watched).runner
    times = ForwardTimer(runner, adapter=drafts, repeats=3)(point)
    assert len(times) == 3
    assert all(time > 0 for time in times)
    assert runner.pool.free_pages == runner.pool.pages
    for batch in watched.batches:
        assert sum(len(row.tokens) for row in batch.rows) == point.tokens
        assert {row.prefix for row in batch.rows} == {point.prefix}
        assert {row.request for row in batch.rows} == set(range(point.requests))
        branched = any(not row.causal for row in batch.rows)
        assert branched == (drafts and point.tokens // point.requests >= 4)


def test_measure_makes_a_table_of_this_model_and_device(monkeypatch):
    model = toy_model()
    asked = []

    def time(_timer, point):
        asked.append(point)
        return [1 + 0.1 * point.tokens + 1e-4 * point.read] * 5

    monkeypatch.setattr(ForwardTimer, "__call__", time)
    expected = []
    found = measure(engine(model), model, largest=64, expect=expected.append)
    assert len(expected) == 1
    assert expected[0] > 0
    conditions = found.table.conditions
    assert conditions.fingerprint == model.fingerprint
    assert conditions.settings["dtype"] == "float64"
    assert conditions.settings["graphs"] is False
    assert not found.table.stepped
    assert found.table.tokens[-1] == 64
    assert found.table.prefix_ms == pytest.approx(1e-4)
    assert all(point.requests * point.prefix <= 4096 for point in asked)


def test_more_query_tokens_take_longer_on_a_cpu():
    timer = ForwardTimer(engine(toy_model()).runner, adapter=True)
    assert median(timer(Point(512, 4, 16))) > median(timer(Point(1, 1, 16)))


@pytest.mark.gpu
def test_graphs_are_timed_on_a_gpu():
    model = load("nld-3b", load_format="dummy", device="cuda")
    machine = Engine(model, lambda _: "", EngineConfig(kv_cache_tokens=65_536, max_model_len=8192))
    found = measure(machine, model, largest=512)
    assert found.table.stepped
    assert found.table.conditions.settings["graphs"] is True
    assert found.table.base_ms[-1] > 1.2 * found.table.base_ms[0]
    assert found.table.residual < 0.1


def test_sizes_end_at_the_largest_asked_for():
    assert sizes(64)[-1] == 64
    assert sizes(100)[-2:] == (96, 100)
    assert list(sizes(1024)) == sorted(set(sizes(1024)))
