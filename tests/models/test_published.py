"""Published shapes with random weights: the right sizes, finite at any depth, runnable without files."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.tiny import CPU

from recguide import LLM, SamplingParams
from recguide.core import ParameterError
from recguide.models import dummy, published
from recguide.models.decoder import Decoder
from recguide.models.loading import load

SMALL = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 96,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
}


@pytest.fixture
def small(monkeypatch):
    """nld-8b in small."""
    shape = replace(published.SHAPES["nld-8b"], layers=12, **SMALL)
    monkeypatch.setitem(published.SHAPES, "nld-8b", shape)
    return shape


@pytest.mark.parametrize(
    ("name", "parameters", "kv_bytes"),
    [
        ("nld-3b", 3_831_659_520, 106_496),
        ("nld-8b", 8_489_553_920, 139_264),
        ("nld-14b", 13_506_073_600, 163_840),
    ],
)
def test_sizes_are_the_published_ones(name, parameters, kv_bytes):
    shape = published.SHAPES[name]
    decoder = Decoder(shape, torch.bfloat16, torch.device("meta"))
    assert sum(weight.numel() for weight in decoder.parameters()) == parameters
    assert 2 * shape.layers * shape.kv_size * 2 == kv_bytes


def test_the_draft_adapter_has_the_published_size():
    shape = published.SHAPES["nld-8b"]
    rank = published.DRAFT_LORA.rank
    assert shape.layers * rank * (shape.query_size + shape.hidden_size) == 35_651_584
    assert published.DRAFT_LORA.scale == 4.0


@pytest.mark.parametrize("layers", [2, 40])
def test_activations_keep_their_size_through_any_depth(layers):
    config = replace(published.SHAPES["nld-8b"], layers=layers, **SMALL)
    decoder = Decoder(config, torch.bfloat16, CPU)
    dummy.fill_decoder(decoder)
    tokens = torch.arange(64)

    def attend(_layer, qkv, _rotation):
        return qkv[:, -config.kv_heads :].repeat_interleave(config.heads // config.kv_heads, 1).flatten(1)

    logits = decoder.logits(decoder.hidden(tokens, tokens, attend))
    assert logits.isfinite().all()
    assert 0.7 < logits.std() < 1.4


def test_the_same_seed_makes_the_same_weights_and_the_adapter_changes_drafts(small):
    one, two = (load("nld-8b", load_format="dummy", dtype="float32", device="cpu") for _ in range(2))
    assert one.fingerprint == two.fingerprint
    assert torch.equal(one.decoder.blocks[3].down, two.decoder.blocks[3].down)
    assert one.adapter is not None
    inner, outer = one.adapter.factors()[(0, published.ADAPTED)]
    assert inner.shape == (128, small.query_size)
    delta = published.DRAFT_LORA.scale * (outer @ inner)
    size = one.decoder.blocks[0].output.std()
    assert 0.5 * size < delta.std() < 2 * size


@pytest.mark.usefixtures("small")
def test_it_runs_without_a_tokenizer():
    llm = LLM(
        load("nld-8b", load_format="dummy", dtype="float32", device="cpu"), method="recguide", block_size=8
    )
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    (drafted,) = llm.generate([[5, 6, 7]], params)
    (plain,) = llm.generate([[5, 6, 7]], replace(params, method="ar"))
    assert drafted.token_ids == plain.token_ids
    assert [int(word) for word in drafted.text.split()] == list(drafted.token_ids)


def test_an_adapter_folder_that_is_none_is_refused():
    with pytest.raises(ParameterError, match="adapter"):
        load("nld-8b", load_format="dummy", adapter="/nowhere", device="cpu")


@pytest.mark.usefixtures("small")
def test_adapter_none_is_none():
    assert load("nld-8b", load_format="dummy", adapter=None, device="cpu").adapter is None


def test_names_and_formats_are_refused_by_name():
    with pytest.raises(ParameterError, match="load_format dummy"):
        load("nld-8b", device="cpu")
    with pytest.raises(ParameterError, match="nld-3b, nld-8b, nld-14b"):
        load("nld-9b", load_format="dummy", device="cpu")
    with pytest.raises(ParameterError, match="auto, dummy"):
        load("nld-8b", load_format="random", device="cpu")
