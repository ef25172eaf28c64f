"""Rounds of the script itself under the paper's rule, without a model: many texts side by side.

It is what an engine makes of the script, and what `law` says of it, so either can be held against it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recguide.bench.acceptance.process import AcceptanceReplay
from recguide.bench.acceptance.script import Constants, Said, script
from recguide.core import Vocabulary
from recguide.speculation.methods.recguide import CORRECTIONS, DELTA
from recguide.speculation.slots import SlotTable

FIRST = 7
"""Verified slots whose entropy counts: as many as a block of 8 always has, so blocks compare."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """[texts, rounds] each.

    Attributes:
        acceptance: A.
        corrected, corrected_hit: the first mismatch has a correction branch; and its candidate is right.
        continued, continued_hit: the block passes and has a continuation; and it predicted the bonus.
        entropy: mean verifier entropy over at most the first seven slots up to the mismatch, nats.
    """

    acceptance: Tensor
    corrected: Tensor
    corrected_hit: Tensor
    continued: Tensor
    continued_hit: Tensor
    entropy: Tensor


def sample_rounds(
    process: AcceptanceReplay,
    vocabulary: Vocabulary,
    block: int,
    *,
    texts: int,
    rounds: int,
    seed: int = 0,
    position: int = 0,
) -> Rounds:
    """That many rounds of `block` slots in each of that many texts, with sampling seeds from `seed` on.

    `position` is where the first block starts, after a prompt of that many tokens. The first rounds start
    where the text is as it is on the whole, not where rounds end: leave them out to sample `law.round_law`.
    """
    constants = Constants.of(process, vocabulary)
    seeds = seed + torch.arange(texts)
    start = torch.full((texts,), position)
    found: list[Rounds] = []
    for _ in range(rounds):
        one = _round(constants, seeds, start, block)
        found.append(one)
        start = start + one.acceptance
    names = ("acceptance", "corrected", "corrected_hit", "continued", "continued_hit", "entropy")
    return Rounds(**{name: torch.stack([getattr(one, name) for one in found], dim=1) for name in names})


def _round(constants: Constants, seeds: Tensor, start: Tensor, block: int) -> Rounds:
    """One round of every text, [texts] each."""
    draft = _ask(constants, seeds, start, range(1, block), draft=True)
    truth = _ask(constants, seeds, start, range(block), draft=False)  # slot i speaks of slot i + 1
    head = _ask(constants, seeds, start + block, range(1), draft=True)

    right = draft.tokens == truth.tokens[:, :-1]
    acceptance = 1 + right.long().cumprod(1).sum(1)
    whole = acceptance == block
    risky = draft.p1 - draft.p2 < DELTA
    rank = risky.long().cumsum(1)
    at = (acceptance - 1).clamp(max=block - 2)[:, None]
    corrected = ~whole & (risky.gather(1, at) & (rank.gather(1, at) <= CORRECTIONS)).squeeze(1)
    second = (draft.candidates[0] == truth.tokens[:, :-1]).gather(1, at).squeeze(1)
    continued = whole & (rank[:, -1] <= CORRECTIONS)

    valid = torch.arange(block) < torch.where(whole, block - 1, acceptance)[:, None].clamp(max=FIRST)
    return Rounds(
        acceptance=acceptance,
        corrected=corrected,
        corrected_hit=corrected & second,
        continued=continued,
        continued_hit=continued & (head.tokens[:, 0] == truth.tokens[:, -1]),
        entropy=(truth.entropy * valid).sum(1) / valid.sum(1),
    )


def _ask(constants: Constants, seeds: Tensor, start: Tensor, slots: range, *, draft: bool) -> Said:
    """What the script says at these slots of a row of every text, [texts, slots] each."""
    shape = len(seeds), len(slots)
    slot = torch.tensor(slots).expand(shape)
    begin = start[:, None].expand(shape)
    said = script(
        constants,
        SlotTable(
            seed=seeds[:, None].expand(shape).flatten(),
            position=(begin + slot + (0 if draft else 1)).flatten(),
            start=begin.flatten(),
            slot=slot.flatten(),
            temperature=torch.zeros(shape).flatten(),
            draft=torch.full(shape, draft).flatten(),
        ),
    )
    return Said(
        tokens=said.tokens.view(shape),
        p1=said.p1.view(shape),
        p2=said.p2.view(shape),
        candidates=said.candidates.view(-1, *shape),
        entropy=said.entropy.view(shape),
    )
