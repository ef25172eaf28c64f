"""Made-up forwards run over cached prefixes; recorded ones are timed graph by graph."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from tests.tiny import tiny_model

from recguide.bench.decoding import decode
from recguide.bench.stage import PARTS, Stage, alone_ms
from recguide.core import AdapterUse, SamplingParams
from recguide.engine.buckets import Bucket
from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.engine.flight import Forward
from recguide.engine.runner import Runner
from recguide.models.loading import Model
from recguide.speculation import rows
from recguide.speculation.rows import Phase


def test_a_stage_runs_any_layout_and_gives_the_cache_back():
    runner = Runner(tiny_model("llama"), pages=32, page_size=8)
    stage = Stage(runner, requests=3, prefix=20, room=6, first_room=30)
    verify = [rows.verify(i, 20, (5, 6, 7), (), mask=3, adapter=True) for i in range(3)]
    times, bucket = stage.time(verify, 4)
    assert len(times) == 4
    assert min(times) > 0
    assert bucket is None
    assert stage.time([rows.prefill(0, 20, [4] * 30, picks=True)], 1)[0]
    stage.close()
    assert runner.pool.free_pages == 32


def forward(tokens, prefix, *, graph=True):
    bucket = Bucket(tokens, AdapterUse.NONE, tokens) if graph else None
    return Forward(bucket, Counter({Phase.VERIFY: 1}), 0, tokens, tokens, prefix, None)


class Clock:
    """Takes a forward's bucket in milliseconds, and a hundredth of its prefix."""

    def __init__(self):
        self.timed = 0

    def time_graph(self, one):
        self.timed += 1
        return one.bucket.tokens + one.prefix_tokens / 100


def test_a_few_forwards_of_each_graph_are_all_timed():
    run = [*(forward(16, prefix) for prefix in (100, 900, 200)), forward(64, 500)]
    assert alone_ms(Clock(), run) == pytest.approx(3 * 16 + 12 + 64 + 5)


def test_many_forwards_of_a_graph_are_timed_by_a_few_of_every_length_of_prefix():
    """Decoding reads long prefixes, and chunks of prompts that share its graph short ones."""
    decoding, prefill = range(10_000, 10_000 + 300), [50] * 100
    prefixes = [*prefill[:60], *decoding, *prefill[60:]]
    clock, run = Clock(), [forward(16, prefix) for prefix in prefixes]
    assert alone_ms(clock, run) == pytest.approx(400 * 16 + sum(prefixes) / 100, rel=1e-3)
    assert clock.timed == PARTS


def test_without_a_graph_there_is_no_time_of_graphs():
    assert alone_ms(Clock(), [forward(16, 100), forward(2048, 100, graph=False)]) is None
    assert alone_ms(Clock(), []) is None


@pytest.mark.gpu
def test_graphs_alone_take_most_of_a_decoding_on_a_device():
    made = tiny_model("llama", adapter=False, head_dim=64, hidden_size=256, dtype=torch.float32)
    model = Model.random(made.config, dtype=torch.float16, device="cuda")
    engine = Engine(model, str, EngineConfig(max_running=2, kv_cache_tokens=4096))
    params = SamplingParams(max_tokens=32, ignore_eos=True)
    prompts = [[5, 6, 7], [8, 9, 10]]
    decode(engine, prompts, [params] * 2)
    found = decode(engine, prompts, [params] * 2, alone=True)
    assert found.graph_ms is not None
    assert 0 < found.graph_ms < 1.05 * found.wall_ms
    stage = Stage(engine.runner, requests=2, prefix=100, room=16)
    times, bucket = stage.time([rows.step(i, 100, 5) for i in range(2)], 5)
    assert bucket == 2
    assert len(times) == 5
    stage.close()
