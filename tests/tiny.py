"""Tiny models of both families: in memory in float64, or as checkpoint folders in the families' exact layout.

Everything that could hide behind a convenient shape is inconvenient here: heads are grouped, head_dim is not
hidden / heads, the query scale starts within a short prompt, and the adapter has unequal ranks.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor

from recguide.core import Turn
from recguide.models.adapter import Adapter, LoraRank
from recguide.models.adapter_files import save_adapter
from recguide.models.checkpoint import named_weights
from recguide.models.config import Fields, ModelConfig
from recguide.models.decoder import Decoder
from recguide.models.families import family_of
from recguide.models.layout import parts
from recguide.models.loading import Model

CPU = torch.device("cpu")
FAMILIES = ("llama", "nemotron_labs_diffusion")

SPECIAL = {1: "<s>", 2: "</s>", 10: "<|im_start|>", 11: "<|im_end|>", 12: "<think>", 13: "</think>"}
SPECIALS = 104
"""Special ids come first, like NLD's, and byte b is id 104 + b; 100 is an unnamed special, the mask."""
VOCABULARY = SPECIALS + 256

SHAPE = {
    "vocab_size": 32,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "mask_token_id": 3,
}
LLAMA: dict[str, Any] = {
    **SHAPE,
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "rope_theta": 10_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
}
NLD: dict[str, Any] = {
    **SHAPE,
    "model_type": "nemotron_labs_diffusion",
    "architectures": ["NemotronLabsDiffusionModel"],
    "auto_map": {
        "AutoConfig": "configuration_nemotron_labs_diffusion.NemotronLabsDiffusionConfig",
        "AutoModel": "modeling_nemotron_labs_diffusion.NemotronLabsDiffusionModel",
    },
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
    "sliding_window": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "block_size": 32,
    "dlm_paradigm": "bidirectional",
    "use_cache": False,
}
RAW = {"llama": LLAMA, "nemotron_labs_diffusion": NLD}

CHAT_TEMPLATE = """\
{%- set system = namespace(text='') -%}
{%- for message in messages if message.role == 'system' -%}
{%- set system.text = message.content -%}
{%- endfor -%}
{{- '<|im_start|>system\\n' + system.text + '<|im_end|>\\n' -}}
{%- for message in messages if message.role != 'system' -%}
{%- if message.role not in ('user', 'assistant') -%}
{{- raise_exception('unknown role ' + message.role) -}}
{%- endif -%}
{%- set said = message.content.split('</think>')[-1] -%}
{{- '<|im_start|>' + message.role + '\\n' + said + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' + ('<think>\\n' if enable_thinking else '<think></think>') -}}
{%- endif -%}
"""


def config_of(raw: dict[str, Any]) -> ModelConfig:
    """What the family reads from a config.json with this content."""
    fields = Fields(raw, Path("config.json"))
    return family_of(fields.text("model_type")).read(fields)


def tiny_config(family: str, **changes: Any) -> ModelConfig:
    return config_of({**RAW[family], **changes})


def tiny_model(
    family: str, *, seed: int = 0, dtype: torch.dtype = torch.float64, adapter: bool = True, **changes: Any
) -> Model:
    """Random weights, the same for the same seed; with an adapter that learned nothing."""
    config = tiny_config(family, **changes)
    return Model.random(
        config,
        seed=seed,
        dtype=dtype,
        adapter=tiny_adapter(config, seed=seed, dtype=dtype) if adapter else None,
    )


def tiny_adapter(
    config: ModelConfig,
    *,
    ranks: dict[str, int] | None = None,
    scale: float = 0.5,
    mask_embedding: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Adapter:
    """Random factors on all seven modules (or those of `ranks`, by the last component of their names)."""
    ranks = {part.short: 2 + i % 3 for i, part in enumerate(parts(config))} if ranks is None else ranks
    adapter = Adapter(
        config,
        {
            (layer, part.module): LoraRank(ranks[part.short], scale)
            for layer in range(config.layers)
            for part in parts(config)
            if part.short in ranks
        },
        mask_embedding=mask_embedding,
        mask_token_id=config.mask_token_id,
        dtype=dtype,
        device=CPU,
    )
    generator = torch.Generator().manual_seed(seed + 1)
    for weight in adapter.parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.data.copy_(noise / math.sqrt(weight.shape[0] if weight.dim() == 2 else 1))
    return adapter


def write_checkpoint(
    folder: Path,
    family: str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    adapter: bool = True,
    **changes: Any,
) -> Path:
    """A checkpoint folder as the family publishes it, with a byte tokenizer, its template and its adapter."""
    folder.mkdir(parents=True, exist_ok=True)
    native = family == "nemotron_labs_diffusion"
    special = {"vocab_size": VOCABULARY, "eos_token_id": 11, "mask_token_id": 100 if native else None}
    raw = {**RAW[family], **special, **changes}
    write_json(folder / "config.json", {name: value for name, value in raw.items() if value is not ...})
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": raw["eos_token_id"]})
    write_tokenizer(folder)
    config = config_of(raw)
    decoder = Decoder(config, dtype, CPU)
    decoder.randomise(seed)
    write_weights(folder, {n: t.contiguous() for n, t in named_weights(decoder).items()}, shards)
    if adapter and native:
        lora = tiny_adapter(config, ranks={"o_proj": 4}, scale=4.0, mask_embedding=False, dtype=torch.float32)
        save_adapter(lora, folder / "linear_spec_lora", base="tiny")
    return folder


def write_weights(folder: Path, tensors: dict[str, Tensor], shards: int = 1) -> None:
    """model.safetensors, or as many shards with their index."""
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = names[shard::shards]
        save_file({name: tensors[name] for name in mine}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(mine, file)
    size = sum(tensor.nbytes for tensor in tensors.values())
    write_json(
        folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": weight_map}
    )


def write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


def write_tokenizer(folder: Path) -> None:
    """Bytes as tokens after the special ones, and a chat template with a thinking switch."""
    names = [SPECIAL.get(i, f"<SPECIAL_{i}>") for i in range(SPECIALS)]
    alphabet = [byte_token(byte) for byte in range(256)]
    tokenizer = Tokenizer(BPE(vocab={name: i for i, name in enumerate([*names, *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>"},
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def byte_token(byte: int) -> str:
    """The stand-in of byte-level tokenizers: itself if printable, else the next code from 256."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    return chr(256 + sum(other not in printable for other in range(byte)))


def dense_attend(mask: Tensor, kv_heads: int = 2):
    """An `Attend` over the tokens of one forward alone; mask [N, N] bool, true where a query sees a key."""

    def attend(_layer: int, qkv: Tensor, rotation: Turn) -> Tensor:
        q, k, v = rotation.split(qkv, qkv.shape[1] - 2 * kv_heads, kv_heads)
        share = q.shape[1] // kv_heads
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)

    return attend


def causal_mask(count: int) -> Tensor:
    return torch.ones(count, count, dtype=torch.bool).tril()


def causal_logits(model: Model, tokens: Tensor, start: int = 0) -> Tensor:
    """Logits [N, vocab] of one causal forward over tokens [N] at positions from `start`."""
    positions = torch.arange(start, start + len(tokens))
    with torch.no_grad():
        hidden = model.decoder.hidden(
            tokens, positions, dense_attend(causal_mask(len(tokens)), model.config.kv_heads)
        )
        return model.decoder.logits(hidden)
