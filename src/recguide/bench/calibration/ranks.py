"""Where the right token stands among a wrong slot's candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recguide.core import SamplingParams, Vocabulary
from recguide.speculation.noise import gumbel

AT_ONCE = 16
"""Slots that get noise for the whole vocabulary together."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A slot that was drafted wrongly.

    Attributes:
        slot: its place among the logits.
        position: absolute position of its token.
        drafted, right: the token drafted and the verifier's.
        params: of its request, with the sampling seed resolved.
    """

    slot: int
    position: int
    drafted: int
    right: int
    params: SamplingParams


def candidate_ranks(
    logits: Tensor, wrong: Sequence[Wrong], vocabulary: Vocabulary, most: int
) -> tuple[int, ...]:
    """[wrong] rank of the right token by z + T·G, from 1 on; 0 beyond `most`, or if it is never tried.

    Never tried are mask and EOS; the drafted token is not counted. Of equals the lower token comes first.

    Args:
        logits: [W, V] of the slots, without edits.
    """
    ranks: list[int] = []
    for start in range(0, len(wrong), AT_ONCE):
        ranks += _ranks(logits, wrong[start : start + AT_ONCE], vocabulary)
    untried = {*vocabulary.eos, vocabulary.mask}
    return tuple(
        rank if rank <= most and one.right not in untried else 0
        for rank, one in zip(ranks, wrong, strict=True)
    )


def _ranks(logits: Tensor, wrong: Sequence[Wrong], vocabulary: Vocabulary) -> list[int]:
    device = logits.device
    slots, right, drafted = (
        torch.tensor([getattr(one, name) for one in wrong], device=device)
        for name in ("slot", "right", "drafted")
    )
    scores = logits[slots].double()
    tokens = torch.arange(vocabulary.size, device=device)
    heat = torch.tensor([one.params.temperature for one in wrong], dtype=torch.float64, device=device)
    if bool((heat > 0).any()):
        seeds = torch.tensor([one.params.seed or 0 for one in wrong], device=device)
        positions = torch.tensor([one.position for one in wrong], device=device)
        scores += heat[:, None] * gumbel(seeds, positions, tokens)
    mine = scores.gather(1, right[:, None])
    better = (scores > mine) | ((scores == mine) & (tokens < right[:, None]))
    better &= tokens != drafted[:, None]
    untried = [*vocabulary.eos, *(() if vocabulary.mask is None else (vocabulary.mask,))]
    better[:, untried] = False
    found: list[int] = (1 + better.sum(1)).tolist()
    return found
