"""transformers' `generate` over the very tensors of one of our models: the peer at hand everywhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from recguide.models.checkpoint import named_weights
from recguide.models.config import LinearScaling, Llama3Scaling, ModelConfig, YarnScaling
from recguide.models.loading import Model


@dataclass(frozen=True, slots=True)
class PeerRun:
    """What `generate` made of some prompts.

    Attributes:
        tokens: [C, new] the new token ids.
        step_ms: wall time of every decoding step but the first.
    """

    tokens: Tensor
    step_ms: tuple[float, ...]


class Peer:
    """Greedy `generate` with a static cache, and a compiled decoding step if `mode` names one.

    Args:
        model: its weights are shared, not copied.
        mode: of torch.compile; None runs uncompiled, as a CPU must.
    """

    def __init__(self, model: Model, *, mode: str | None = "reduce-overhead") -> None:
        self._model = _sharing(model)
        self._device = model.kv_shape.device
        self._mode = mode

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> PeerRun:
        """Continues prompts of one length by exactly `new_tokens` tokens each.

        The first call for a number and length of prompts compiles.
        """
        from transformers import GenerationConfig, StoppingCriteriaList

        clock = _Clock()
        ids = torch.tensor(prompts, device=self._device)
        config = GenerationConfig(
            do_sample=False, max_new_tokens=new_tokens, cache_implementation="static", **self._compiling()
        )
        # The model's own configuration would bring its end-of-sequence ids.
        self._model.generation_config = config
        with torch.inference_mode():
            found: Tensor = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=config,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        # From the second stamp on, the wait for the step before lies between two stamps.
        step_ms = tuple(1e3 * (after - before) for before, after in pairwise(clock.stamps[1:]))
        return PeerRun(found[:, ids.shape[1] :], step_ms)

    def _compiling(self) -> dict[str, Any]:
        from transformers import CompileConfig

        if self._mode is None:
            return {"disable_compile": True}
        return {"compile_config": CompileConfig(mode=self._mode)}


class _Clock:
    """A stopping criterion that never stops, and notes when it was asked: once a step."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def __call__(self, input_ids: Tensor, *_: object, **__: object) -> Tensor:
        self.stamps.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _sharing(model: Model) -> Any:  # noqa: ANN401  transformers' classes have no common useful type
    """Their causal language model of the same shape with our tensors in it."""
    ours, config = model.decoder, model.config
    model_class, theirs = _their_class(config)
    with torch.device("meta"):
        made = model_class(theirs)
    weights = {_their_name(name): weight for name, weight in named_weights(ours).items()}
    weights["lm_head.weight"] = ours.head.data
    made.load_state_dict(weights, strict=True, assign=True)
    # Its frequencies are a buffer that no checkpoint holds.
    made.model.rotary_emb = type(made.model.rotary_emb)(config=theirs).to(ours.device)
    return made.eval().requires_grad_(False)


def _their_name(name: str) -> str:
    for ours, theirs in (("encoder.", "model."), ("diffusion_head.", "lm_head.")):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def _their_class(config: ModelConfig) -> tuple[Any, Any]:
    """(model class, its configuration): Ministral 3, which NLD is in causal mode, or Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM, Ministral3Config, Ministral3ForCausalLM

    fields: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.tie_embeddings,
        "rope_parameters": _their_rope(config),
        "attn_implementation": "sdpa",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if config.query_scale is None:
        return LlamaForCausalLM, LlamaConfig(**fields)
    return Ministral3ForCausalLM, Ministral3Config(sliding_window=None, **fields)


def _their_rope(config: ModelConfig) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope.theta}
    match config.rope.scaling:
        case None:
            pass
        case LinearScaling(factor=factor):
            rope |= {"rope_type": "linear", "factor": factor}
        case Llama3Scaling() as scaling:
            rope |= {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_positions,
            }
        case YarnScaling() as scaling:
            rope |= {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_max_positions,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "mscale": scaling.mscale,
                "mscale_all_dim": scaling.mscale_all_dim,
                "attention_factor": scaling.attention_factor,
                "truncate": scaling.truncate,
            }
    if config.query_scale is not None:
        rope |= {
            "llama_4_scaling_beta": config.query_scale.beta,
            "original_max_position_embeddings": config.query_scale.original_max_positions,
        }
    return rope
