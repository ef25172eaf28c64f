"""Whole checkpoints through `load`, and the model as the engine sees it."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import torch
from tests.tiny import (
    CPU,
    FAMILIES,
    VOCABULARY,
    causal_mask,
    dense_attend,
    tiny_adapter,
    tiny_model,
    write_checkpoint,
    write_json,
)

from recguide.attention.packing import pack
from recguide.core import CheckpointError, ParameterError, Row
from recguide.models import loading
from recguide.models.adapter_files import save_adapter
from recguide.models.families import read_config
from recguide.models.loading import load, resolve_device, resolve_dtype

NLD = "nemotron_labs_diffusion"


@pytest.fixture(scope="module")
def nld(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("nld") / "NLD-tiny", NLD)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("llama") / "Llama-tiny", "llama")


def test_a_published_layout_loads_and_runs(nld):
    model = load(str(nld))
    assert model.name == "NLD-tiny"
    assert model.adapter is not None
    assert {lora.scale for lora in model.adapter.ranks.values()} == {4.0}
    assert model.vocabulary.size == VOCABULARY
    assert model.vocabulary.eos == (11,)
    assert model.vocabulary.mask == 100
    assert model.vocabulary.think == (12, 13)
    assert model.max_positions == 2048
    assert model.kv_shape.dtype == torch.float32
    assert not model.diffusion_adapter
    prompt = model.tokenizer.chat([{"role": "user", "content": "hi"}], enable_thinking=True)
    rows = [
        Row(0, 0, tuple(prompt), causal=True, wanted=(len(prompt) - 1,)),
        Row(
            0,
            0,
            (prompt[-1], 100, 100),
            causal=False,
            stem=len(prompt),
            adapter=True,
            masked=(1, 2),
            wanted=(1, 2),
        ),
    ]
    batch = pack(rows, [[0, 1, 2, 3, 4, 5, 6, 7]], 16, CPU)
    count = len(batch.tokens)
    mask = causal_mask(count)
    mask[len(prompt) :, len(prompt) :] = True
    with torch.no_grad():
        logits = model.forward(batch, dense_attend(mask))
        plain = load(str(nld), adapter=None).forward(batch, dense_attend(mask))
    assert logits.shape == (3, VOCABULARY)
    assert logits.dtype == torch.float32
    assert torch.equal(logits[0], plain[0])
    assert (logits[1:] - plain[1:]).abs().max() > 1e-3


def test_who_can_draft(nld, llama, tmp_path):
    """NLD by itself, a Llama by an adapter; block diffusion then needs the adapter too."""
    assert load(str(nld), adapter=None).vocabulary.mask == 100
    assert load(str(llama)).adapter is None
    assert load(str(llama)).vocabulary.mask is None
    assert not load(str(llama)).diffusion_adapter
    adapter = tiny_adapter(read_config(llama))
    adapter.mask_token_id = 16
    save_adapter(adapter, tmp_path / "lora", base="tiny")
    model = load(str(llama), adapter=str(tmp_path / "lora"))
    assert model.vocabulary.mask == 16
    assert model.diffusion_adapter


def test_wanted_slots_alone_reach_the_head():
    model = tiny_model("llama")
    seen = []

    class Counting(torch.nn.Module):
        def __init__(self, decoder):
            super().__init__()
            self.hidden, self.ops = decoder.hidden, decoder.ops
            self.logits = lambda hidden: seen.append(len(hidden)) or decoder.logits(hidden)

    fields = {
        name: getattr(model, name) for name in ("name", "config", "adapter", "tokenizer", "fingerprint")
    }
    spied = loading.Model(**fields, decoder=Counting(model.decoder))
    batch = pack([Row(0, 0, tuple(range(4, 12)), causal=True, wanted=(7, 2))], [[0]], 16, CPU)
    with torch.no_grad():
        found = spied.forward(batch, dense_attend(causal_mask(8)))
        whole = model.decoder.logits(
            model.decoder.hidden(batch.tokens, batch.positions, dense_attend(causal_mask(8)))
        )
    assert seen == [2]
    assert torch.allclose(found, whole[[7, 2]])


def test_a_chosen_adapter_and_none(nld, tmp_path):
    adapter = tiny_adapter(read_config(nld), dtype=torch.float32)
    save_adapter(adapter, tmp_path / "mine", base="tiny")
    model = load(str(nld), adapter=str(tmp_path / "mine"))
    assert len(model.adapter.ranks) == 14
    assert load(str(nld), adapter=None).adapter is None
    with pytest.raises(ParameterError, match="adapter: "):
        load(str(nld), adapter=str(tmp_path / "absent"))


def test_an_empty_adapter_is_not_the_working_directory(nld, tmp_path, monkeypatch):
    save_adapter(tiny_adapter(read_config(nld), dtype=torch.float32), tmp_path, base="tiny")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match="adapter: ''"):
        load(str(nld), adapter="")


def test_sizes_that_no_memory_holds_name_the_config(tmp_path):
    """2^24 · 2^24 · 4 bytes are more than a process can address, so every allocator refuses."""
    folder = write_checkpoint(tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, "vocab_size": 2**24, "hidden_size": 2**24})
    with pytest.raises(CheckpointError, match=r"config\.json asks for weights that do not fit on cpu"):
        load(str(folder))


def test_the_demo_model_takes_the_shipped_adapter(llama, tmp_path, monkeypatch):
    monkeypatch.setattr(loading.sources, "resolve", lambda *_: llama)
    monkeypatch.setattr(loading, "SHIPPED_ADAPTERS", tmp_path)
    assert load("smollm2-135m").adapter is None
    adapter = tiny_adapter(read_config(llama))
    adapter.mask_token_id = 16
    save_adapter(adapter, tmp_path / "smollm2-135m", base="tiny")
    model = load("smollm2-135m")
    assert model.name == "smollm2-135m"
    assert model.vocabulary.mask == 16
    assert load("smollm2-135m", adapter=None).adapter is None
    assert load(str(llama)).adapter is None


def test_a_base_checkpoint_has_no_adapter(tmp_path):
    folder = write_checkpoint(tmp_path, NLD, adapter=False)
    model = load(str(folder))
    assert model.adapter is None
    assert model.vocabulary.mask == 100


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_fingerprints_tell_models_and_adapters_apart(tmp_path, family, shards):
    first = write_checkpoint(tmp_path / "a", family, shards=shards)
    elsewhere = shutil.copytree(first, tmp_path / "b")
    other_weights = write_checkpoint(tmp_path / "c", family, seed=1, shards=shards)
    other_config = write_checkpoint(tmp_path / "d", family, shards=shards, rms_norm_eps=1e-6)
    prints = [load(str(folder)).fingerprint for folder in (first, other_weights, other_config)]
    assert len(set(prints)) == 3
    assert load(str(elsewhere)).fingerprint == prints[0]
    if family == NLD:
        assert load(str(first), adapter=None).fingerprint not in prints


def test_python_of_a_checkpoint_is_never_executed(tmp_path):
    folder = write_checkpoint(tmp_path / "evil", NLD)
    trap = f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise SystemExit\n"
    for name in ("configuration", "modeling", "tokenization"):
        (folder / f"{name}_nemotron_labs_diffusion.py").write_text(trap)
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": '
        '["tokenization_nemotron_labs_diffusion.Evil", "tokenization_nemotron_labs_diffusion.Evil"]}}'
    )
    model = load(str(folder))
    assert model.tokenizer.chat([{"role": "user", "content": "hi"}])
    assert not (tmp_path / "ran").exists()
    assert not any("nemotron_labs_diffusion" in name and "evil" in name for name in sys.modules)


@pytest.mark.parametrize("mask", [-1, VOCABULARY, None])
def test_a_wrong_mask_token(tmp_path, mask):
    folder = write_checkpoint(tmp_path, NLD)
    config = (folder / "config.json").read_text()
    wrong = "null" if mask is None else str(mask)
    (folder / "config.json").write_text(config.replace('"mask_token_id": 100', f'"mask_token_id": {wrong}'))
    with pytest.raises(CheckpointError, match=r"config\.json, field mask_token_id"):
        load(str(folder))


@pytest.mark.parametrize("mask", [1, 11])
def test_a_mask_token_that_has_another_meaning(tmp_path, mask):
    folder = write_checkpoint(tmp_path, NLD)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"mask_token_id": 100', f'"mask_token_id": {mask}'))
    with pytest.raises(CheckpointError, match=rf"config\.json, field mask_token_id: {mask} "):
        load(str(folder), adapter=None)


def test_a_mask_token_that_is_ordinary_text(tmp_path):
    folder = write_checkpoint(tmp_path, NLD)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"mask_token_id": 100', '"mask_token_id": 201'))
    with pytest.raises(CheckpointError, match=r"mask_token_id 201 .* ordinary"):
        load(str(folder), adapter=None)


def test_a_tokenizer_of_another_size(tmp_path):
    small = write_checkpoint(tmp_path / "small", "llama", vocab_size=VOCABULARY - 1, mask_token_id=None)
    with pytest.raises(CheckpointError, match=rf"tokenizer\.json has {VOCABULARY} tokens, but the embedding"):
        load(str(small))
    padded = write_checkpoint(tmp_path / "padded", "llama", vocab_size=VOCABULARY + 24)
    assert load(str(padded)).vocabulary.size == VOCABULARY + 24
    foreign = write_checkpoint(tmp_path / "foreign", "llama", vocab_size=500, eos_token_id=450)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json .* ends texts with token 450"):
        load(str(foreign))


def test_precision_and_device(nld):
    model = load(str(nld), dtype="bfloat16", device="cpu")
    assert model.decoder.dtype == model.kv_shape.dtype == torch.bfloat16
    assert resolve_dtype("auto", torch.device("cpu")) == torch.float32
    assert resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert resolve_dtype(torch.float64, CPU) == torch.float64
    assert resolve_device("cpu") == CPU
    for wrong in ("int8", "fp32", torch.int32):
        with pytest.raises(ParameterError, match="dtype: "):
            resolve_dtype(wrong, CPU)
    for wrong in ("gpu", "mps", "cuda:99"):
        with pytest.raises(ParameterError, match="device: "):
            resolve_device(wrong)
