"""The Gumbel race (architecture §3): argmax of logits ÷ temperature + noise draws from their softmax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from recguide.core import RecGuideError, SamplingParams
from recguide.speculation.field import NEVER, Field, HostField, on_device
from recguide.speculation.filters import filters, kept
from recguide.speculation.noise import LARGEST, LUCK, LuckyTokens, gumbel, gumbel_array

LEADERS = 32
AT_ONCE = 16
"""Lanes that an accelerator gives noise together."""
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


def race(field: Field, lanes: Sequence[Lane]) -> Race:
    """Draws one token for every lane, with noise for every token that the filters keep: an accelerator has
    done that sooner than it tells the host which ones to leave out.

    Args:
        field: edited logits, −inf or finite, one finite in each slot at least.
        lanes: one or more.
    """
    device = field.z.device
    slots = on_device([lane.slot for lane in lanes], torch.int64, device)
    temperatures = on_device([lane.temperature for lane in lanes], torch.float64, device)
    seeds = on_device([lane.seed for lane in lanes], torch.int64, device)
    positions = on_device([lane.position for lane in lanes], torch.int64, device)

    def scores_of(some: Tensor, tokens: Tensor) -> Tensor:
        """Scores of the lanes numbered `some` [s]: of tokens [n], or of each lane's own [s, n]."""
        noise = gumbel(seeds[some], positions[some], tokens)
        return noise.add_(field.at(slots[some][:, None], tokens).double() / temperatures[some][:, None])

    _, leading = field.leaders(slots, min(LEADERS, field.width))
    winners, best = torch.zeros_like(slots), torch.zeros_like(temperatures)
    found = _kept(field, lanes)
    every = torch.arange(field.width, device=device)
    for numbers in _groups([i for i in range(len(lanes)) if i not in found]):
        some = on_device(numbers, torch.int64, device)
        best[some], winners[some] = scores_of(some, every).max(1)
    for numbers in _groups(list(found)):
        some = on_device(numbers, torch.int64, device)
        own = [found[i] for i in numbers]
        # In rising order, so that the lowest token wins among equals; what pads a lane comes last.
        tokens = pad_sequence(own, batch_first=True, padding_value=field.width).sort(1).values
        beyond = tokens == field.width
        scores = scores_of(some, tokens.masked_fill(beyond, 0)).masked_fill_(beyond, NEVER)
        best[some], at = scores.max(1)
        winners[some] = tokens.gather(1, at[:, None]).squeeze(1)
    return Race(winners, best, leading, scores_of(torch.arange(len(lanes), device=device), leading))


def _kept(field: Field, lanes: Sequence[Lane]) -> dict[int, Tensor]:
    """Tokens [n] that filters keep, by the number of the lane that has any."""
    filtered = {i: lane for i, lane in enumerate(lanes) if filters(lane.params)}
    if not filtered:
        return {}
    slots = on_device([lane.slot for lane in filtered.values()], torch.int64, field.z.device)
    params = [lane.params for lane in filtered.values()]
    return dict(zip(filtered, kept(field, slots, params), strict=True))


def _groups(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[start : start + AT_ONCE] for start in range(0, len(numbers), AT_ONCE))


@dataclass(frozen=True, slots=True)
class _Entrants:
    """Tokens [n] of lane number `lane` that may win, in rising order, and their G if it is known."""

    lane: int
    tokens: NDArray[np.int64]
    noise: NDArray[np.float64] | None = None


def race_on_host(field: HostField, lanes: Sequence[Lane], luck: LuckyTokens) -> Race:
    """`race` on a CPU: only tokens that may win are given noise.

    A few leading tokens set a score to beat; any other lies below the last of them and could only be lifted
    there by the luck that few tokens have at a position. `luck` remembers which ones those are.
    """
    slots = [lane.slot for lane in lanes]
    temperatures = np.array([lane.temperature for lane in lanes])
    values, tokens = field.leading(slots, min(LEADERS, field.width))
    x = values.astype(np.float64) / temperatures[:, None]
    seeds, positions = _counters(lanes)
    scores = x + gumbel_array(seeds[:, None], positions[:, None], tokens)
    leader = scores.argmax(1)[:, None]
    winners = np.take_along_axis(tokens, leader, 1)[:, 0]
    best = np.take_along_axis(scores, leader, 1)[:, 0]
    found = _kept(field, lanes)
    best[[*found]] = NEVER
    entrants = [_Entrants(i, np.sort(own.numpy())) for i, own in found.items()]
    if tokens.shape[1] < field.width:
        for i, (lane, score, last) in enumerate(zip(lanes, best.tolist(), x[:, -1].tolist(), strict=True)):
            if last > score - LARGEST and i not in found:
                entrants += _challengers(field, i, lane, score, last, luck)
    for entrant, noise in zip(entrants, _noise(lanes, entrants), strict=True):
        i = entrant.lane
        if len(noise):
            score = field.of(slots[i], entrant.tokens).astype(np.float64) / temperatures[i] + noise
            at = score.argmax()
            # The lowest token wins among equals.
            if (score[at], -entrant.tokens[at]) > (best[i], -winners[i]):
                winners[i], best[i] = entrant.tokens[at], score[at]
    return Race(*map(torch.from_numpy, (winners, best, tokens, scores)))


def _challengers(
    field: HostField, i: int, lane: Lane, best: float, last: float, luck: LuckyTokens
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


def _noise(lanes: Sequence[Lane], entrants: Sequence[_Entrants]) -> Iterator[NDArray[np.float64]]:
    """G of all entrants; what is not known is computed together."""
    unknown = [entrant for entrant in entrants if entrant.noise is None]
    computed: Iterator[NDArray[np.float64]] = iter(())
    if unknown:
        lengths = [len(entrant.tokens) for entrant in unknown]
        counters = _counters([lanes[entrant.lane] for entrant in unknown])
        seeds, positions = (np.repeat(counter, lengths) for counter in counters)
        noise = gumbel_array(seeds, positions, np.concatenate([entrant.tokens for entrant in unknown]))
        computed = iter(np.split(noise, np.cumsum(lengths)[:-1]))
    return (next(computed) if entrant.noise is None else entrant.noise for entrant in entrants)


def _counters(lanes: Sequence[Lane]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sampling seeds and positions, [S] each."""
    return (
        np.array([lane.seed for lane in lanes], dtype=np.int64),
        np.array([lane.position for lane in lanes], dtype=np.int64),
    )
