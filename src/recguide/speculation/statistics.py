"""What a draft's distribution says of its picks, and what a verifier's says of its certainty."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recguide.core import CANDIDATES, TokenLogprobs, Vocabulary
from recguide.speculation.field import NEVER, Field, on_device


@dataclass(frozen=True, slots=True)
class DraftStatistics:
    """[D] each: probability of the picked and of the best other token.

    `candidates` [CANDIDATES, D] are what a correction tries, the best first.
    """

    p1: Tensor
    p2: Tensor
    candidates: Tensor


@dataclass(frozen=True, slots=True)
class Leading:
    """What statistics look at in draft slots [D]: the most likely tokens and the picked one.

    Attributes:
        tokens: [D, n] most likely tokens.
        scores: [D, n] float64, their z + T·G.
        picked: [D] the picks, among `tokens` or not.
        reached: [D] float64, z + T·G of the picks.
    """

    tokens: Tensor
    scores: Tensor
    picked: Tensor
    reached: Tensor


def draft_statistics(
    field: Field, slots: Tensor, peaks: Tensor, totals: Tensor, leading: Leading, vocabulary: Vocabulary
) -> DraftStatistics:
    """Statistics of softmax(z + T·G) at slots [D] of the field.

    z is edited, not filtered; `peaks` [D] are the largest logits and `totals` [D] their `masses`. Tokens that
    are neither leading nor picked count with G = 0: for the statistics alone it is not worth computing. p2
    may be an end-of-sequence token's; a candidate is neither that, nor the picked token, nor the mask.
    """
    tokens, picked = leading.tokens, leading.picked[:, None]
    own = tokens == picked
    scores = leading.scores.masked_fill(own, NEVER)
    others, order = scores.sort(dim=1, descending=True, stable=True)
    tokens = tokens.gather(1, order)
    ends = on_device(vocabulary.eos, tokens.dtype, tokens.device)
    allowed = ~(own.gather(1, order) | torch.isin(tokens, ends))

    # All of softmax's terms, those of the tokens looked at taken out, then put back with their noise.
    shift = torch.maximum(peaks.double(), torch.maximum(leading.reached, others[:, 0]))
    looked_at = field.at(
        slots[:, None], torch.cat([leading.tokens.masked_fill(own, 0), picked], dim=1)
    ).double()
    looked_at[:, :-1].masked_fill_(own, NEVER)
    rest = totals.double() - (looked_at - peaks[:, None]).exp().sum(1)
    p1, p2 = (leading.reached - shift).exp(), (others[:, 0] - shift).exp()
    total = rest.clamp_(min=0) * (peaks - shift).exp() + (others - shift[:, None]).exp().sum(1) + p1
    best = allowed.sort(dim=1, descending=True, stable=True).indices[:, :CANDIDATES]
    # Where fewer tokens are allowed at all, no others lead; any token then serves as one to try in vain.
    candidates = tokens.gather(1, best).T.clamp(max=field.width - 1)
    return DraftStatistics(p1 / total, p2 / total, candidates)


def masses(field: Field, slots: Tensor, peaks: Tensor) -> Tensor:
    """Σ exp(z − peak) at slots [s], rising, of the field, whose largest logits are `peaks` [s]."""
    return _sums(field, slots, peaks)[0]


def masses_and_entropy(field: Field, slots: Tensor, peaks: Tensor) -> tuple[Tensor, Tensor]:
    """`masses`, and the entropy of softmax(z) in nats, [s] each."""
    total, moment = _sums(field, slots, peaks, moments=True)
    return total, total.log() - moment / total


def _sums(field: Field, slots: Tensor, peaks: Tensor, moments: bool = False) -> tuple[Tensor, Tensor]:
    """Σ exp(x) and, if wanted, Σ x·exp(x) of x = z − peak over each slot's tokens, [s] each."""
    totals: list[Tensor] = []
    firsts: list[Tensor] = []
    room: Tensor | None = None
    for x in field.shifted(slots, peaks):
        room = torch.empty_like(x) if moments and room is None else room
        terms = x.exp_() if room is None else torch.exp(x, out=room[: len(x)])
        if field.mask is not None:
            terms[:, field.mask] = 0
        totals.append(terms.sum(1))
        if moments:
            # Terms of −inf logits are 0 · −∞.
            firsts.append(x.mul_(terms).nansum(1))
    return torch.cat(totals), torch.cat(firsts or totals)


def logprobs(logits: Tensor, tokens: Tensor, k: int) -> tuple[TokenLogprobs, ...]:
    """Log-probabilities of `tokens` [W] and of the k most likely ones under the raw logits [W, V].

    Nothing is removed, edited or tempered. One read of the device, however many slots there are.
    """
    # Row by row: how PyTorch cuts a sum on a GPU, and so its last bit, depends on the number of rows.
    total = torch.cat([row.logsumexp(1, keepdim=True) for row in logits.split(1)])
    found = (logits.gather(1, tokens[:, None]) - total).double()
    if k == 0:
        return tuple(TokenLogprobs(value, {}) for (value,) in found.tolist())
    k = min(k, logits.shape[1])
    every = torch.arange(len(logits), device=logits.device)
    values, ids = Field(logits, mask=None).leaders(every, k)
    # float64 holds every token id.
    rows = torch.cat([found, (values - total).double(), ids.double()], dim=1).tolist()
    return tuple(
        TokenLogprobs(row[0], dict(zip(map(int, row[1 + k :]), row[1 : 1 + k], strict=True))) for row in rows
    )
