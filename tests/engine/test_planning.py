"""Policies in the loop: whatever they plan, the text is plain decoding's, and what they plan is what runs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests import fake
from tests.engine.device import device_engine, padded_engine
from tests.engine.test_equality import PROMPTS, SAMPLING, SETTINGS, assert_same, decode, model, plain
from tests.engine.wayward import wayward
from tests.fake import encode

from recguide.core import SamplingParams
from recguide.engine.engine import Engine, EngineConfig

ANSWER = tuple(encode("the quick brown fox jumps over the lazy dog, and then it naps in the warm sun. " * 3))


def host_engine(backbone, decoder=decode, **config):
    return Engine(backbone, decoder, EngineConfig(**config))


MAKERS = (host_engine, device_engine, padded_engine)
CONFIGS = (
    {},
    {"batching": "bucketed"},
    {"batching": "padded"},
    {"max_batch_tokens": 24},
    {"page_size": 2, "kv_cache_tokens": 96},
    {"batching": "bucketed", "max_batch_tokens": 20},
)


def planned(make, family, walk, config, **params):
    machine = make(model(family), decode, **config)
    policy = wayward(machine, walk)
    return fake.complete(machine, PROMPTS, SamplingParams(max_tokens=24, **params)), policy


@settings(max_examples=30, deadline=None)
@given(
    walk=st.integers(0, 2**32 - 1),
    setting=st.sampled_from(sorted(SETTINGS)),
    sampling=st.sampled_from(sorted(SAMPLING)),
    config=st.sampled_from(CONFIGS),
    make=st.sampled_from(MAKERS),
)
def test_a_random_walk_over_plans_writes_plain_text(walk, setting, sampling, config, make):
    params = {**SETTINGS[setting], **SAMPLING[sampling]}
    completions, _ = planned(make, "llama", walk, config, **params)
    assert_same(completions, plain("llama", setting, sampling))
