"""Lossless: on tiny random models in float64 every verifying method emits what plain decoding emits.

Vocabularies are small, so that drafts are right now and then and every depth of acceptance occurs.
"""

from __future__ import annotations

from functools import cache

import pytest
from tests import fake
from tests.tiny import tiny_model

from recguide.core import SamplingParams
from recguide.engine.engine import Engine, EngineConfig

FAMILIES = ("llama", "nemotron_labs_diffusion")
PROMPTS = ((5, 9, 7), (11,), tuple(range(4, 21)), (6, 6, 6, 6, 6, 6, 6, 6), tuple(range(20, 4, -1)) * 2)
TEXTS = " abcdefghijklmnopqrstuvwxyz"
SETTINGS = {
    "plain": {},
    "stops": {"stop": ["ab", "q"], "stop_token_ids": [9]},
    "penalties": {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.2,
        "logit_bias": {7: 1.5, 12: -2.0},
    },
    "min_tokens": {"min_tokens": 9, "stop_token_ids": list(range(4, 14)), "top_k": 12},
    "choices": {"n": 3, "logprobs": 2, "top_p": 0.9, "min_p": 0.01},
}
SAMPLING = {"greedy": {}, "sampled": {"temperature": 0.9, "seed": 1234}}


def decode(ids):
    return "".join(TEXTS[token % len(TEXTS)] for token in ids)


@cache
def model(family):
    return tiny_model(family)


def complete(family, config=None, **params):
    machine = Engine(model(family), decode, EngineConfig(**(config or {})))
    return fake.complete(machine, PROMPTS, SamplingParams(max_tokens=24, **params))


@cache
def plain(family, setting, sampling):
    return complete(family, method="ar", **SETTINGS[setting], **SAMPLING[sampling])


def assert_same(completions, reference):
    for completion, expected in zip(completions, reference, strict=True):
        assert completion.token_ids == expected.token_ids
        assert completion.text == expected.text
        assert completion.finish_reason is expected.finish_reason
        assert completion.stop_reason == expected.stop_reason
        assert completion.seed == expected.seed
        if expected.logprobs is not None:
            assert len(completion.logprobs) == len(completion.token_ids)
            for got, wanted in zip(completion.logprobs, expected.logprobs, strict=True):
                assert got.logprob == pytest.approx(wanted.logprob, abs=1e-9)
                assert got.top == pytest.approx(dict(wanted.top), abs=1e-9)


@pytest.mark.parametrize("block", [1, 2, 8, 16, 32])
@pytest.mark.parametrize("method", ["linear", "tidar", "recguide"])
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_speculative_text_is_plain_text(family, setting, sampling, method, block):
    completions = complete(family, method=method, block_size=block, **SETTINGS[setting], **SAMPLING[sampling])
    assert_same(completions, plain(family, setting, sampling))


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_are_right_now_and_then(family):
    """The comparison above is worth little if no draft ever passes."""
    completions = complete(family, method="linear", block_size=8)
    histogram = sum(
        (completion.stats.acceptance for completion in completions),
        start=completions[0].stats.blocks - completions[0].stats.blocks,
    )
    assert len(histogram) >= 3


@pytest.mark.parametrize(
    "config", [{"max_batch_tokens": 7}, {"page_size": 2, "kv_cache_tokens": 96}, {"max_running": 1}]
)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("family", FAMILIES)
def test_neither_chunked_prefill_nor_preemption_nor_company_changes_the_text(family, sampling, config):
    completions = complete(family, config, method="recguide", block_size=8, **SAMPLING[sampling])
    assert_same(completions, plain(family, "plain", sampling))


@pytest.mark.parametrize("family", FAMILIES)
def test_choices_differ_and_the_first_is_the_request_of_its_own(family):
    many = complete(family, n=3, temperature=1.0, seed=77)
    alone = complete(family, n=1, temperature=1.0, seed=77)
    assert [completion.token_ids for completion in many[::3]] == [
        completion.token_ids for completion in alone
    ]
    assert many[0].token_ids != many[1].token_ids != many[2].token_ids


def test_every_request_of_a_batch_may_have_its_own_method_block_and_sampling():
    family = "llama"
    machine = Engine(model(family), decode, EngineConfig())
    each = [
        SamplingParams(max_tokens=24, temperature=temperature, seed=5, method=method, block_size=block)
        for temperature, method, block in [
            (0.0, "ar", None),
            (1.0, "linear", 8),
            (0.7, "tidar", 4),
            (0.0, "recguide", 32),
            (1.3, "recguide", 2),
        ]
    ]
    mixed = [machine.add(prompt, params)[0] for prompt, params in zip(PROMPTS, each, strict=True)]
    while machine.busy:
        machine.step()
    for prompt, params, request in zip(PROMPTS, each, mixed, strict=True):
        alone = Engine(model(family), decode, EngineConfig())
        (reference,) = alone.add(
            prompt, SamplingParams(max_tokens=24, temperature=params.temperature, seed=5, method="ar")
        )
        while alone.busy:
            alone.step()
        assert request.completion().token_ids == reference.completion().token_ids
