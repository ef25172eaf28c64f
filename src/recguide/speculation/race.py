"""The Gumbel race: argmax of logits ÷ temperature + noise, which draws from their softmax (architecture §3).

Only tokens that may win are given noise. A few leading tokens set a score to beat; any other lies below the
last of them and could only be lifted there by the luck that few tokens have at a position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recguide.core import RecGuideError, SamplingParams
from recguide.speculation.field import NEVER, Field, on_device
from recguide.speculation.filters import filters, kept
from recguide.speculation.noise import LARGEST, LUCK, LuckyTokens, gumbel

LEADERS = 32
AT_ONCE = 16
"""Lanes that get noise for every token together."""
MANY = 1 / 32
"""Share of the vocabulary from which on the tokens that could win are narrowed down to the lucky ones."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One slot of the field that a token is drawn for; temperature > 0 and the sampling seed set."""

    slot: int
    params: SamplingParams
    position: int

    @property
    def seed(self) -> int:
        if self.params.seed is None:
            raise RecGuideError(
                "seed: a request with temperature > 0 reached its picks without a sampling seed"
            )
        return self.params.seed

    @property
    def temperature(self) -> float:
        """As fp32 has it: a table of slots on a device holds no more, and picks are the same everywhere."""
        return float(np.float32(self.params.temperature))


@dataclass(frozen=True, slots=True)
class Race:
    """What became of S lanes. A score is z ÷ temperature + G, in float64.

    Attributes:
        winners: [S] int64.
        best: [S] the winners' scores.
        tokens: [S, n] the most likely tokens.
        scores: [S, n] their scores, whatever the filters say of them.
    """

    winners: Tensor
    best: Tensor
    tokens: Tensor
    scores: Tensor


@dataclass(frozen=True, slots=True)
class _Entrants:
    """Tokens [n] of lane number `lane` that may win, and their G if it is known."""

    lane: int
    tokens: Tensor
    noise: Tensor | None = None


def race(field: Field, lanes: Sequence[Lane], luck: LuckyTokens | None) -> Race:
    """Draws one token for every lane.

    Args:
        field: edited logits, −inf or finite, one finite in each slot at least.
        lanes: one or more.
        luck: remembers lucky tokens; None gives every token its noise, which an accelerator does sooner than
            it tells the host which ones to leave out.
    """
    device = field.z.device
    slots = on_device([lane.slot for lane in lanes], torch.int64, device)
    temperatures = on_device([lane.temperature for lane in lanes], torch.float64, device)
    values, tokens = field.leaders(slots, min(LEADERS, field.width))
    x = values.double() / temperatures[:, None]
    scores = x + gumbel(*_counters(lanes, device), tokens)
    best, leader = scores.max(1)
    winners = tokens.gather(1, leader[:, None]).squeeze(1)
    entrants: list[_Entrants] = []
    numbers = [i for i, lane in enumerate(lanes) if filters(lane.params)]
    if numbers:
        filtered = on_device(numbers, torch.int64, device)
        best[filtered] = NEVER
        tokens_kept = kept(field, slots[filtered], [lanes[i].params for i in numbers])
        entrants += map(_Entrants, numbers, tokens_kept)
    free = [i for i, lane in enumerate(lanes) if not filters(lane.params)]
    if tokens.shape[1] < field.width and free:
        if luck is None:
            _run_everyone(field, lanes, slots, temperatures, free, winners, best)
        else:
            for i, score, last in zip(free, best[free].tolist(), x[free, -1].tolist(), strict=True):
                if last > score - LARGEST:
                    entrants += _challengers(field, i, lanes[i], score, last, luck)
    if entrants:
        winners, best = _overtake(field, lanes, slots, temperatures, entrants, winners, best)
    return Race(winners, best, tokens, scores)


def _run_everyone(
    field: Field,
    lanes: Sequence[Lane],
    slots: Tensor,
    temperatures: Tensor,
    free: Sequence[int],
    winners: Tensor,
    best: Tensor,
) -> None:
    """Winners and best scores, in place, of the lanes numbered `free` with noise for every token."""
    every = torch.arange(field.width, device=slots.device)
    for start in range(0, len(free), AT_ONCE):
        numbers = free[start : start + AT_ONCE]
        some = on_device(numbers, torch.int64, slots.device)
        noise = gumbel(*_counters([lanes[i] for i in numbers], slots.device), every)
        x = field.at(slots[some][:, None], every).double() / temperatures[some][:, None]
        best[some], winners[some] = x.add_(noise).max(1)


def _challengers(
    field: Field, i: int, lane: Lane, best: float, last: float, luck: LuckyTokens
) -> Iterator[_Entrants]:
    """Tokens beyond the leaders that may score more than `best`; `last` bounds their z ÷ temperature."""
    if (lane.seed, lane.position) not in luck:
        near = field.at_least(lane.slot, (best - LARGEST) * lane.temperature)
        if len(near) < MANY * field.width:
            yield _Entrants(i, near)
            return
    yield _Entrants(i, *luck.at(lane.seed, lane.position))
    if last > best - LUCK:
        yield _Entrants(i, field.at_least(lane.slot, (best - LUCK) * lane.temperature))


def _overtake(
    field: Field,
    lanes: Sequence[Lane],
    slots: Tensor,
    temperatures: Tensor,
    entrants: Sequence[_Entrants],
    winners: Tensor,
    best: Tensor,
) -> tuple[Tensor, Tensor]:
    """Winners and best scores after the entrants have run too; the lowest token wins among equals."""
    tokens = torch.cat([entrant.tokens for entrant in entrants])
    lengths = on_device([len(entrant.tokens) for entrant in entrants], torch.int64, slots.device)
    lane = on_device([entrant.lane for entrant in entrants], torch.int64, slots.device)
    lane = lane.repeat_interleave(lengths, output_size=len(tokens))
    noise = _noise(lanes, entrants)
    # Most are out of the race by what their neighbours' largest logit allows, without a look at their own.
    ceilings = field.ceilings(slots[lane], tokens).double() / temperatures[lane] + noise
    alive = (ceilings > best[lane]).nonzero().squeeze(1)
    lane, tokens, noise = lane[alive], tokens[alive], noise[alive]
    scores = field.at(slots[lane], tokens).double() / temperatures[lane] + noise
    reached = best.scatter_reduce(0, lane, scores, "amax")
    tied = tokens.masked_fill(scores < reached[lane], field.width)
    first = torch.full_like(winners, field.width).scatter_reduce(0, lane, tied, "amin")
    return torch.where(reached > best, first, winners), reached


def _noise(lanes: Sequence[Lane], entrants: Sequence[_Entrants]) -> Tensor:
    """G of all entrants, one after another; what is not known is computed together."""
    unknown = [entrant for entrant in entrants if entrant.noise is None]
    computed: Iterator[Tensor] = iter(())
    if unknown:
        tokens = torch.cat([entrant.tokens for entrant in unknown])
        lengths = [len(entrant.tokens) for entrant in unknown]
        repeats = on_device(lengths, torch.int64, tokens.device)
        seeds, positions = (
            counter.repeat_interleave(repeats, output_size=len(tokens))
            for counter in _counters([lanes[entrant.lane] for entrant in unknown], tokens.device)
        )
        computed = iter(gumbel(seeds, positions, tokens[:, None]).squeeze(1).split(lengths))
    return torch.cat([next(computed) if entrant.noise is None else entrant.noise for entrant in entrants])


def _counters(lanes: Sequence[Lane], device: torch.device) -> tuple[Tensor, Tensor]:
    """Sampling seeds and positions, [S] int64 each."""
    seeds = on_device([lane.seed for lane in lanes], torch.int64, device)
    return seeds, on_device([lane.position for lane in lanes], torch.int64, device)
