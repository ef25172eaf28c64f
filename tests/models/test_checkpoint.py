"""Weights: every parameter assigned exactly once, and every way in which files can lie, one by one."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny import CPU, FAMILIES, causal_logits, tiny_model, write_checkpoint, write_weights

from recguide.core import CheckpointError
from recguide.models.checkpoint import load_weights, named_weights, weight_files
from recguide.models.decoder import Decoder
from recguide.models.families import read_config

NAMES = {
    "llama": ("model.layers.1.self_attn.k_proj.weight", "model.embed_tokens.weight"),
    "nemotron_labs_diffusion": ("encoder.layers.1.self_attn.k_proj.weight", "encoder.embed_tokens.weight"),
}


def load(folder):
    decoder = Decoder(read_config(folder), torch.float32, CPU)
    for parameter in decoder.parameters():
        parameter.data.fill_(float("nan"))
    load_weights(decoder, folder)
    return decoder


def edit(folder, change):
    """Rewrites model.safetensors with its tensors changed."""
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)
    return file


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def folder(tmp_path, family):
    return write_checkpoint(tmp_path / "model", family, seed=4)


@pytest.mark.parametrize("shards", [1, 3])
def test_every_parameter_is_the_files(tmp_path, family, shards):
    folder = write_checkpoint(tmp_path, family, seed=4, shards=shards)
    decoder = load(folder)
    stored = {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}
    weights = named_weights(decoder)
    assert weights.keys() == stored.keys()
    assert len(stored) == 9 * 2 + (2 if family == "llama" else 3)
    for name, tensor in stored.items():
        assert torch.equal(weights[name], tensor)
    assert sum(t.numel() for t in stored.values()) == sum(p.numel() for p in decoder.parameters())
    assert not any(p.isnan().any() for p in decoder.parameters())


def test_a_loaded_model_computes_what_was_saved(tmp_path, family):
    folder = write_checkpoint(tmp_path, family, seed=4)
    model = tiny_model(family, seed=4, dtype=torch.float32, adapter=False)
    loaded = tiny_model(family, seed=5, dtype=torch.float32, adapter=False)
    write_weights(folder, {n: t.contiguous() for n, t in named_weights(model.decoder).items()})
    load_weights(loaded.decoder, folder)
    tokens = torch.arange(20)
    assert torch.equal(causal_logits(model, tokens), causal_logits(loaded, tokens))


def test_other_precisions_are_converted(folder):
    edit(folder, lambda tensors: tensors.update({n: t.bfloat16() for n, t in tensors.items()}))
    stored = load_file(folder / "model.safetensors")
    for name, weight in named_weights(load(folder)).items():
        assert torch.equal(weight, stored[name].float())


def test_a_missing_tensor(folder, family):
    edit(folder, lambda tensors: tensors.pop(NAMES[family][0]))
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: tensor {NAMES[family][0]} is missing"):
        load(folder)


@pytest.mark.parametrize(
    "name",
    ["{body}.layers.2.mlp.up_proj.weight", "{body}.layers.0.self_attn.q_proj.bias", "time_embedding.weight"],
)
def test_an_unexpected_tensor(folder, family, name):
    name = name.format(body=NAMES[family][0].split(".")[0])
    edit(folder, lambda tensors: tensors.update({name: torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: tensor {name} is unexpected"):
        load(folder)


def test_a_misshapen_tensor(folder, family):
    name = NAMES[family][0]
    edit(folder, lambda tensors: tensors.update({name: tensors[name].t().contiguous()}))
    with pytest.raises(
        CheckpointError, match=rf"{name} has shape \[24, 16\], config\.json asks for \[16, 24\]"
    ):
        load(folder)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.float8_e5m2, "F8_E5M2")],
)
def test_a_quantised_tensor(folder, family, dtype, kind):
    name = NAMES[family][0]
    edit(folder, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    with pytest.raises(CheckpointError, match=rf"tensor {name} holds {kind}; quantised"):
        load(folder)


@pytest.mark.parametrize("size", [0, 4, 100, -1])
def test_a_truncated_file(folder, size):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated"):
        load(folder)


def test_no_file_at_all(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        load(folder)


def test_rotary_buffers_are_skipped(folder, family):
    body = NAMES[family][0].split(".")[0]
    edit(
        folder,
        lambda tensors: tensors.update({f"{body}.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}),
    )
    load(folder)


def test_only_the_files_that_the_checkpoint_names_are_read(tmp_path):
    """The adapter's folder, or a second copy of the weights beside them, is not searched for tensors."""
    folder = write_checkpoint(tmp_path, "nemotron_labs_diffusion")
    assert (folder / "linear_spec_lora" / "adapter_model.safetensors").is_file()
    save_file({"stray": torch.zeros(1)}, folder / "consolidated.safetensors")
    assert weight_files(folder) == (folder / "model.safetensors",)
    load(folder)


@pytest.fixture
def sharded(tmp_path, family):
    return write_checkpoint(tmp_path / "sharded", family, shards=2)


def edit_index(folder, change):
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    change(index["weight_map"])
    file.write_text(json.dumps(index))


def test_a_missing_shard(sharded):
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors is missing"):
        load(sharded)


def test_a_tensor_in_two_shards(sharded, family):
    name = NAMES[family][1]
    first, second = (sharded / f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    tensor = load_file(first)[name]
    save_file({**load_file(second), name: tensor}, second)
    with pytest.raises(
        CheckpointError, match=rf"model-00002-of-00002\.safetensors: tensor {name} is unexpected"
    ):
        load(sharded)


def test_a_tensor_that_the_index_does_not_list(sharded, family):
    edit_index(sharded, lambda weight_map: weight_map.pop(NAMES[family][0]))
    with pytest.raises(CheckpointError, match=rf"tensor {NAMES[family][0]} is unexpected; model\.safetens"):
        load(sharded)


def test_a_tensor_that_no_shard_holds(sharded, family):
    name = NAMES[family][0]
    for file in sharded.glob("model-*.safetensors"):
        save_file({n: t for n, t in load_file(file).items() if n != name}, file)
    with pytest.raises(CheckpointError, match=rf"index\.json: tensor {name} is missing"):
        load(sharded)


def test_the_index_lists_a_tensor_that_no_file_holds(sharded):
    """Nor does the model ask for it: what the checkpoint promises is not there."""
    edit_index(
        sharded,
        lambda weight_map: weight_map.update({"vision.weight": "model-00001-of-00002.safetensors"}),
    )
    with pytest.raises(CheckpointError, match=r"index\.json: tensor vision\.weight is missing: no file"):
        load(sharded)


@pytest.mark.parametrize("target", ["../model.safetensors", "/model.safetensors", 3])
def test_an_index_that_points_elsewhere(sharded, family, target):
    edit_index(sharded, lambda weight_map: weight_map.update({NAMES[family][0]: target}))
    with pytest.raises(CheckpointError, match=r"index\.json: .*is no file of this folder"):
        load(sharded)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {}}', "[" * 100_000])
def test_an_index_that_is_none(sharded, content):
    (sharded / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        load(sharded)


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(tmp_path):
    folder = write_checkpoint(tmp_path, "llama")

    def copy_embedding(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    edit(folder, copy_embedding)
    load(folder)
    edit(folder, lambda tensors: tensors["lm_head.weight"].mul_(2))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor lm_head\.weight differs"):
        load(folder)


def test_progress_counts_every_tensor(folder):
    seen = []
    decoder = Decoder(read_config(folder), torch.float32, CPU)
    load_weights(decoder, folder, lambda *step: seen.append(step))
    total = len(named_weights(decoder))
    assert seen == [("loading weights", i + 1, total) for i in range(total)]
