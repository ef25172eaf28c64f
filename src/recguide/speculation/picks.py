"""Picks: which token stands at a position (architecture §3, Picks).

A pick is a pure function of the slot's logits, its request and its position. Plain decoding, drafts and
verification all come here, so acceptance is token equality and speculative text is what plain decoding emits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite

import torch
from torch import Tensor
from torch.nn.functional import pad

from recguide.core import CANDIDATES, RecGuideError, SamplingParams, Vocabulary
from recguide.speculation.edits import edit, edits_logits, validate
from recguide.speculation.field import Field, on_device
from recguide.speculation.grammar import Allowed
from recguide.speculation.noise import LuckyTokens
from recguide.speculation.race import Lane, Race, race
from recguide.speculation.statistics import Leading, draft_statistics, logprobs, masses, masses_and_entropy

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
        allowed: what the request's grammar allows at each slot; None allows everything.
    """

    params: SamplingParams
    prompt: Sequence[int]
    history: Sequence[int]
    extra: Sequence[int]
    position: int
    count: int
    draft: bool
    allowed: Allowed | None = None


@dataclass(frozen=True, slots=True)
class Picks:
    """Of each of `W` slots, in the order of their rows.

    Attributes:
        tokens: [W] int64.
        p1, p2: [W] probability of the picked and of the best other token, 0 in causal slots.
        candidates: [CANDIDATES, W] int64, the best token beside the picked one, mask and EOS, then the second
            best; 0 in causal slots.
        entropy: [W] nats of the raw logits without the mask token, 0 in draft slots.
        logprobs: [W] log-probability of the picked token under the raw logits.
        bad: [W] bool, logits that no token can be picked from: NaN, +inf or nothing finite. The slot's other
            entries mean nothing then. Only pickers on a device say it here, `pick` raises.
    """

    tokens: Tensor
    p1: Tensor
    p2: Tensor
    candidates: Tensor
    entropy: Tensor
    logprobs: Tensor
    bad: Tensor

    def padded(self, slots: int) -> Picks:
        """The same picks followed by zeros, for `slots` slots in all."""
        beyond = slots - len(self.tokens)
        return Picks(*(pad(getattr(self, field.name), (0, beyond)) for field in fields(self)))


def pick(
    logits: Tensor, rows: Sequence[PickRow], vocabulary: Vocabulary, luck: LuckyTokens | None = None
) -> Picks:
    """Picks the tokens of all slots of a forward.

    Args:
        logits: [W, V], the slots of `rows` one after another; left as they are.
        rows: one for each run of slots.
        vocabulary: its mask token is never picked.
        luck: remembers lucky tokens between calls, which spares sampled slots most of their noise on a CPU.

    Raises BadLogits, naming every row with NaN or infinite logits.
    """
    owners = [row for row in rows for _ in range(row.count)]
    if len(owners) != len(logits):
        raise RecGuideError(f"logits: {len(logits)} given for {len(owners)} slots")
    raw = Field(logits, vocabulary.mask)
    peaks, tokens = raw.first()
    certainty, totals = torch.zeros_like(peaks, dtype=torch.float32), torch.zeros_like(peaks)
    causal = _indices([not row.draft for row in owners], logits.device)
    if len(causal):
        totals[causal], nats = masses_and_entropy(raw, causal, peaks[causal])
        certainty[causal] = nats.float()
    drafted = _indices([row.draft for row in owners], logits.device)
    if len(drafted):
        totals[drafted] = masses(raw, drafted, peaks[drafted])
    whole = peaks + totals.log()
    if vocabulary.mask is not None:
        whole = torch.logaddexp(whole, logits[:, vocabulary.mask])
    field = _edited(raw, logits, rows, vocabulary)
    if field is not raw:
        peaks, tokens = field.first()
    _check(peaks, rows)
    if field is not raw and len(drafted):
        totals[drafted] = masses(field, drafted, peaks[drafted])

    drafts: list[tuple[Tensor, Leading]] = []
    greedy = _indices([row.draft and row.params.temperature == 0 for row in owners], logits.device)
    if len(greedy):
        drafts.append((greedy, _leading(field, greedy, peaks, tokens, vocabulary)))
    positions = [row.position + offset for row in rows for offset in range(row.count)]
    lanes = [Lane(i, row.params, positions[i]) for i, row in enumerate(owners) if row.params.temperature > 0]
    if lanes:
        on_cpu = logits.device.type == "cpu"
        drawing = race(field, lanes, (luck or LuckyTokens(vocabulary.size)) if on_cpu else None)
        tokens[on_device([lane.slot for lane in lanes], torch.int64, logits.device)] = drawing.winners
        drafts.append(_leading_drawn(drawing, lanes, owners))

    p1, p2 = torch.zeros_like(certainty), torch.zeros_like(certainty)
    candidates = tokens.new_zeros(CANDIDATES, len(tokens))
    for slots, leading in drafts:
        if len(slots):
            found = draft_statistics(field, slots, peaks[slots], totals[slots], leading, vocabulary)
            p1[slots], p2[slots] = found.p1.float(), found.p2.float()
            candidates[:, slots] = found.candidates
    own = (logits.gather(1, tokens[:, None]).squeeze(1) - whole).float()
    return Picks(tokens, p1, p2, candidates, certainty, own, torch.zeros_like(tokens, dtype=torch.bool))


def _indices(flags: Sequence[bool], device: torch.device) -> Tensor:
    return on_device([i for i, flag in enumerate(flags) if flag], torch.int64, device)


def _edited(raw: Field, logits: Tensor, rows: Sequence[PickRow], vocabulary: Vocabulary) -> Field:
    """The field after the edits that rows ask for; `raw` itself if none does."""
    if not any(edits_logits(row.params) for row in rows):
        return raw
    z, start = logits.clone(), 0
    for row in rows:
        end = start + row.count
        if edits_logits(row.params):
            emitted = row.position - len(row.prompt)
            allowed = None if row.allowed is None else row.allowed.on(z.device)
            edit(z[start:end], row.params, vocabulary, row.prompt, row.history, row.extra, emitted, allowed)
        start = end
    return Field(z, vocabulary.mask)


def _check(peaks: Tensor, rows: Sequence[PickRow]) -> None:
    """Raises BadLogits for slots whose largest logit [W] is not finite."""
    finite = list(map(isfinite, peaks.tolist()))
    if all(finite):
        return
    owners = [index for index, row in enumerate(rows) for _ in range(row.count)]
    raise BadLogits(sorted({owner for owner, fine in zip(owners, finite, strict=True) if not fine}))


def _leading(field: Field, drafts: Tensor, peaks: Tensor, tokens: Tensor, vocabulary: Vocabulary) -> Leading:
    """What leads in draft slots whose pick is the most likely token: enough to find what may be tried."""
    values, leaders = field.leaders(drafts, min(1 + CANDIDATES + len(vocabulary.eos), field.width))
    return Leading(leaders, values.double(), tokens[drafts], peaks[drafts].double())


def _leading_drawn(drawing: Race, lanes: Sequence[Lane], owners: Sequence[PickRow]) -> tuple[Tensor, Leading]:
    """The draft slots among the lanes, and what leads there: T times the scores of the race."""
    mine = _indices([owners[lane.slot].draft for lane in lanes], drawing.winners.device)
    slots = on_device([lane.slot for lane in lanes], torch.int64, mine.device)[mine]
    t = on_device([lane.temperature for lane in lanes], torch.float64, mine.device)[mine]
    return slots, Leading(
        tokens=drawing.tokens[mine],
        scores=t[:, None] * drawing.scores[mine],
        picked=drawing.winners[mine],
        reached=t * drawing.best[mine],
    )
