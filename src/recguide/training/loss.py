"""The draft loss: cross-entropy with mixed targets, without ever holding the logits of a whole step.

Logits of a chunk of slots are made, turned into losses and into the gradient of the hidden states at once,
and dropped. The head is frozen, so nothing else needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from recguide.models.ops.torch_ops import head_logits
from recguide.training.config import LossConfig


class ChunkOutcome(NamedTuple):
    """Losses of a chunk of slots: [M] each, and the gradient by the logits [M, vocab] in `precision`."""

    hard: Tensor
    soft: Tensor
    hit: Tensor
    gradient: Tensor


class Outcome(NamedTuple):
    """Per slot, [M]: the loss (differentiable), −log p of the label, KL to the model, picked or not."""

    loss: Tensor
    hard: Tensor
    soft: Tensor
    hit: Tensor


ChunkFunction = Callable[..., ChunkOutcome]


def chunk_outcome(
    student: Tensor,
    teacher: Tensor,
    labels: Tensor,
    hard: float,
    temperature: float,
    mask_token: int,
    precision: torch.dtype,
) -> ChunkOutcome:
    """Losses and logit gradients of logits [M, vocab] float32 against labels [M] and the model's own logits.

    The mask token takes part in neither distribution, as in picks. The gradient of
    hard · CE(label) + (1 − hard) · KL(teacher ‖ student) is softmax − hard · onehot − (1 − hard) · teacher.
    """
    column = torch.arange(student.shape[1], device=student.device)[None]
    allowed = column != mask_token
    logp = torch.log_softmax(student.masked_fill(~allowed, -1e9), -1)
    logq = torch.log_softmax((teacher / temperature).masked_fill(~allowed, -1e9), -1)
    q = logq.exp()
    picked = logp.gather(1, labels[:, None]).squeeze(1)
    gradient = logp.exp() - hard * (column == labels[:, None]).to(logp.dtype) - (1 - hard) * q
    return ChunkOutcome(
        hard=-picked,
        soft=(q * (logq - logp).masked_fill(~allowed, 0.0)).sum(-1),
        hit=picked >= logp.amax(-1),
        gradient=gradient.to(precision),
    )


@dataclass(frozen=True, slots=True)
class DraftLoss:
    """Per-slot losses of drafted hidden states.

    Attributes:
        head: [vocab, hidden], frozen.
        chunk: slots whose logits exist at once.
        function: `chunk_outcome`, or its compiled form.
    """

    head: Tensor
    config: LossConfig
    mask_token: int
    chunk: int
    function: ChunkFunction = chunk_outcome

    def __call__(self, hidden: Tensor, teacher: Tensor, labels: Tensor) -> Outcome:
        """hidden [M, hidden] of the draft, teacher [M, hidden] of the model before each label, labels [M]."""
        outcome = cast("Outcome", _ChunkedLoss.apply(hidden, teacher, labels, self))
        return Outcome(*outcome)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, teacher: Tensor, labels: Tensor, settings: DraftLoss) -> Any:  # noqa: ANN401
        config, head = settings.config, settings.head
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        gradient = torch.empty_like(hidden)
        for start in range(0, hidden.shape[0], settings.chunk):
            here = slice(start, start + settings.chunk)
            outcome = settings.function(
                head_logits(hidden[here], head),
                head_logits(teacher[here], head),
                labels[here],
                config.hard,
                config.teacher_temperature,
                settings.mask_token,
                head.dtype,
            )
            torch.mm(outcome.gradient, head, out=gradient[here])
            parts.append((outcome.hard, outcome.soft, outcome.hit))
        hard, soft, hit = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(gradient)
        loss = config.hard * hard + (1 - config.hard) * soft
        ctx.mark_non_differentiable(hard, soft, hit)
        return loss, hard, soft, hit

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ANN401
        (saved,) = ctx.saved_tensors
        return (gradients[0][:, None] * saved).to(saved.dtype), None, None, None


def slot_weights(hard: Tensor, ahead: Tensor, first: Tensor, valid: Tensor, config: LossConfig) -> Tensor:
    """Weights of slots [M], no gradient; see `LossConfig`.

    Args:
        hard: [M] −log p of the labels.
        ahead: [M] tokens a slot looks ahead: 1 for the first unknown token.
        first: [M] index of the first slot of each slot's block.
        valid: [M] bool, slots that have a label.
    """
    cost = torch.where(valid, hard.detach(), torch.zeros_like(hard)).double()
    before = cost.cumsum(0) - cost
    # −log p summed over the earlier slots of the block; differences of a running sum need double precision.
    reached = torch.exp(-(before - before[first])).to(hard.dtype)
    decayed = torch.exp(-(ahead.to(hard.dtype) - 1) / config.decay)
    return torch.where(valid, (1 - config.reach) * decayed + config.reach * reached, torch.zeros_like(hard))
