"""CUDA graphs on a device: what they compute, what they are for, and how seldom the host waits."""

from __future__ import annotations

from collections import Counter
from functools import cache
from time import perf_counter

import pytest
import torch
from tests import fake
from tests.tiny import FAMILIES, tiny_adapter, tiny_config

from recguide.core import AdapterUse, RecGuideError, Row, SamplingParams
from recguide.engine.buckets import Bucket
from recguide.engine.engine import Engine, EngineConfig
from recguide.models.loading import Model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = torch.device("cuda")
SHAPE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64}
PROMPTS = ((5, 9, 7), (11,), tuple(range(4, 21)), tuple(range(20, 4, -1)) * 6)
METHODS = ("linear", "tidar", "recguide")
SETTINGS = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "seed": 1234},
    "stops": {"stop_token_ids": [9], "temperature": 0.9, "seed": 5},
    "filters": {"temperature": 0.9, "seed": 1234, "top_p": 0.95},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.2, "stop_token_ids": [9], "min_tokens": 5},
    "choices": {"temperature": 0.8, "seed": 5, "n": 2, "logprobs": 2},
}


@cache
def model(family, dtype=torch.float32):
    config = tiny_config(family, **SHAPE)
    adapter = tiny_adapter(config, dtype=dtype).to(DEVICE)
    return Model.random(config, dtype=dtype, device=DEVICE, adapter=adapter)


@cache
def engine(family, dtype=torch.float32):
    """Without a prefix cache: the same prompts come again and again, to be computed each time."""
    config = EngineConfig(max_batch_tokens=128, max_running=16, prefix_cache=False)
    return Engine(model(family, dtype), str, config)


def complete(machine, *, limit=24, **params):
    return fake.complete(machine, PROMPTS, SamplingParams(max_tokens=limit, **params))


@cache
def plain(family, setting):
    return complete(engine(family), method="ar", **SETTINGS[setting])


@pytest.mark.parametrize("block", [4, 16])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_speculative_text_is_plain_text(family, setting, method, block):
    machine = engine(family)
    with machine.recording() as forwards:
        completions = complete(machine, method=method, block_size=block, **SETTINGS[setting])
    for completion, expected in zip(completions, plain(family, setting), strict=True):
        assert completion.token_ids == expected.token_ids
        assert completion.finish_reason is expected.finish_reason
        assert completion.stop_reason == expected.stop_reason
        if expected.logprobs is not None:
            for got, wanted in zip(completion.logprobs, expected.logprobs, strict=True):
                assert got.logprob == pytest.approx(wanted.logprob, abs=1e-4)
    assert any(forward.bucket is not None for forward in forwards)
    assert any(forward.by_host for forward in forwards) == (setting in ("filters", "penalties", "choices"))


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_and_forwards_without_them_agree(family):
    config = EngineConfig(max_batch_tokens=128, max_running=16, graphs=False, prefix_cache=False)
    bare = Engine(model(family), str, config)
    assert not bare.runner.has_graphs
    for setting in ("greedy", "sampled"):
        params = {"method": "recguide", "block_size": 8, **SETTINGS[setting]}
        expected = complete(bare, **params)
        found = complete(engine(family), **params)
        assert [one.token_ids for one in found] == [one.token_ids for one in expected]
        assert [one.stats for one in found] == [one.stats for one in expected]


ROWS = {
    AdapterUse.NONE: [Row(0, 0, tuple(range(4, 21)), causal=True, wanted=range(17))],
    AdapterUse.MIXED: [
        Row(0, 0, (6, 7, 8), causal=True, wanted=range(3)),
        Row(0, 0, (3,) * 4, causal=False, stem=2, adapter=True, masked=range(4), wanted=range(4)),
    ],
    AdapterUse.ALL: [
        Row(0, 0, (6, 3, 3, 3), causal=False, adapter=True, masked=(1, 2, 3), wanted=range(1, 4))
    ],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("use", AdapterUse)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_graphs_logits_are_those_of_the_rows_alone(family, use, dtype):
    runner = engine(family, dtype).runner
    rows, wanted = ROWS[use], sum(len(row.wanted) for row in ROWS[use])
    with torch.inference_mode():
        bucket, inputs = runner._fill(rows, [[0]])
        assert bucket.use is use
        padded, _ = runner._replays.forward(bucket, inputs)
        found = padded[:wanted].clone()
    expected = runner.forward(rows, [[0]])
    tolerance = 1e-4 if dtype is torch.float32 else 0.1
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert padded.isfinite().all()


def test_an_engine_that_was_made_where_nothing_is_differentiated_runs_elsewhere():
    """Threads differ in that, and tensors remember it: graphs that are captured late write them, too."""
    with torch.inference_mode():
        machine = Engine(model("llama"), str, EngineConfig(max_batch_tokens=512, max_running=4))
    for _ in range(3):
        prompts = [tuple(range(4, 21)) * 20, (5, 9, 7)]
        wanted = SamplingParams(max_tokens=8, method="recguide", block_size=4)
        found = [each.token_ids for each in fake.complete(machine, prompts, wanted)]
        assert found == [one.token_ids for one in fake.complete(engine("llama"), prompts, wanted)]


def test_an_adapter_that_changes_nothing_is_refused_at_the_start():
    config = tiny_config("llama", **SHAPE)
    adapter = tiny_adapter(config, mask_embedding=False, dtype=torch.float32).to(DEVICE)
    for _, outer in adapter.factors().values():
        outer.zero_()
    inert = Model.random(config, dtype=torch.float32, device=DEVICE, adapter=adapter)
    with pytest.raises(RecGuideError, match="same logits with and without it"):
        Engine(inert, str, EngineConfig(max_batch_tokens=16, max_running=4))


def test_lasting_buckets_are_captured_at_the_start_and_others_when_they_come_back():
    config = EngineConfig(max_batch_tokens=512, max_running=4, kv_cache_tokens=4096, prefix_cache=False)
    machine = Engine(model("llama"), str, config)
    graphs = machine.runner._replays
    assert Bucket(256, AdapterUse.MIXED, 256) in graphs._graphs
    late = Bucket(320, AdapterUse.NONE, 64)
    prompt = tuple(5 + i % 20 for i in range(300))
    texts = []
    for captured in (False, True, True):
        (request,) = machine.add(prompt, SamplingParams(max_tokens=8, method="ar"))
        while machine.busy:
            machine.step()
        texts.append(request.completion().token_ids)
        assert (late in graphs._graphs) == captured
    assert texts[0] == texts[1] == texts[2]


def test_keys_and_values_take_the_memory_that_is_left():
    memory = engine("llama").memory
    assert memory.kv_tokens >= 16 * 2048  # all that can be in use at once
    assert memory.graphs > 0
    assert memory.seconds < 60


@pytest.mark.parametrize(
    "way",
    [{"method": "ar"}, *({"method": method, "block_size": 16} for method in ("linear", "recguide")), {}],
    ids=str,
)
def test_the_host_waits_once_a_forward(way):
    """Also where a policy plans, whose forwards may be of sizes that have no graph yet."""
    machine, steps = engine("llama"), 12
    params = SamplingParams(max_tokens=400, ignore_eos=True, **way)
    requests = [machine.add(prompt, params)[0] for prompt in PROMPTS[:3]]
    for _ in range(6):
        machine.step()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(steps):
            machine.step()
    for request in requests:
        machine.abort(request)
    seen = Counter(event.name for event in profile.events())
    graphed = seen["cudaGraphLaunch"]
    assert seen["cudaEventSynchronize"] == steps
    assert seen["cudaStreamSynchronize"] == 0
    assert seen["cudaDeviceSynchronize"] <= 2  # the profiler's own
    assert graphed == steps if way else graphed > 0
    # Kernels of a graph read and write memory of the host themselves.
    copies = {name: count for name, count in seen.items() if name.startswith("Memcpy")}
    assert sum(count for name, count in copies.items() if "DtoH" in name) == steps - graphed
    assert sum(count for name, count in copies.items() if "HtoD" in name) <= steps - graphed


def test_time_of_a_recorded_forward_alone():
    machine = engine("llama")
    with machine.recording() as forwards:
        complete(machine, method="linear", block_size=8)
    graphed = [forward for forward in forwards if forward.bucket is not None]
    alone = [machine.runner.time_graph(forward) for forward in graphed[:3]]
    assert all(0 < ms < 100 for ms in alone)
    times, bucket = machine.runner.time(ROWS[AdapterUse.MIXED], [[0]], 5)
    assert len(times) == 5
    assert bucket == Bucket(8, AdapterUse.MIXED, 8)
    began = perf_counter()
    machine.runner.time(ROWS[AdapterUse.MIXED], [[0]], 1, steady_ms=100.0)
    assert perf_counter() - began > 0.05  # the device was kept busy first
