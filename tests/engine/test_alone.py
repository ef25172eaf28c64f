"""One request after another: shapes of rounds come again, and every forward is what its rows are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.attention.listing import RowColumns, work_list
from tests.attention.test_work import by_tile
from tests.engine import test_equality
from tests.engine.device import PER_TOKEN, PaddedForwards, device_engine, rows_in
from tests.engine.test_equality import model
from tests.engine.test_inputs import TILING, inputs_of, listed
from tests.engine.test_running_ahead import alone, assert_idle
from tests.engine.wayward import wayward

from recguide.attention import work
from recguide.attention.packing import Flat
from recguide.core import SamplingParams
from recguide.engine import standing
from recguide.engine.request import Sampling
from recguide.engine.rooms import Limits

LIMITS = Limits(tokens=256, requests=2, length=256)


class Listing:
    """PyTorch's attention, for which work is listed all the same."""

    def __init__(self, attention, tiling):
        self.plan = attention.plan
        self._tiling = tiling

    def tiling(self, _):
        return self._tiling


class CheckedForwards(PaddedForwards):
    """Packs every forward's rows afresh and compares."""

    def forward(self, bucket, inputs):
        found = super().forward(bucket, inputs)
        flat = inputs.flat
        rows = rows_in(inputs.batch_with(flat))
        tables = inputs.batch.block_tables[: 1 + max(row.request for row in rows)].tolist()
        fresh = inputs_of(inputs.room, bucket.use)
        again = Flat(rows, tables, inputs.room.batch.page_size)
        fresh.fill(again, tables, [Sampling(0, 0.0)] * len(tables), ())
        fresh.send()
        fresh.place()
        for name in (*PER_TOKEN, "wanted"):
            assert torch.equal(getattr(inputs.batch, name), getattr(fresh.batch, name)), name
        for column in ("start", "slot", "draft"):
            used = again.wanted
            assert torch.equal(getattr(inputs.slots, column)[:used], getattr(fresh.slots, column)[:used])
        assert torch.equal(inputs.slots.position, fresh.slots.position)
        tiling = inputs.room.batch.tiling
        order, expected = work_list(RowColumns.of(rows), tiling)
        assert torch.equal(inputs.batch.order[: flat.tokens], torch.from_numpy(order))
        _check_tiles(by_tile(listed(inputs), tiling), by_tile(expected, tiling))
        return found


def _check_tiles(found, expected):
    assert found.keys() == expected.keys()
    same = [work.TOKENS, work.REQUEST, work.CACHED, work.DRAFT, work.DRAFT_END, work.OPEN]
    for tile, items in found.items():
        assert all(item[same].tolist() == expected[tile][0][same].tolist() for item in items)
        ends = [0, *(item[work.END] for item in items)]
        assert [item[work.BEGIN] for item in items] == ends[:-1]
        assert ends[-1] >= expected[tile][-1][work.END]


def checked_engine(tiling=TILING, **config):
    engine = device_engine(model("llama"), test_equality.decode, **config)
    engine.runner._attention = Listing(engine.runner._attention, tiling)
    engine.runner._replays = CheckedForwards(engine.runner, LIMITS)
    return engine


WAYS = (
    {"policy": "price"},
    {"method": "recguide", "block_size": 3},
    {"method": "tidar", "block_size": 4},
    {"method": "linear", "block_size": 8},
    {"method": "ar"},
)


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.8, "seed": 3}])
@pytest.mark.parametrize("at_once", [0, standing.AT_ONCE])
def test_shapes_that_come_again_are_what_their_rows_alone_give(way, sampled, at_once, monkeypatch):
    """Policies plan at random here: verifications of any length, branches of any number and block."""
    monkeypatch.setattr(standing, "AT_ONCE", at_once)
    machine = checked_engine(page_size=4)
    policy = wayward(machine, 5)
    params = {"max_tokens": 60, "ignore_eos": True, **sampled}
    shapes = []
    for prompt in [(4, 5, 6), (9, 8), tuple(range(4, 27)), (4, 5, 6, 7)]:
        (request,) = machine.add(prompt, SamplingParams(**params, **WAYS[way]))
        while machine.busy:
            machine.step()
            if machine._flight is not None:
                shapes.append(machine._flight.plan[0].layout.query_tokens)
        (said,) = alone(prompt, tuple(params.items()))
        assert request.completion().token_ids == said.token_ids
        assert_idle(machine)
    assert len(machine.runner._replays.ran) > 40
    if way == 0:
        assert policy.took
        assert len(set(shapes)) > 20


@pytest.mark.parametrize("method", ["recguide", "tidar"])
def test_shapes_that_come_again_are_listed_for_where_they_are_in_exact_mode(method):
    machine = checked_engine(replace(TILING, exact=True, partial_rows=2**12), page_size=4)
    (request,) = machine.add(
        (4, 5, 6), SamplingParams(max_tokens=60, ignore_eos=True, method=method, block_size=4)
    )
    while machine.busy:
        machine.step()
    (said,) = alone((4, 5, 6), (("max_tokens", 60), ("ignore_eos", True)))
    assert request.completion().token_ids == said.token_ids
