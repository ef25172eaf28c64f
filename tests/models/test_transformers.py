"""Causal logits against an independent implementation with the same weights: transformers' own families."""

from __future__ import annotations

import pytest
import torch
from tests.tiny import LLAMA, NLD, causal_logits, config_of

from recguide.models.checkpoint import named_weights
from recguide.models.loading import Model

transformers = pytest.importorskip("transformers")

DROPPED = ("model_type", "architectures", "auto_map", "mask_token_id", "block_size", "dlm_paradigm")
SCALING = {
    "none": None,
    "llama3": LLAMA["rope_scaling"],
    "linear": {"rope_type": "linear", "factor": 3.0},
}


def reference(config_class, model_class, raw, dtype):
    config = config_class(**{name: value for name, value in raw.items() if name not in DROPPED})
    config._attn_implementation = "eager"
    return model_class(config).to(dtype).eval()


def share_weights(theirs, raw, dtype):
    """Our model with its weights in theirs too."""
    ours = Model.random(config_of(raw), seed=3, dtype=dtype)
    renamed = {
        name.replace("encoder.", "model.").replace("diffusion_head", "lm_head"): weight.contiguous()
        for name, weight in named_weights(ours.decoder).items()
    }
    if raw["tie_word_embeddings"]:
        renamed["lm_head.weight"] = renamed["model.embed_tokens.weight"]
    theirs.load_state_dict(renamed, strict=True)
    return ours


def difference(ours, theirs, start, count=48):
    """Largest logit difference over a causal forward at positions from `start`."""
    generator = torch.Generator().manual_seed(start)
    tokens = torch.randint(0, ours.config.vocab_size, (count,), generator=generator)
    positions = torch.arange(start, start + count)
    with torch.no_grad():
        expected = theirs(input_ids=tokens[None], position_ids=positions[None], use_cache=False).logits[0]
    assert expected.abs().max() > 1
    return (causal_logits(ours, tokens, start) - expected).abs().max().item()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scaling", SCALING)
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_llama_like_families(family, scaling, tied):
    raw = {**LLAMA, "model_type": family, "rope_scaling": SCALING[scaling], "tie_word_embeddings": tied}
    classes = (transformers.LlamaConfig, transformers.LlamaForCausalLM)
    if family == "mistral":
        raw["sliding_window"] = None
        classes = (transformers.MistralConfig, transformers.MistralForCausalLM)
    theirs = reference(*classes, raw, torch.float32)
    ours = share_weights(theirs, raw, torch.float32)
    assert difference(ours, theirs, 0) < 2e-5
    assert difference(ours, theirs, 700) < 2e-4


@pytest.mark.parametrize(
    ("original", "factor", "theta", "starts"),
    [
        (16, 16.0, 1e6, (0, 100, 900)),
        (16, 0.25, 1e6, (0, 100)),
        (64, 16.0, 1e9, (0, 1500)),
        (16384, 16.0, 1e6, (0, 16370, 40_000)),
    ],
)
def test_nld_in_causal_mode_is_ministral_3(original, factor, theta, starts):
    rope = {
        **NLD["rope_parameters"],
        "original_max_position_embeddings": original,
        "factor": factor,
        "rope_theta": theta,
    }
    raw = {**NLD, "rope_parameters": rope, "max_position_embeddings": 262144}
    theirs = reference(transformers.Ministral3Config, transformers.Ministral3ForCausalLM, raw, torch.float32)
    ours = share_weights(theirs, raw, torch.float32)
    for start in starts:
        # Angles are float32 by definition: their last bit grows with the position.
        assert difference(ours, theirs, start) < 2e-5 + 1e-7 * start


def test_the_comparison_sees_query_scale_and_yarn():
    """Were either left out, the differences would be far above the bounds used here."""
    rope = NLD["rope_parameters"]
    theirs = reference(transformers.Ministral3Config, transformers.Ministral3ForCausalLM, NLD, torch.float32)
    for change in ({"llama_4_scaling_beta": 0.2}, {"factor": 15.0}):
        ours = share_weights(theirs, {**NLD, "rope_parameters": {**rope, **change}}, torch.float32)
        assert difference(ours, theirs, 500) > 1e-3
