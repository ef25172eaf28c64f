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
from recguide.speculation.filters import filters, kept
from recguide.speculation.leaders import leaders
from recguide.speculation.noise import LARGEST, LUCK, LuckyTokens, gumbel

LEADERS = 64
MANY = 1 / 8
"""Share of the vocabulary from which on the tokens that could win are narrowed down to the lucky ones."""


@dataclass(frozen=True, slots=True)
class Race:
    """What became of `S` slots.

    Attributes:
        tokens: [S] int64, the winners.
        ids: [S, n] int64, the most likely tokens of each slot.
        noise: [S, n] float64, their G.
        own: [S] float64, the winners' G.
    """

    tokens: Tensor
    ids: Tensor
    noise: Tensor
    own: Tensor


@dataclass(frozen=True, slots=True)
class _Entrants:
    """Tokens of slot `slot` that may win, [n], and their G if it is known."""

    slot: int
    ids: Tensor
    noise: Tensor | None = None


def race(z: Tensor, params: Sequence[SamplingParams], positions: Sequence[int], luck: LuckyTokens) -> Race:
    """Draws one token for every slot.

    Args:
        z: [S, V] edited logits, −inf or finite, one finite in each row at least.
        params: of each slot; temperature > 0 and sampling seed set.
        positions: absolute position of each slot's token.
        luck: remembers lucky tokens.
    """
    seeds = torch.tensor([_seed(slot) for slot in params], device=z.device)
    times = torch.tensor(positions, device=z.device)
    temperatures = torch.tensor([slot.temperature for slot in params], dtype=torch.float64, device=z.device)
    values, ids = leaders(z, min(LEADERS, z.shape[1]))
    x = values.double() / temperatures[:, None]
    noise = gumbel(seeds, times, ids)
    best, last = (x + noise).amax(1).tolist(), x[:, -1].tolist()

    entrants: list[_Entrants] = []
    for i, slot in enumerate(params):
        if filters(slot):
            entrants.append(_Entrants(i, kept(z[i], slot)))
            continue
        entrants.append(_Entrants(i, ids[i], noise[i]))
        if last[i] > best[i] - LARGEST and ids.shape[1] < z.shape[1]:
            entrants += _challengers(i, z[i], slot, positions[i], best[i], last[i], luck)

    slots = torch.tensor([entrant.slot for entrant in entrants], device=z.device)
    lengths = torch.tensor([len(entrant.ids) for entrant in entrants], device=z.device)
    slots = slots.repeat_interleave(lengths)
    tokens = torch.cat([entrant.ids for entrant in entrants])
    scores = z[slots, tokens].double() / temperatures[slots] + _noise_of(entrants, params, positions)
    winners = _winners(slots, tokens, scores, len(z))
    return Race(tokens=winners, ids=ids, noise=noise, own=gumbel(seeds, times, winners[:, None]).squeeze(1))


def _seed(params: SamplingParams) -> int:
    if params.seed is None:
        raise RecGuideError("seed: a request with temperature > 0 reached its picks without a sampling seed")
    return params.seed


def _challengers(
    i: int, z: Tensor, params: SamplingParams, position: int, best: float, last: float, luck: LuckyTokens
) -> Iterator[_Entrants]:
    """Tokens of one slot beyond its leaders that may score at least `best`; `last` bounds their x."""
    seed = _seed(params)
    if (seed, position) not in luck:
        near = _at_least(z, (best - LARGEST) * params.temperature)
        if len(near) < MANY * len(z):
            yield _Entrants(i, near)
            return
    yield _Entrants(i, *luck.at(seed, position))
    if last > best - LUCK:
        yield _Entrants(i, _at_least(z, (best - LUCK) * params.temperature))


def _at_least(z: Tensor, bound: float) -> Tensor:
    """Ids of tokens whose logit reaches the bound, with a little room for rounding."""
    return (z >= bound - 1e-5 * (1 + abs(bound))).nonzero().squeeze(1)


def _noise_of(
    entrants: Sequence[_Entrants], params: Sequence[SamplingParams], positions: Sequence[int]
) -> Tensor:
    """G of all entrants, [F]; what is not known is computed together."""
    unknown = [entrant for entrant in entrants if entrant.noise is None]
    if unknown:
        device = unknown[0].ids.device
        lengths = torch.tensor([len(entrant.ids) for entrant in unknown], device=device)
        seeds = torch.tensor([_seed(params[entrant.slot]) for entrant in unknown], device=device)
        times = torch.tensor([positions[entrant.slot] for entrant in unknown], device=device)
        found = gumbel(
            seeds.repeat_interleave(lengths),
            times.repeat_interleave(lengths),
            torch.cat([entrant.ids for entrant in unknown])[:, None],
        )
        computed = iter(found.squeeze(1).split(lengths.tolist()))
    else:
        computed = iter(())
    return torch.cat([next(computed) if entrant.noise is None else entrant.noise for entrant in entrants])


def _winners(slots: Tensor, tokens: Tensor, scores: Tensor, count: int) -> Tensor:
    """Token with the highest score in each of `count` slots, the lowest id among equals."""
    best = scores.new_full((count,), float("-inf")).scatter_reduce(0, slots, scores, "amax")
    tied = torch.where(scores == best[slots], tokens, torch.iinfo(tokens.dtype).max)
    return tied.new_full((count,), torch.iinfo(tokens.dtype).max).scatter_reduce(0, slots, tied, "amin")
