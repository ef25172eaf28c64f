"""Picks: which token stands at a position (architecture §3, Picks).

A pick is a pure function of the slot's logits, its request and its position. Plain decoding, drafts and
verification all come here, so acceptance is token equality and speculative text is what plain decoding emits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from math import isfinite

import torch
from torch import Tensor
from torch.nn.functional import pad

from recguide.core import CANDIDATES, RecGuideError, SamplingParams, Vocabulary
from recguide.speculation.edits import edit, edits_logits, validate
from recguide.speculation.field import Field, HostField, field_of, on_device
from recguide.speculation.grammar import Allowed
from recguide.speculation.noise import LuckyTokens
from recguide.speculation.race import Lane, Race, race, race_on_host
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
        draft: whether these are draft slots, which get p1, p2 and candidates, or causal ones, which get an
            entropy.
        allowed: what the request's grammar allows at each slot; None allows everything.
        statistics: whether anyone reads more than the tokens; the rest takes passes over the vocabulary.
    """

    params: SamplingParams
    prompt: Sequence[int]
    history: Sequence[int]
    extra: Sequence[int]
    position: int
    count: int
    draft: bool
    allowed: Allowed | None = None
    statistics: bool = True


@dataclass(frozen=True, slots=True)
class Picks:
    """Of each of `W` slots, in the order of their rows; all but the tokens is 0 where nobody reads more.

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
    raw = _Peaks.of(logits, vocabulary)
    edited = raw if not any(edits_logits(row.params) for row in rows) else _edited(logits, rows, vocabulary)
    tokens = edited.tokens
    _check(edited.values, rows)
    positions = [row.position + offset for row in rows for offset in range(row.count)]
    lanes = [Lane(i, row.params, positions[i]) for i, row in enumerate(owners) if row.params.temperature > 0]
    drawing: Race | None = None
    if lanes:
        drawing = _drawn(edited.field, lanes, luck, vocabulary)
        tokens = drawing.winners
        if len(lanes) < len(owners):
            tokens = edited.tokens.index_copy(0, _slots(lanes, logits.device), tokens)
    none = torch.zeros_like(tokens, dtype=torch.float32)
    bad, candidates = torch.zeros_like(tokens, dtype=torch.bool), tokens.new_zeros(CANDIDATES, len(tokens))
    picks = Picks(tokens, none, none, candidates, none, none, bad)
    if not any(row.statistics for row in owners):
        return picks
    entropy, own, totals = _certainty(raw, edited, tokens, owners, vocabulary)
    p1, p2 = none.clone(), none.clone()
    for slots, leading in _leads(edited, drawing, lanes, owners, vocabulary):
        found = draft_statistics(
            edited.field, slots, edited.values[slots], totals[slots], leading, vocabulary
        )
        p1[slots], p2[slots] = found.p1.float(), found.p2.float()
        candidates[:, slots] = found.candidates
    return Picks(tokens, p1, p2, candidates, entropy, own, bad)


@dataclass(frozen=True, slots=True)
class _Peaks:
    """Largest logits [W] of a field's slots and the lowest tokens [W] that have them."""

    field: Field
    values: Tensor
    tokens: Tensor

    @staticmethod
    def of(logits: Tensor, vocabulary: Vocabulary) -> _Peaks:
        field = field_of(logits, vocabulary.mask)
        return _Peaks(field, *field.first())


def _edited(logits: Tensor, rows: Sequence[PickRow], vocabulary: Vocabulary) -> _Peaks:
    """The same after the edits that rows ask for."""
    z, start = logits.clone(), 0
    for row in rows:
        end = start + row.count
        if edits_logits(row.params):
            emitted = row.position - len(row.prompt)
            allowed = None if row.allowed is None else row.allowed.on(z.device)
            edit(z[start:end], row.params, vocabulary, row.prompt, row.history, row.extra, emitted, allowed)
        start = end
    return _Peaks.of(z, vocabulary)


def _check(peaks: Tensor, rows: Sequence[PickRow]) -> None:
    """Raises BadLogits for slots whose largest logit [W] is not finite."""
    finite = list(map(isfinite, peaks.tolist()))
    if all(finite):
        return
    owners = [index for index, row in enumerate(rows) for _ in range(row.count)]
    raise BadLogits(sorted({owner for owner, fine in zip(owners, finite, strict=True) if not fine}))


def _drawn(field: Field, lanes: Sequence[Lane], luck: LuckyTokens | None, vocabulary: Vocabulary) -> Race:
    if isinstance(field, HostField):
        return race_on_host(field, lanes, luck or LuckyTokens(vocabulary.size))
    return race(field, lanes)


def _certainty(
    raw: _Peaks, edited: _Peaks, tokens: Tensor, owners: Sequence[PickRow], vocabulary: Vocabulary
) -> tuple[Tensor, Tensor, Tensor]:
    """Of slots with statistics their entropy and the log-probability of their token, both of the raw logits
    and 0 elsewhere, and, of draft slots, the `masses` of the edited ones; [W] each."""
    peaks, device = raw.values, tokens.device
    totals, entropy = torch.ones_like(peaks), torch.zeros_like(peaks, dtype=torch.float32)
    causal = _indices([row.statistics and not row.draft for row in owners], device)
    if len(causal):
        totals[causal], nats = masses_and_entropy(raw.field, causal, peaks[causal])
        entropy[causal] = nats.float()
    drafted = _indices([row.statistics and row.draft for row in owners], device)
    if len(drafted):
        totals[drafted] = masses(raw.field, drafted, peaks[drafted])
    whole = peaks + totals.log()
    if vocabulary.mask is not None:
        whole = torch.logaddexp(whole, raw.field.z[:, vocabulary.mask])
    own = (raw.field.z.gather(1, tokens[:, None]).squeeze(1) - whole).float()
    if not all(row.statistics for row in owners):
        own[_indices([not row.statistics for row in owners], device)] = 0
    if edited is not raw and len(drafted):
        totals[drafted] = masses(edited.field, drafted, edited.values[drafted])
    return entropy, own, totals


def _leads(
    peaks: _Peaks,
    drawing: Race | None,
    lanes: Sequence[Lane],
    owners: Sequence[PickRow],
    vocabulary: Vocabulary,
) -> Iterator[tuple[Tensor, Leading]]:
    """The draft slots with statistics, greedy and drawn ones, and what leads there."""
    flags = [row.statistics and row.draft and row.params.temperature == 0 for row in owners]
    if any(flags):
        greedy = _indices(flags, peaks.tokens.device)
        yield greedy, _leading(peaks, greedy, vocabulary)
    flags = [owners[lane.slot].statistics and owners[lane.slot].draft for lane in lanes]
    if drawing is not None and any(flags):
        yield _leading_drawn(drawing, lanes, _indices(flags, peaks.tokens.device))


def _leading(peaks: _Peaks, drafts: Tensor, vocabulary: Vocabulary) -> Leading:
    """What leads in draft slots whose pick is the most likely token: enough to find what may be tried."""
    field = peaks.field
    values, leaders = field.leaders(drafts, min(1 + CANDIDATES + len(vocabulary.eos), field.width))
    return Leading(leaders, values.double(), peaks.tokens[drafts], peaks.values[drafts].double())


def _leading_drawn(drawing: Race, lanes: Sequence[Lane], mine: Tensor) -> tuple[Tensor, Leading]:
    """The slots of the lanes numbered `mine`, and what leads there: T times the scores of the race."""
    slots = _slots(lanes, mine.device)[mine]
    t = on_device([lane.temperature for lane in lanes], torch.float64, mine.device)[mine]
    return slots, Leading(
        tokens=drawing.tokens[mine],
        scores=t[:, None] * drawing.scores[mine],
        picked=drawing.winners[mine],
        reached=t * drawing.best[mine],
    )


def _slots(lanes: Sequence[Lane], device: torch.device) -> Tensor:
    return on_device([lane.slot for lane in lanes], torch.int64, device)


def _indices(flags: Sequence[bool], device: torch.device) -> Tensor:
    return on_device([i for i, flag in enumerate(flags) if flag], torch.int64, device)
