"""Picks and verdicts made beside the logits, and forwards padded into buckets: not a statistic changes."""

from __future__ import annotations

import pytest
from tests import fake
from tests.engine.device import device_engine, padded_engine
from tests.engine.test_equality import PROMPTS, SAMPLING, SETTINGS, decode, model

from recguide.core import SamplingParams
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.rooms import Limits

METHODS = ("ar", "linear", "tidar", "recguide", "diffusion")


def host_engine(backbone, decoder, **config):
    return Engine(backbone, decoder, EngineConfig(**config))


def complete(make, family, config=None, **params):
    machine = make(model(family), decode, **(config or {}))
    # What runs ahead among others drafts less near a cap, and is held against other engines elsewhere.
    machine._ahead.look = lambda *_: False
    return fake.complete(machine, PROMPTS, SamplingParams(max_tokens=24, **params))


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.text == other.text
        assert one.origins == other.origins
        assert (one.finish_reason, one.stop_reason) == (other.finish_reason, other.stop_reason)
        assert one.stats == other.stats


CASES = [
    (setting, method)
    for setting in ("plain", "stops", "choices")
    for method in METHODS
    if (setting, method) != ("choices", "diffusion")  # which takes no logprobs
]


@pytest.mark.parametrize(("setting", "method"), CASES)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("make", [device_engine, padded_engine])
def test_every_method_does_on_a_device_what_it_does_on_the_host(make, setting, sampling, method):
    family = "llama" if method in ("ar", "linear") else "nemotron_labs_diffusion"
    params = {**SETTINGS[setting], **SAMPLING[sampling], "method": method}
    if method != "ar":
        params["block_size"] = 8
    assert_same(complete(make, family, **params), complete(host_engine, family, **params))


@pytest.mark.parametrize(
    "config", [{"max_batch_tokens": 7}, {"page_size": 2, "kv_cache_tokens": 96}, {"max_running": 1}]
)
def test_chunked_prefill_preemption_and_loneliness_are_the_same_too(config):
    params = {"method": "recguide", "block_size": 8, "temperature": 0.9, "seed": 4}
    assert_same(
        complete(padded_engine, "llama", config, **params), complete(host_engine, "llama", config, **params)
    )


def test_forwards_beyond_the_largest_bucket_run_as_they_are():
    def small(backbone, decoder, **config):
        limits = Limits(tokens=24, requests=64, length=256)
        return padded_engine(backbone, decoder, limits=limits, **config)

    params = {"method": "tidar", "block_size": 8}
    assert_same(complete(small, "llama", **params), complete(host_engine, "llama", **params))
