"""How a device's memory is shared out."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch
from tests.engine.device import padded_engine
from tests.fake import FakeBackbone, Script, complete, decode

from recguide.core import KVShape, ParameterError, SamplingParams
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.memory import GIB, Device, plan_memory
from recguide.engine.rooms import Limits
from recguide.engine.runner import Runner
from recguide.speculation.slots import torch_picker

SHAPE = KVShape(36, 8, 128, torch.bfloat16, torch.device("cpu"))
PAGE = 64
PAGE_BYTES = PAGE * SHAPE.bytes_per_token
H200 = Device(total=140 * GIB, taken=17 * GIB, weights=16 * GIB, graphs=3 * GIB)


def plan(device=H200, *, wanted=None, most=10**9, utilisation=0.9):
    return plan_memory(device, SHAPE, page_size=PAGE, wanted=wanted, most=most, utilisation=utilisation)


@pytest.mark.parametrize("utilisation", [0.3, 0.9, 1.0])
def test_keys_and_values_take_what_weights_and_graphs_leave(utilisation):
    found = plan(utilisation=utilisation)
    used = H200.taken + H200.graphs + found.kv
    assert used <= H200.total * utilisation < used + PAGE_BYTES
    assert found.kv == found.kv_pages * PAGE_BYTES
    assert found.kv_tokens == found.kv_pages * PAGE


def test_no_more_is_taken_than_can_be_used():
    assert plan(most=1000).kv_tokens == 1024


def test_a_size_that_was_asked_for_is_taken_at_its_word():
    found = plan(Device(total=0, taken=0, weights=0, graphs=0), wanted=100, most=10)
    assert (found.kv_pages, found.kv_tokens) == (2, 128)


def test_a_full_device_is_refused_with_what_fills_it():
    with pytest.raises(ParameterError, match=r"139\.0 of 140\.0 GiB are in use") as error:
        plan(Device(total=140 * GIB, taken=139 * GIB, weights=16 * GIB, graphs=3 * GIB))
    assert error.value.parameter == "gpu_memory_utilisation"


def test_the_plan_is_said_in_one_line():
    text = str(plan(wanted=64_000))
    assert "\n" not in text
    for part in ("weights 16.00 GiB", "8.79 GiB for 64000 tokens", "graphs 3.00 GiB"):
        assert part in text


def test_what_nobody_counts_is_not_said_to_be_nothing():
    assert "0.00" not in str(plan(Device(total=0, taken=0, weights=0, graphs=0), wanted=64_000))


def test_an_engine_says_its_plan_when_it_starts(caplog):
    script = Script((1,), (2,))
    with caplog.at_level("INFO", logger="recguide"):
        machine = Engine(FakeBackbone(script), decode, EngineConfig(kv_cache_tokens=100))
    assert [record.getMessage() for record in caplog.records] == [str(machine.memory), machine.planning]
    assert machine.memory.kv_tokens == 112
    assert Engine(FakeBackbone(script), decode, EngineConfig()).memory.kv_tokens == 32_768


@contextmanager
def no_collection():
    """Memory comes back at once, not with the next collection, which knows nothing of gigabytes."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("make", [lambda *given: Engine(*given, EngineConfig()), padded_engine])
def test_a_dropped_engine_gives_its_cache_back_at_once(make):
    script = Script((200, 1, 2), (3, 4, 5))
    machine = make(FakeBackbone(script), decode)
    complete(machine, [script.prompt, script.prompt], SamplingParams(max_tokens=20, block_size=8))
    cache = weakref.ref(machine.runner._cache)
    machine.runner._replays = None  # what stands in for graphs holds the runner
    with no_collection():
        del machine
        assert cache() is None


def test_graphs_do_not_hold_the_cache_of_a_dropped_runner(monkeypatch):
    monkeypatch.setattr("recguide.engine.runner.Replays", lambda *given: given)
    backbone = FakeBackbone(Script((200, 1, 2), (3, 4, 5)))
    limits = Limits(tokens=16, requests=2, length=64)
    runner = Runner(backbone, pages=2, page_size=4, picker=torch_picker(backbone.vocabulary), graphs=limits)
    cache = weakref.ref(runner._cache)
    with no_collection():
        del runner
        assert cache() is None
