"""Adapters on disk: PEFT's format and its patterns, mixed ranks, and refusals by file and tensor."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny import CPU, tiny_adapter, tiny_config, write_json

from recguide.core import CheckpointError
from recguide.models.adapter import Adapter, LoraRank
from recguide.models.adapter_files import load_adapter, named_tensors, save_adapter
from recguide.models.layout import parts

NLD, LLAMA = "nemotron_labs_diffusion", "llama"
O_PROJ = "base_model.model.encoder.layers.1.self_attn.o_proj"


def load(folder, family=NLD, **changes):
    return load_adapter(folder, tiny_config(family, **changes), torch.float64, CPU)


def edit_config(folder, **changes):
    file = folder / "adapter_config.json"
    content = {**json.loads(file.read_text()), **changes}
    write_json(file, {name: value for name, value in content.items() if value is not ...})


def edit_tensors(folder, change):
    file = folder / "adapter_model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)


@pytest.fixture
def folder(tmp_path):
    """linear_spec_lora as it is published, small: o_proj only, scale 4, float32, no mask embedding."""
    config = tiny_config(NLD)
    adapter = tiny_adapter(config, ranks={"o_proj": 3}, scale=4.0, mask_embedding=False, dtype=torch.float32)
    adapter.mask_token_id = None
    save_adapter(adapter, tmp_path / "lora", base="tiny")
    return tmp_path / "lora"


def test_the_published_layout(folder):
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["target_modules"] == ["o_proj"]
    assert (config["r"], config["lora_alpha"], config["bias"]) == (3, 12.0, "none")
    assert "mask_token_id" not in config
    stored = load_file(folder / "adapter_model.safetensors")
    assert {name: tuple(t.shape) for name, t in stored.items() if name.startswith(O_PROJ)} == {
        f"{O_PROJ}.lora_A.weight": (3, 32),
        f"{O_PROJ}.lora_B.weight": (24, 3),
    }
    assert len(stored) == 4
    adapter = load(folder)
    assert set(adapter.ranks.values()) == {LoraRank(3, 4.0)}
    assert adapter.mask_embedding is None
    assert adapter.mask_token_id is None


@pytest.mark.parametrize("content", ["{", '{"r":' * 100_000, '{"r": ' + "9" * 5000 + "}"])
def test_a_config_that_is_none(folder, content):
    (folder / "adapter_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"adapter_config\.json cannot be read"):
        load(folder)


@pytest.mark.parametrize("rank", [10**30, 2**31 - 1])
def test_a_rank_without_memory_for_it(folder, rank, monkeypatch):
    """Refused as a number, or by the allocator: stood in for, since some systems promise any memory."""
    monkeypatch.setattr(torch, "empty", out_of_memory)
    edit_config(folder, r=rank)
    with pytest.raises(CheckpointError, match=r"adapter_config\.json(, field r:| asks for weights)"):
        load(folder)


def out_of_memory(*_, **__):
    raise RuntimeError("can't allocate memory")


@pytest.mark.parametrize("family", [NLD, LLAMA])
def test_saving_and_loading_returns_every_rank_and_tensor(tmp_path, family):
    config = tiny_config(family)
    modules = [part.module for part in parts(config)]
    ranks = {
        (layer, m): LoraRank(1 + (3 * layer + i) % 4, 2.0) for layer in (0, 1) for i, m in enumerate(modules)
    }
    del ranks[1, "mlp.up_proj"]
    ranks[0, "self_attn.v_proj"] = LoraRank(3, 0.125)
    adapter = Adapter(config, ranks, mask_embedding=True, mask_token_id=3, dtype=torch.float64, device=CPU)
    generator = torch.Generator().manual_seed(0)
    for parameter in adapter.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    save_adapter(adapter, tmp_path, base="tiny", notes={"block_sizes": [8, 16]})
    loaded = load(tmp_path, family)
    assert loaded.ranks == adapter.ranks
    assert loaded.mask_token_id == 3
    saved, read = named_tensors(adapter), named_tensors(loaded)
    assert saved.keys() == read.keys()
    assert all(torch.equal(saved[name], read[name]) for name in saved)


def test_a_file_of_lower_precision(tmp_path):
    adapter = tiny_adapter(tiny_config(LLAMA))
    save_adapter(adapter, tmp_path, base="tiny", dtype=torch.bfloat16)
    assert {t.dtype for t in load_file(tmp_path / "adapter_model.safetensors").values()} == {torch.bfloat16}
    for name, tensor in named_tensors(load(tmp_path, LLAMA)).items():
        assert torch.equal(tensor, named_tensors(adapter)[name].bfloat16().double())


def test_the_delta_is_scale_times_b_times_a():
    """Fused groups with unequal ranks, against the matrices spelled out."""
    adapter = tiny_adapter(tiny_config(NLD), scale=0.75)
    tensors = named_tensors(adapter)
    x = torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(5, 32 + 2 * 16, dtype=torch.float64)
    adapter.deltas[1]["qkv"].add(x, y)
    stem = "base_model.model.encoder.layers.1.self_attn"
    expected = [
        0.75 * x @ (tensors[f"{stem}.{n}_proj.lora_B.weight"] @ tensors[f"{stem}.{n}_proj.lora_A.weight"]).t()
        for n in "qkv"
    ]
    assert torch.allclose(y, torch.cat(expected, 1))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lora_alpha": 6}, 2.0),
        ({"use_rslora": True}, 12 / math.sqrt(3)),
        ({"r": 8, "rank_pattern": {"o_proj": 3}}, 4.0),
        ({"r": 8, "rank_pattern": {r"layers\.\d+\.self_attn\.o_proj": 3}}, 4.0),
        ({"alpha_pattern": {"encoder.layers.[01].self_attn.o_proj": 3}}, 1.0),
        ({"rank_pattern": {"proj": 5}, "alpha_pattern": {"q_proj": 3}}, 4.0),
    ],
)
def test_rank_and_scale_follow_the_patterns(folder, changes, expected):
    edit_config(folder, **changes)
    adapter = load(folder)
    assert {lora.rank for lora in adapter.ranks.values()} == {3}
    assert all(lora.scale == pytest.approx(expected) for lora in adapter.ranks.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": ["self_attn.o_proj"]},
        {"target_modules": r".*\.o_proj"},
        {"target_modules": ["encoder.layers.0.self_attn.o_proj", "layers.1.self_attn.o_proj"]},
        {
            "target_modules": "all-linear",
            "exclude_modules": ["q_proj", "k_proj", "v_proj", "mlp.gate_proj", "up_proj", "down_proj"],
        },
        {"layers_to_transform": [0, 1]},
        {"peft_version": "0.18", "use_dora": False, "modules_to_save": None, "loftq_config": {}},
    ],
)
def test_targets_as_peft_spells_them(folder, changes):
    edit_config(folder, **changes)
    assert set(load(folder).ranks) == {(0, "self_attn.o_proj"), (1, "self_attn.o_proj")}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peft_type", "IA3"),
        ("use_dora", True),
        ("bias", "lora_only"),
        ("modules_to_save", ["lm_head"]),
        ("layer_replication", [[0, 2]]),
        ("fan_in_fan_out", True),
        ("an_option_of_the_future", 1),
        ("target_modules", ["lm_head"]),
        ("target_modules", []),
        ("r", 0),
        ("r", ...),
        ("lora_alpha", ...),
        ("rank_pattern", {"o_proj": "big"}),
        ("rank_pattern", {"o_proj": 1.5}),
        ("alpha_pattern", {"(": 1}),
        ("exclude_modules", "*"),
        ("mask_token_id", 32),
        ("mask_token_id", 4),
    ],
)
def test_refused_options_are_named(folder, field, value):
    edit_config(folder, **{field: value})
    with pytest.raises(CheckpointError, match=rf"adapter_config\.json, field {field}(\.o_proj)?:"):
        load(folder)


def test_the_mask_token_of_a_model_that_has_none(folder):
    edit_config(folder, mask_token_id=7)
    names = {"base_model.model.encoder": "base_model.model.model"}

    def rename(tensors):
        for name in list(tensors):
            tensors[name.replace(*next(iter(names.items())))] = tensors.pop(name)

    edit_tensors(folder, rename)
    assert load(folder, LLAMA, mask_token_id=None).mask_token_id == 7


def test_a_missing_tensor(folder):
    edit_tensors(folder, lambda tensors: tensors.pop(f"{O_PROJ}.lora_B.weight"))
    with pytest.raises(
        CheckpointError, match=rf"adapter_model\.safetensors: tensor {O_PROJ}\.lora_B\.weight is mi"
    ):
        load(folder)


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.encoder.layers.2.self_attn.o_proj.lora_A.weight",
        "base_model.model.encoder.layers.0.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight",
        "mask_embeddings",
    ],
)
def test_an_unexpected_tensor(folder, name):
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(3, 32)}))
    with pytest.raises(CheckpointError, match=rf"adapter_model\.safetensors: tensor {name} is unexpected"):
        load(folder)


def test_a_rank_that_is_not_the_files(folder):
    edit_config(folder, r=4)
    with pytest.raises(
        CheckpointError, match=r"lora_A\.weight has shape \[3, 32\], adapter_config\.json asks for"
    ):
        load(folder)


def test_a_mask_embedding_of_another_size(folder):
    edit_tensors(folder, lambda tensors: tensors.update(mask_embedding=torch.zeros(25)))
    with pytest.raises(CheckpointError, match=r"mask_embedding has shape \[25\]"):
        load(folder)


def test_an_adapter_of_a_model_with_other_layers(folder):
    with pytest.raises(CheckpointError, match=r"layers\.2\..* is missing"):
        load(folder, num_hidden_layers=3)


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_missing_file(folder, file):
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=rf"{file} is missing"):
        load(folder)


def test_a_truncated_file(folder):
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors is truncated"):
        load(folder)
