"""What a request's parameters do to its logits before the temperature (architecture §3, Picks).

An edit depends on the slot's own history and on nothing else, element by element, so a slot inside a
verified block and the plain decoding of its token get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recguide.core import ParameterError, SamplingParams, Vocabulary, opens_thinking
from recguide.speculation.field import NEVER, on_device


def stop_tokens(params: SamplingParams, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Token ids that end a request."""
    return (*(() if params.ignore_eos else vocabulary.eos), *params.stop_token_ids)


def validate(params: SamplingParams, vocabulary: Vocabulary) -> None:
    """Raises ParameterError for what this vocabulary cannot honour."""
    for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        strangers = [token for token in ids if not 0 <= token < vocabulary.size]
        if strangers:
            raise ParameterError(name, f"token ids must lie in [0, {vocabulary.size}), got {strangers}")
    if (
        params.min_tokens > 0
        and len({*stop_tokens(params, vocabulary), vocabulary.mask}) > vocabulary.size - 1
    ):
        raise ParameterError(
            "min_tokens", "every token is a stop token, so none may come before them; lower it"
        )
    if vocabulary.mask is not None and vocabulary.mask in params.logit_bias:
        raise ParameterError(
            "logit_bias", f"token {vocabulary.mask} is the mask token, which is never emitted"
        )
    if params.thinking_budget is not None and vocabulary.think is None:
        raise ParameterError("thinking_budget", "this model's vocabulary has no <think> tokens; leave it out")


def edits_logits(params: SamplingParams) -> bool:
    """Whether `edit` can change anything."""
    return (
        params.penalised
        or bool(params.logit_bias)
        or params.min_tokens > 0
        or params.thinking_budget is not None
        or params.structure is not None
    )


def edit(
    z: Tensor,
    params: SamplingParams,
    vocabulary: Vocabulary,
    prompt: Sequence[int],
    history: Sequence[int],
    extra: Sequence[int],
    emitted: int,
    allowed: Tensor | None = None,
) -> None:
    """Penalties, logit_bias, min_tokens, grammar and thinking budget, in place on a row's logits z.

    Shapes: z [slots, V].
    Slot i follows `history` + `extra[:i]`; without `extra` all slots share `history`. `emitted` is the number
    of tokens emitted before slot 0's. `allowed` [slots, V] bool is what the request's grammar allows.
    """
    if params.penalised:
        _penalise(z, params, prompt, history, extra)
    if params.logit_bias:
        ids = on_device(list(params.logit_bias), torch.int64, z.device)
        z[:, ids] += on_device(list(params.logit_bias.values()), z.dtype, z.device)
    young = min(len(z), params.min_tokens - emitted)
    if young > 0:
        _forbid_ends(z[:young], stop_tokens(params, vocabulary), None if allowed is None else allowed[:young])
    if allowed is not None:
        z.masked_fill_(~allowed, NEVER)
    if params.thinking_budget is not None:
        _close_thinking(z, params.thinking_budget, vocabulary, prompt, history, extra, emitted)


def _forbid_ends(z: Tensor, stops: Sequence[int], allowed: Tensor | None) -> None:
    """No stop token, unless the grammar allows nothing else: what is complete cannot go on."""
    ends = on_device(stops, torch.int64, z.device)
    if allowed is None:
        z[:, ends] = NEVER
        return
    others = allowed.clone()
    others[:, ends] = False
    z[:, ends] = z[:, ends].masked_fill(others.any(1, keepdim=True), NEVER)


def _penalise(
    z: Tensor, params: SamplingParams, prompt: Sequence[int], history: Sequence[int], extra: Sequence[int]
) -> None:
    """repetition_penalty by prompt and history, then frequency and presence by history alone.

    Counts are made first and applied once: subtracting token by token would round differently in each slot.
    """
    extra = extra[: len(z) - 1]
    seen = torch.tensor([*prompt, *history, *extra], dtype=torch.int64)
    ids, at = seen.unique(return_inverse=True)
    counts = torch.zeros(len(z), len(ids), dtype=torch.int64)
    counts += torch.bincount(at[len(prompt) : len(prompt) + len(history)], minlength=len(ids))
    for i, index in enumerate(at[len(prompt) + len(history) :].tolist()):
        counts[i + 1 :, index] += 1
    prompted = torch.zeros(len(ids), dtype=torch.bool)
    prompted[at[: len(prompt)]] = True
    repeated = (prompted | (counts > 0)).to(z.device, non_blocking=True)
    counts = counts.to(z.dtype).to(z.device, non_blocking=True)
    ids = ids.to(z.device, non_blocking=True)

    old = z[:, ids]
    factor = params.repetition_penalty
    scaled = torch.where(old > 0, old / factor, old * factor)
    penalty = counts * params.frequency_penalty + (counts > 0) * params.presence_penalty
    z[:, ids] = torch.where(repeated, scaled, old) - penalty


def _close_thinking(
    z: Tensor,
    budget: int,
    vocabulary: Vocabulary,
    prompt: Sequence[int],
    history: Sequence[int],
    extra: Sequence[int],
    emitted: int,
) -> None:
    """Allows </think> alone at the slot that follows `budget` emitted tokens, unless it has been said.

    Only a <think> that the prompt opened is closed. Later slots need no rule: they come after this one.
    """
    if vocabulary.think is None:
        raise ParameterError("thinking_budget", "this model's vocabulary has no <think> tokens; leave it out")
    closing = vocabulary.think[1]
    slot = budget - emitted
    if not 0 <= slot < len(z) or closing in history or closing in extra[:slot]:
        return
    if opens_thinking(prompt, vocabulary.think):
        z[slot] = NEVER
        z[slot, closing] = 0.0
