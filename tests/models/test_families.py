"""config.json → what the decoder must be, by family: published values, and refusals by field."""

from __future__ import annotations

import math

import pytest
import torch
from tests.tiny import LLAMA, NLD, config_of, write_json

from recguide.core import CheckpointError
from recguide.models.checkpoint import named_weights
from recguide.models.config import LinearScaling, Llama3Scaling, QueryScale, YarnScaling
from recguide.models.decoder import Decoder
from recguide.models.families import read_config
from recguide.models.rotary import attention_factor, inverse_frequencies, query_scale, yarn_range

SIZES = {
    "3B": {"num_hidden_layers": 26, "hidden_size": 3072, "intermediate_size": 9216},
    "8B": {"num_hidden_layers": 34, "hidden_size": 4096, "intermediate_size": 14336},
    "14B": {"num_hidden_layers": 40, "hidden_size": 5120, "intermediate_size": 16384},
}
PARAMETERS = {"3B": 3.8317e9, "8B": 8.4896e9, "14B": 13.5061e9}
KV_BYTES = {"3B": 106_496, "8B": 139_264, "14B": 163_840}
ROPE = {**NLD["rope_parameters"], "original_max_position_embeddings": 16384}


def published(size, **changes):
    theta = 1e9 if size == "14B" else 1e6
    return {
        **NLD,
        **SIZES[size],
        "vocab_size": 131072,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "eos_token_id": 11,
        "mask_token_id": 100,
        "rope_parameters": {**ROPE, "rope_theta": theta},
        **changes,
    }


@pytest.mark.parametrize("size", SIZES)
def test_published_sizes_have_their_tensors_and_parameters(size):
    config = config_of(published(size))
    weights = named_weights(Decoder(config, torch.bfloat16, torch.device("meta")))
    layers = SIZES[size]["num_hidden_layers"]
    assert len(weights) == 9 * layers + 3
    assert sum(w.numel() for w in weights.values()) == pytest.approx(PARAMETERS[size], rel=1e-4)
    assert tuple(weights[f"encoder.layers.{layers - 1}.self_attn.q_proj.weight"].shape) == (
        4096,
        config.hidden_size,
    )
    assert tuple(weights["encoder.layers.0.self_attn.v_proj.weight"].shape) == (1024, config.hidden_size)
    assert tuple(weights["diffusion_head.weight"].shape) == (131072, config.hidden_size)
    assert config.layers * config.kv_size * 2 * 2 == KV_BYTES[size]


@pytest.mark.parametrize(("size", "low", "high"), [("3B", 20, 37), ("8B", 20, 37), ("14B", 13, 25)])
def test_yarn_ramp_of_published_sizes(size, low, high):
    rope = config_of(published(size)).rope
    assert isinstance(rope.scaling, YarnScaling)
    assert yarn_range(rope.scaling, rope.theta, 128) == (low, high)
    assert attention_factor(rope) == 1.0


def test_base_revision_with_a_factor_below_one():
    config = config_of(
        published(
            "3B",
            eos_token_id=2,
            max_position_embeddings=4096,
            rope_parameters={**ROPE, "factor": 0.25},
        )
    )
    assert config.eos_token_ids == (2,)
    assert config.max_positions == 4096
    assert attention_factor(config.rope) == 1.0
    frequencies = inverse_frequencies(config.rope, 128)
    assert frequencies[0] == 1.0
    assert frequencies[-1].item() == pytest.approx(1e6 ** (-126 / 128) / 0.25)


def test_query_scale_begins_at_the_original_length():
    scale = config_of(published("8B")).query_scale
    assert scale == QueryScale(beta=0.1, original_max_positions=16384)
    found = query_scale(scale, torch.tensor([0, 16383, 16384, 32767, 32768, 262143]))
    expected = [
        1,
        1,
        1 + 0.1 * math.log(2),
        1 + 0.1 * math.log(2),
        1 + 0.1 * math.log(3),
        1 + 0.1 * math.log(16),
    ]
    assert found.tolist() == pytest.approx(expected)
    assert found[2].item() == pytest.approx(1.0693, abs=1e-4)


def test_theta_may_stand_at_top_level():
    nested = config_of(published("14B"))
    rope = {name: value for name, value in ROPE.items() if name != "rope_theta"}
    assert config_of(published("14B", rope_parameters=rope, rope_theta=1e9)) == nested
    old_name = published("14B", rope_parameters=None, rope_scaling=rope, rope_theta=1e9)
    assert config_of(old_name) == nested


def test_rope_parameters_are_those_of_the_file():
    rope = {
        **ROPE,
        "beta_fast": 40.0,
        "beta_slow": 2,
        "mscale": 0.7,
        "mscale_all_dim": None,
        "attention_factor": 1.5,
        "truncate": False,
    }
    assert config_of(published("8B", rope_parameters=rope)).rope.scaling == YarnScaling(
        factor=16.0,
        original_max_positions=16384,
        beta_fast=40.0,
        beta_slow=2.0,
        mscale=0.7,
        mscale_all_dim=None,
        attention_factor=1.5,
        truncate=False,
    )


ABSENT = object()


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("nld", "head_dim", ABSENT),
        ("nld", "head_dim", 7),
        ("nld", "mask_token_id", ABSENT),
        ("nld", "mask_token_id", -1),
        ("nld", "mask_token_id", 131072),
        ("nld", "eos_token_id", 131072),
        ("nld", "eos_token_id", "11"),
        ("nld", "bos_token_id", -2),
        ("nld", "sliding_window", 4096),
        ("nld", "attention_bias", True),
        ("nld", "mlp_bias", True),
        ("nld", "hidden_act", "gelu"),
        ("nld", "dlm_paradigm", "other"),
        ("nld", "quantization_config", {"quant_method": "fp8"}),
        ("nld", "num_hidden_layers", 0),
        ("nld", "hidden_size", "many"),
        ("nld", "hidden_size", True),
        ("nld", "hidden_size", ABSENT),
        ("nld", "rms_norm_eps", -1e-5),
        ("nld", "tie_word_embeddings", "no"),
        ("nld", "num_key_value_heads", 3),
        ("nld", "rope_parameters", [16]),
        ("nld", "rope_parameters", ABSENT),
        ("llama", "attention_bias", True),
        ("llama", "sliding_window", 1024),
        ("llama", "max_position_embeddings", ABSENT),
        ("llama", "num_local_experts", 8),
    ],
)
def test_refused_fields_are_named(family, field, value):
    raw = published("8B") if family == "nld" else dict(LLAMA)
    raw[field] = value
    if value is ABSENT:
        del raw[field]
    named = "rope_theta" if field == "rope_parameters" and value is ABSENT else field
    with pytest.raises(CheckpointError, match=rf"config\.json, field {named}:"):
        config_of(raw)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rope_type": "dynamic"}, "rope_type"),
        ({"rope_type": "longrope"}, "rope_type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"factor": 0}, "factor"),
        ({"factor": None}, "factor"),
        ({"original_max_position_embeddings": None}, "original_max_position_embeddings"),
        ({"beta_fast": "32"}, "beta_fast"),
        ({"future_scaling": 3.0}, "future_scaling"),
        ({"low_freq_factor": 1.0}, "low_freq_factor"),
        ({"llama_4_scaling_beta": "0.1"}, "llama_4_scaling_beta"),
    ],
)
def test_refused_rope_parameters_are_named(change, field):
    with pytest.raises(CheckpointError, match=rf"field rope_parameters\.{field}:"):
        config_of(published("8B", rope_parameters={**ROPE, **change}))


def test_llama_3_scaling_and_linear_scaling():
    config = config_of(LLAMA)
    assert config.rope.scaling == Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=64
    )
    linear = config_of({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2}})
    assert linear.rope.scaling == LinearScaling(factor=2.0)
    assert config_of({**LLAMA, "rope_scaling": None}).rope.scaling is None
    assert not config.native_drafts


def test_llama_scaling_needs_an_order():
    rope = {**LLAMA["rope_scaling"], "high_freq_factor": 1.0}
    with pytest.raises(CheckpointError, match=r"rope_scaling\.high_freq_factor"):
        config_of({**LLAMA, "rope_scaling": rope})


def test_old_llama_files_lack_what_has_a_family_default():
    raw = {**LLAMA, "rope_scaling": None}
    for name in ("head_dim", "num_key_value_heads", "rope_theta", "tie_word_embeddings", "mask_token_id"):
        del raw[name]
    config = config_of(raw)
    assert (config.head_dim, config.kv_heads, config.rope.theta) == (6, 4, 10_000.0)
    assert not config.tie_embeddings
    assert config.mask_token_id is None


@pytest.mark.parametrize("window", [4096, ABSENT])
def test_mistral_with_a_sliding_window_is_refused_by_name(window):
    raw = {**LLAMA, "model_type": "mistral", "sliding_window": window}
    if window is ABSENT:
        del raw["sliding_window"]
    with pytest.raises(CheckpointError, match=r"field sliding_window: sliding-window attention"):
        config_of(raw)


def test_mistral_without_a_sliding_window_is_llama_like():
    config = config_of({**LLAMA, "model_type": "mistral", "sliding_window": None})
    assert config.family == "mistral"


def test_unknown_family_lists_the_known_ones(tmp_path):
    write_json(tmp_path / "config.json", {"model_type": "gpt2"})
    with pytest.raises(
        CheckpointError, match=r"config\.json.*'gpt2'.*llama, mistral, nemotron_labs_diffusion"
    ):
        read_config(tmp_path)


def test_generation_config_says_what_ends_a_text(tmp_path):
    write_json(tmp_path / "config.json", LLAMA)
    assert read_config(tmp_path).eos_token_ids == (2,)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [2, 5, 7]})
    assert read_config(tmp_path).eos_token_ids == (2, 5, 7)
    write_json(tmp_path / "generation_config.json", {"temperature": 0.6})
    assert read_config(tmp_path).eos_token_ids == (2,)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": 99})
    with pytest.raises(CheckpointError, match=r"generation_config\.json, field eos_token_id: 99"):
        read_config(tmp_path)


NO_JSON = ("{", "[]", '{"a":' * 100_000, '{"a": ' + "9" * 5000 + "}")
"""Cut short, not an object, nested too deep, a number of too many digits."""


@pytest.mark.parametrize("content", [None, *NO_JSON])
def test_a_config_that_is_none(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize("content", NO_JSON)
def test_a_generation_config_that_is_none(tmp_path, content):
    write_json(tmp_path / "config.json", LLAMA)
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "field",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
    ],
)
def test_absurd_sizes_are_refused_by_name(field):
    with pytest.raises(CheckpointError, match=rf"config\.json, field {field}:"):
        config_of({**LLAMA, "rope_scaling": None, field: 10**400})
