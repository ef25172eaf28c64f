"""Arranged weights compute what the checkpoint's do, and are not taken for them."""

from __future__ import annotations

import pytest
import torch
from tests import fake
from tests.tiny import FAMILIES, causal_mask, dense_attend, tiny_model

from recguide.core import RecGuideError, SamplingParams
from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.models import published
from recguide.models.adapter_files import named_tensors
from recguide.models.checkpoint import named_weights
from recguide.training.network import Backbone


def logits(model, use):
    tokens, positions = torch.arange(9), torch.arange(40, 49)
    with torch.no_grad():
        hidden = model.decoder.hidden(
            tokens,
            positions,
            dense_attend(causal_mask(9), model.config.kv_heads),
            adapter=None if use == "none" else model.adapter,
            on=slice(4, None) if use == "mixed" else None,
            masked=tokens == 6,
        )
        return model.decoder.logits(hidden)


@pytest.mark.parametrize("use", ["none", "mixed", "all"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_logits_are_the_same(family, use, dtype, tolerance):
    plain, model = (tiny_model(family, dtype=dtype) for _ in range(2))
    for _ in range(2):  # a second time changes nothing
        model.arrange()
        found, expected = logits(model, use), logits(plain, use)
        assert (found - expected).abs().max() < tolerance * expected.abs().max()


@pytest.mark.parametrize("method", ["ar", "linear", "tidar", "recguide"])
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_the_same(family, method):
    params = SamplingParams(max_tokens=24, method=method, block_size=None if method == "ar" else 8)
    prompts = ((5, 9, 7), tuple(range(4, 21)), (6,) * 8)
    config = EngineConfig()
    plain, arranged = tiny_model(family), tiny_model(family)
    arranged.arrange()
    texts = [
        [
            completion.token_ids
            for completion in fake.complete(Engine(model, published.decode, config), prompts, params)
        ]
        for model in (plain, arranged)
    ]
    assert texts[0] == texts[1]


def test_arranged_weights_are_no_checkpoint():
    model = tiny_model("llama")
    model.arrange()
    for read in (
        lambda: named_weights(model.decoder),
        lambda: named_tensors(model.adapter),
        lambda: Backbone.of(model.decoder),
    ):
        with pytest.raises(RecGuideError, match="arranged for inference; load it anew"):
            read()


def test_an_adapter_runs_only_beside_weights_arranged_as_its_own():
    model, other = tiny_model("llama"), tiny_model("llama")
    model.arrange()
    with pytest.raises(RecGuideError, match="not arranged as the decoder's"):
        other.decoder.hidden(
            torch.arange(3), torch.arange(3), dense_attend(causal_mask(3)), adapter=model.adapter
        )


def test_half_precision_stays_as_it_was_loaded():
    model = tiny_model("llama", dtype=torch.bfloat16)
    model.arrange()
    assert not model.decoder.arranged
    named_weights(model.decoder)
