"""With replayed acceptance every method emits one text, and drafts about as well as the process says."""

from __future__ import annotations

import pytest
import torch
from tests.tiny import tiny_model

from recguide.bench.acceptance.process import fitted
from recguide.bench.decoding import decode
from recguide.bench.workload import random_prompts, replay_engine
from recguide.core import SamplingParams
from recguide.engine.config import EngineConfig


def run(method, seed=1):
    engine = replay_engine(
        tiny_model("llama", dtype=torch.float32),
        fitted("nld-8b").process,
        EngineConfig(max_running=2, kv_cache_tokens=1024),
    )
    params = SamplingParams(max_tokens=120, seed=seed, ignore_eos=True, method=method)
    (request,) = engine.add(random_prompts(1, 20, engine.vocabulary.size)[0], params)
    while engine.busy:
        engine.step()
    return request


def test_every_method_says_the_same_and_drafts_are_accepted():
    plain, drafted = run("ar"), run("recguide")
    assert plain.emitted == drafted.emitted
    assert drafted.stats.mean_acceptance > 3
    assert drafted.stats.tpf > 2
    assert run("ar", seed=2).emitted != plain.emitted


def test_prompts_are_the_same_again_and_of_one_length():
    prompts = random_prompts(3, 7, 131_072)
    assert prompts == random_prompts(3, 7, 131_072)
    assert [len(prompt) for prompt in prompts] == [7, 7, 7]
    assert min(min(prompt) for prompt in prompts) >= 1000
    assert max(map(max, random_prompts(2, 50, 32))) < 32


def test_an_engine_is_ready_for_another_request_after_a_window():
    engine = replay_engine(
        tiny_model("llama", dtype=torch.float32),
        fitted("nld-14b").process,
        EngineConfig(kv_cache_tokens=1024),
    )
    params = [SamplingParams(max_tokens=20, seed=i, ignore_eos=True, method="ar") for i in range(3)]
    for _ in range(2):
        assert decode(engine, random_prompts(3, 9, 32), params).tokens == pytest.approx(3 * 19, abs=3)
