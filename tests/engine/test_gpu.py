"""The engine on a CUDA device: the same text as plain decoding, with the adapter where it belongs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests import fake
from tests.tiny import FAMILIES, tiny_model

from recguide.core import Row, SamplingParams
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.runner import Runner
from recguide.models.loading import Model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = "cuda"
PROMPTS = ((5, 9, 7), (11,), tuple(range(4, 21)))
SAMPLING = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "seed": 1234, "top_p": 0.95},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.2, "stop_token_ids": [9], "min_tokens": 5},
    "choices": {"temperature": 0.8, "seed": 5, "n": 2, "logprobs": 2},
}


@cache
def model(family):
    """The tests' tiny model with the same weights on the device."""
    made = tiny_model(family)
    there = Model.random(made.config, device=DEVICE)
    return replace(there, adapter=made.adapter.to(DEVICE))


def complete(backbone, **params):
    machine = Engine(backbone, str, EngineConfig(kv_cache_tokens=4096))
    return fake.complete(machine, PROMPTS, SamplingParams(max_tokens=24, **params))


@cache
def plain(family, sampling):
    return complete(model(family), method="ar", **SAMPLING[sampling])


@pytest.mark.parametrize("block", [2, 8, 16])
@pytest.mark.parametrize("method", ["linear", "tidar", "recguide"])
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("family", FAMILIES)
def test_speculative_text_is_plain_text(family, sampling, method, block):
    completions = complete(model(family), method=method, block_size=block, **SAMPLING[sampling])
    for completion, expected in zip(completions, plain(family, sampling), strict=True):
        assert completion.token_ids == expected.token_ids
        assert completion.finish_reason is expected.finish_reason
        assert completion.stop_reason == expected.stop_reason
        if expected.logprobs is not None:
            for got, wanted in zip(completion.logprobs, expected.logprobs, strict=True):
                assert got.logprob == pytest.approx(wanted.logprob, abs=1e-9)
                assert got.top == pytest.approx(dict(wanted.top), abs=1e-9)


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_device_says_what_the_cpu_says(family, sampling):
    there = plain(family, sampling)
    here = complete(tiny_model(family), method="ar", **SAMPLING[sampling])
    assert [completion.token_ids for completion in there] == [completion.token_ids for completion in here]


@pytest.mark.parametrize("family", FAMILIES)
def test_draft_logits_differ_with_and_without_the_adapter_and_causal_ones_do_not(family):
    mask = model(family).vocabulary.mask
    tables = [list(range(4))]

    def logits(*, adapter):
        runner = Runner(model(family), pages=4, page_size=8)
        runner.forward([Row(0, 0, PROMPTS[2], causal=True)], tables)
        prefix = len(PROMPTS[2])
        causal = Row(0, prefix, (6, 7, 8), causal=True, wanted=range(3))
        branch = Row(
            0,
            prefix,
            (mask,) * 4,
            causal=False,
            stem=2,
            adapter=adapter,
            masked=range(4),
            wanted=range(4),
        )
        found = runner.forward([causal, branch], tables)
        assert found.device.type == DEVICE
        return found.split([3, 4])

    (verified, drafted), (verified_too, drafted_plainly) = logits(adapter=True), logits(adapter=False)
    torch.testing.assert_close(verified, verified_too, rtol=0, atol=1e-10)
    assert (drafted - drafted_plainly).abs().amax(1).min() > 1e-3
