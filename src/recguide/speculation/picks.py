"""Picks: which token stands at a position (architecture §3, Picks).

A pick is a pure function of the slot's logits, its request and its position. Plain decoding, drafts and
verification all come here, so acceptance is token equality and speculative text is what plain decoding emits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recguide.core import RecGuideError, SamplingParams, Vocabulary
from recguide.speculation.edits import NEVER, edit, edits_logits, validate
from recguide.speculation.leaders import first_largest
from recguide.speculation.noise import LuckyTokens
from recguide.speculation.race import Race, race
from recguide.speculation.statistics import draft_statistics, entropy, logprobs

__all__ = ["BadLogits", "PickRow", "Picks", "logprobs", "pick", "validate"]


class BadLogits(RecGuideError):  # noqa: N818 - it names what was found
    """Logits that no token can be picked from; `rows` are indices of the PickRows they belong to."""

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__(f"logits: NaN, +inf, or nothing finite in rows {list(rows)}")
        self.rows = tuple(rows)


@dataclass(frozen=True, slots=True)
class PickRow:
    """What the picks of consecutive slots depend on, beside their logits.

    Attributes:
        params: the request's; the sampling seed is set if the temperature is not 0.
        prompt: the request's prompt tokens.
        history: emitted tokens that the first slot's pick follows.
        extra: slot i follows `history` + `extra[:i]`; () where all slots share `history`.
        position: absolute position of the first slot's picked token; slot i picks for `position` + i.
        count: slots.
        draft: whether these are draft slots, which get statistics, or causal ones, which get an entropy.
    """

    params: SamplingParams
    prompt: Sequence[int]
    history: Sequence[int]
    extra: Sequence[int]
    position: int
    count: int
    draft: bool


@dataclass(frozen=True, slots=True)
class Picks:
    """One entry for each of `W` slots, in the order of their rows.

    Attributes:
        tokens: [W] int64.
        p1, p2: [W] probability of the picked and of the best other token, 0 in causal slots.
        candidates: [W] int64, best token beside the picked one, mask and EOS; 0 in causal slots.
        entropy: [W] nats of the raw logits without the mask token, 0 in draft slots.
    """

    tokens: Tensor
    p1: Tensor
    p2: Tensor
    candidates: Tensor
    entropy: Tensor


def pick(
    logits: Tensor, rows: Sequence[PickRow], vocabulary: Vocabulary, luck: LuckyTokens | None = None
) -> Picks:
    """Picks the tokens of all slots of a forward.

    Args:
        logits: [W, V], the slots of `rows` one after another; left as they are.
        rows: one for each run of slots.
        vocabulary: its mask token is never picked.
        luck: remembers lucky tokens between calls, which spares sampled slots most of their noise.

    Raises BadLogits, naming every row with NaN or infinite logits.
    """
    owners = [row for row in rows for _ in range(row.count)]
    if len(owners) != len(logits):
        raise RecGuideError(f"logits: {len(logits)} given for {len(owners)} slots")
    causal = [i for i, row in enumerate(owners) if not row.draft]
    drafts = [i for i, row in enumerate(owners) if row.draft]

    z = logits if vocabulary.mask is None else _without(logits, vocabulary.mask)
    certainty = logits.new_zeros(len(owners), dtype=torch.float32)
    if causal:
        certainty[causal] = entropy(_some(z, causal)).float()
    z = _edited(z, logits, rows, vocabulary)
    peaks, tokens = first_largest(z)
    _check(peaks, rows)
    drawn = [i for i, row in enumerate(owners) if row.params.temperature > 0]
    if drawn:
        params = [owners[i].params for i in drawn]
        positions = [row.position + offset for row in rows for offset in range(row.count)]
        luck = luck or LuckyTokens(logits.shape[1], device=logits.device)
        drawing = race(_some(z, drawn), params, [positions[i] for i in drawn], luck)
        tokens[drawn] = drawing.tokens
        if any(owners[i].draft for i in drawn):
            z = _with_noise(z, drawing, drawn, params)

    p1, p2, candidates = torch.zeros_like(certainty), torch.zeros_like(certainty), torch.zeros_like(tokens)
    if drafts:
        found = draft_statistics(_some(z, drafts), tokens[drafts], vocabulary)
        p1[drafts], p2[drafts], candidates[drafts] = found.p1.float(), found.p2.float(), found.candidates
    return Picks(tokens, p1, p2, candidates, certainty)


def _some(z: Tensor, slots: Sequence[int]) -> Tensor:
    """The slots' logits, as a view if they follow one another."""
    if slots[-1] - slots[0] == len(slots) - 1:
        return z[slots[0] : slots[-1] + 1]
    return z[torch.tensor(slots, device=z.device)]


def _without(logits: Tensor, token: int) -> Tensor:
    z = logits.clone()
    z[:, token] = NEVER
    return z


def _edited(z: Tensor, logits: Tensor, rows: Sequence[PickRow], vocabulary: Vocabulary) -> Tensor:
    """Edits the rows that ask for it; z itself, or a copy where z is still the caller's `logits`."""
    start = 0
    for row in rows:
        end = start + row.count
        if edits_logits(row.params):
            z = z.clone() if z is logits else z
            emitted = row.position - len(row.prompt)
            edit(z[start:end], row.params, vocabulary, row.prompt, row.history, row.extra, emitted)
        start = end
    return z


def _check(peaks: Tensor, rows: Sequence[PickRow]) -> None:
    """Raises BadLogits for slots whose largest logit [W] is not finite."""
    finite = peaks.isfinite()
    if bool(finite.all()):
        return
    owners = torch.arange(len(rows)).repeat_interleave(torch.tensor([row.count for row in rows]))
    raise BadLogits(owners[~finite.cpu()].unique().tolist())


def _with_noise(z: Tensor, drawing: Race, drawn: Sequence[int], params: Sequence[SamplingParams]) -> Tensor:
    """A copy of z with T·G added for the leading tokens and the winner of every drawn slot.

    The others keep G = 0: only statistics see this, and they must not depend on which tokens the race looked
    at.
    """
    ids = torch.cat([drawing.ids, drawing.tokens[:, None]], dim=1)
    noise = torch.cat([drawing.noise, drawing.own[:, None]], dim=1)
    scale = torch.tensor([slot.temperature for slot in params], dtype=noise.dtype, device=z.device)
    slots = torch.tensor(drawn, device=z.device)[:, None]
    noisy = z.clone()
    noisy[slots, ids] = (z[slots, ids].double() + scale[:, None] * noise).to(z.dtype)
    return noisy
