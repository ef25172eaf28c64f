"""The Gumbel race: argmax of logits ÷ temperature + noise, which draws from their softmax (architecture §3).

Only tokens that may win are given noise. A few leading tokens set a score to beat; any other lies below the
last of them and could only be lifted there by the luck that few tokens have at a position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recguide.core import RecGuideError, SamplingParams
from recguide.speculation.field import NEVER, Field
from recguide.speculation.filters import filters, kept
from recguide.speculation.noise import LARGEST, LUCK, LuckyTokens, gumbel

LEADERS = 32
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


def race(field: Field, lanes: Sequence[Lane], luck: LuckyTokens) -> Race:
    """Draws one token for every lane.

    Args:
        field: edited logits, −inf or finite, one finite in each slot at least.
        lanes: one or more.
        luck: remembers lucky tokens.
    """
    device = field.z.device
    slots = torch.tensor([lane.slot for lane in lanes], device=device)
    temperatures = torch.tensor(
        [lane.params.temperature for lane in lanes], dtype=torch.float64, device=device
    )
    values, tokens = field.leaders(slots, min(LEADERS, field.width))
    x = values.double() / temperatures[:, None]
    scores = x + gumbel(*_counters(lanes, device), tokens)
    best, leader = scores.max(1)
    winners = tokens.gather(1, leader[:, None]).squeeze(1)
    filtered = torch.tensor([i for i, lane in enumerate(lanes) if filters(lane.params)], dtype=torch.int64)
    entrants: list[_Entrants] = []
    if len(filtered):
        best[filtered] = NEVER
        tokens_kept = kept(field, slots[filtered], [lanes[i].params for i in filtered.tolist()])
        entrants += map(_Entrants, filtered.tolist(), tokens_kept)
    for i, (lane, score, last) in enumerate(zip(lanes, best.tolist(), x[:, -1].tolist(), strict=True)):
        if score > NEVER and last > score - LARGEST and tokens.shape[1] < field.width:
            entrants += _challengers(field, i, lane, score, last, luck)
    if entrants:
        winners, best = _overtake(field, lanes, slots, temperatures, entrants, winners, best)
    return Race(winners, best, tokens, scores)


def _challengers(
    field: Field, i: int, lane: Lane, best: float, last: float, luck: LuckyTokens
) -> Iterator[_Entrants]:
    """Tokens beyond the leaders that may score more than `best`; `last` bounds their z ÷ temperature."""
    if (lane.seed, lane.position) not in luck:
        near = field.at_least(lane.slot, (best - LARGEST) * lane.params.temperature)
        if len(near) < MANY * field.width:
            yield _Entrants(i, near)
            return
    yield _Entrants(i, *luck.at(lane.seed, lane.position))
    if last > best - LUCK:
        yield _Entrants(i, field.at_least(lane.slot, (best - LUCK) * lane.params.temperature))


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
    lengths = torch.tensor([len(entrant.tokens) for entrant in entrants], device=slots.device)
    lane = torch.tensor([entrant.lane for entrant in entrants], device=slots.device).repeat_interleave(
        lengths
    )
    tokens = torch.cat([entrant.tokens for entrant in entrants])
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
        repeats = torch.tensor(lengths, device=tokens.device)
        seeds, positions = _counters([lanes[entrant.lane] for entrant in unknown], tokens.device)
        g = gumbel(seeds.repeat_interleave(repeats), positions.repeat_interleave(repeats), tokens[:, None])
        computed = iter(g.squeeze(1).split(lengths))
    return torch.cat([next(computed) if entrant.noise is None else entrant.noise for entrant in entrants])


def _counters(lanes: Sequence[Lane], device: torch.device) -> tuple[Tensor, Tensor]:
    """Sampling seeds and positions, [S] int64 each."""
    seeds = torch.tensor([lane.seed for lane in lanes], device=device)
    return seeds, torch.tensor([lane.position for lane in lanes], device=device)
