"""What a draft's distribution says of its picks, and what a verifier's says of its certainty."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recguide.core import TokenLogprobs, Vocabulary
from recguide.speculation.leaders import leaders


@dataclass(frozen=True, slots=True)
class DraftStatistics:
    """[D] each: probability of the picked and of the best other token, and what a correction tries."""

    p1: Tensor
    p2: Tensor
    candidates: Tensor


def draft_statistics(z: Tensor, picked: Tensor, vocabulary: Vocabulary) -> DraftStatistics:
    """Statistics of softmax(z), z [D, V] being logits + T·G without the mask token, for picks [D].

    p2 may be an end-of-sequence token's; the candidate is neither that, nor the picked token, nor the mask.
    """
    count = min(2 + len(vocabulary.eos), z.shape[1])
    values, ids = leaders(z, count)
    total = z.logsumexp(1)
    other = ids != picked[:, None]
    first = other.long().argmax(1, keepdim=True)
    allowed = other & ~torch.isin(ids, torch.tensor(vocabulary.eos, dtype=torch.int64, device=z.device))
    free = allowed.long().argmax(1, keepdim=True)
    return DraftStatistics(
        p1=(z.gather(1, picked[:, None]).squeeze(1) - total).exp(),
        p2=(values.gather(1, first).squeeze(1) - total).exp(),
        candidates=ids.gather(1, free).squeeze(1),
    )


def entropy(z: Tensor) -> Tensor:
    """Entropy of softmax(z) in nats, [C] for z [C, V]; −inf logits count for nothing."""
    # Below −200 a probability is 0 and so is its share; clamping spares 0 · ∞.
    x = (z - z.amax(1, keepdim=True)).clamp_(min=-200.0)
    p = x.exp()
    total = p.sum(1)
    return total.log() - p.mul_(x).sum(1) / total


def logprobs(logits: Tensor, tokens: Tensor, k: int) -> tuple[TokenLogprobs, ...]:
    """Log-probabilities of `tokens` [W] and of the k most likely ones under the raw logits [W, V].

    Nothing is removed, edited or tempered.
    """
    total = logits.logsumexp(1, keepdim=True)
    own = (logits.gather(1, tokens[:, None]) - total).squeeze(1).tolist()
    if k == 0:
        return tuple(TokenLogprobs(value, {}) for value in own)
    values, ids = leaders(logits, min(k, logits.shape[1]))
    tops = zip(ids.tolist(), (values - total).tolist(), strict=True)
    return tuple(
        TokenLogprobs(value, dict(zip(*top, strict=True))) for value, top in zip(own, tops, strict=True)
    )
