"""What is recorded of a verified round: a line of a trace, and the arrays that fits work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recguide.guidance.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One draft that was verified, or would have been at that place of a finished text.

    Attributes:
        set, prompt: workload and prompt; sets weigh the same, and prompts within a set.
        position: tokens emitted before the round: where its seed stands.
        block, verified: slots drafted and verified; 1, 1 for an AR step.
        acceptance: A before any cut.
        margins: M_i of the drafted slots 1..block−1.
        rank: of the verifier's token among the draft's candidates at the first mismatch, 1 is the first
            beside the drafted token; 0 without a mismatch or if it is not among those that were kept.
        head: 1 or 0: a continuation of this round predicted the bonus, or did not; −1 without one, or after
            a mismatch.
        entropies: the verifier's at the causally valid decisions, in nats.
        signals, previous, full: history as it was when the round was planned.
        branches: (slot, head, block) of each that ran; `reused` indexes them, −1 for none.
        price, query_tokens: of the request in the forward that verified; `forward_ms` is all the forward's.
        likely, candidates: p1 and the first candidate of the drafted slots 1..block−1, as far as an engine
            recorded them; p2 is p1 − M_i.
        drafted_by: kind of the branch that made the draft, "draft" if a draft forward did; "" for an AR step.
    """

    set: str
    prompt: str
    position: int
    block: int
    verified: int
    acceptance: int
    margins: tuple[float, ...]
    rank: int
    head: int
    entropies: tuple[float, ...]
    signals: tuple[float, float, float]
    previous: int
    full: bool
    branches: tuple[tuple[int, int, int], ...] = ()
    reused: int = -1
    price: float = 0.0
    query_tokens: int = 0
    forward_ms: float = 0.0
    likely: tuple[float, ...] = ()
    candidates: tuple[int, ...] = ()
    drafted_by: str = ""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Records as arrays over rows.

    Attributes:
        weight: sets weigh the same, prompts of a set, rounds of a prompt; they sum to 1.
        prompt: a number for each prompt; `state` for each place of a prompt.
        margins: [rows, W], slot i at i; NaN beyond what was verified.
        block, verified, acceptance, rank, head, previous, full: as in RoundRecord.
        signals: [rows, 3].
    """

    weight: Floats
    prompt: Ints
    state: Ints
    margins: Floats
    block: Ints
    verified: Ints
    acceptance: Ints
    rank: Ints
    head: Ints
    previous: Ints
    full: Bools
    signals: Floats

    def __len__(self) -> int:
        return len(self.weight)

    @classmethod
    def of(cls, records: Sequence[RoundRecord]) -> Rounds:
        prompt = _numbered([(record.set, record.prompt) for record in records])
        state = _numbered([(record.set, record.prompt, record.position) for record in records])
        which = _numbered([record.set for record in records])
        width = max([1, *(record.block for record in records)])
        margins = np.full((len(records), width), np.nan)
        for row, record in zip(margins, records, strict=True):
            known = record.margins[: record.verified - 1]
            row[1 : 1 + len(known)] = known

        def column(name: str) -> Ints:
            return np.array([getattr(record, name) for record in records], np.int64)

        return cls(
            weight=balanced(which, prompt),
            prompt=prompt,
            state=state,
            margins=margins,
            block=column("block"),
            verified=column("verified"),
            acceptance=column("acceptance"),
            rank=column("rank"),
            head=column("head"),
            previous=column("previous"),
            full=column("full").astype(np.bool_),
            signals=np.array([record.signals for record in records], np.float64).reshape(-1, 3),
        )

    def only(self, chosen: Bools | Ints) -> Rounds:
        return Rounds(**{name: getattr(self, name)[chosen] for name in self.__slots__})


def balanced(sets: Ints, prompts: Ints) -> Floats:
    """Weights of rows: sets weigh the same, prompts within a set, rows within a prompt."""
    if not len(sets):
        return np.zeros(0)
    rows = np.bincount(prompts)
    of_prompt = np.zeros(len(rows), np.int64)
    of_prompt[prompts] = sets
    prompts_in = np.bincount(of_prompt[np.unique(prompts)], minlength=int(sets.max()) + 1)
    weight = 1 / (rows[prompts] * prompts_in[sets])
    return weight / weight.sum()


def _numbered(keys: Sequence[object]) -> Ints:
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
