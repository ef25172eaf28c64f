"""Which texts and which blocks one training step runs: pure functions of the corpus and a seed.

A step holds whole texts (the clean half) and blocks that start inside their responses (the noisy half), both
of fixed length, so every step has the same shapes and hardly any padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recguide.training.config import TILE, BlockConfig
from recguide.training.corpus import Corpus, ragged_ranges

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Step:
    """One step's tokens; `C` clean and `Q` noisy ones, all int64.

    Attributes:
        clean_tokens, clean_positions, clean_first: [C]; `clean_first` is the index of the text's first token.
        noisy_tokens, noisy_positions: [Q]; MASK slots hold the mask token.
        masked: [Q] 1 for MASK slots, else 0.
        noisy_first, noisy_limit: [Q], interval of the clean tokens that a slot sees.
        noisy_block: [Q], number of the block, and `block_first` [Q], index of its slot 0.
        slot: [Q].
        ahead: [Q], tokens a slot looks ahead: slot for blocks with a seed, slot + 1 for all-MASK blocks.
        labels: [Q], the text's token at the slot's position; −1 for seeds and behind the text's end.
        teacher: [Q], index of the clean token before the label (0 where there is no label).
    """

    clean_tokens: Longs
    clean_positions: Longs
    clean_first: Longs
    noisy_tokens: Longs
    noisy_positions: Longs
    masked: Longs
    noisy_first: Longs
    noisy_limit: Longs
    noisy_block: Longs
    block_first: Longs
    slot: Longs
    ahead: Longs
    labels: Longs
    teacher: Longs


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of a step: `document` (which of the step's texts), `start` position, `size`, all-MASK or not."""

    document: Longs
    start: Longs
    size: Longs
    continuation: NDArray[np.bool_]


class StepPlan:
    """The order of texts of every epoch, cut into groups that fill the clean half of a step.

    Step `index` is the same whenever it is asked for, so a resumed run continues exactly.
    """

    def __init__(
        self, corpus: Corpus, clean_tokens: int, noisy_tokens: int, blocks: BlockConfig, seed: int
    ) -> None:
        trainable = (corpus.response_lengths >= 2) & (corpus.lengths <= clean_tokens)
        self._corpus = corpus
        self._usable = np.flatnonzero(trainable)
        self._sizes = (clean_tokens, noisy_tokens)
        self._blocks = blocks
        self._seed = seed
        if not len(self._usable):
            raise ValueError("no text of the corpus has two response tokens and fits a step")
        self._members = text_groups(corpus, self._usable, clean_tokens, seed)

    def step(self, index: int) -> Step:
        """Step `index` ≥ 0 of an endless run."""
        members = self._members(index)
        rng = np.random.default_rng([self._seed, 1, index])
        blocks = draw_blocks(self._corpus, members, self._sizes[1], self._blocks, rng)
        return lay_out(self._corpus, members, blocks, self._sizes[0])


def text_groups(corpus: Corpus, usable: Longs, capacity: int, seed: int) -> Callable[[int], Longs]:
    """The texts of step 0, 1, …: every epoch in a new order, cut into groups of at most `capacity` tokens."""
    epochs: list[list[Longs]] = []

    def members(index: int) -> Longs:
        epoch = 0
        while True:
            if epoch == len(epochs):
                order = np.random.default_rng([seed, 0, epoch]).permutation(usable)
                epochs.append(_fill(order, corpus.lengths[order], capacity))
            if index < len(epochs[epoch]):
                return epochs[epoch][index]
            index -= len(epochs[epoch])
            epoch += 1

    return members


def _fill(order: Longs, lengths: Longs, capacity: int) -> list[Longs]:
    """Consecutive runs of `order` whose lengths sum to at most `capacity`."""
    ends = lengths.cumsum()
    groups: list[Longs] = []
    start = 0
    while start < len(order):
        used = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, used + capacity, side="right"))
        groups.append(order[start:stop])
        start = stop
    # The last group is short; an epoch goes without it unless it is the only one.
    return groups[:-1] if len(groups) > 1 else groups


def draw_blocks(
    corpus: Corpus, members: Longs, noisy_tokens: int, config: BlockConfig, rng: np.random.Generator
) -> Blocks:
    """Blocks that fill the noisy half, starts spread evenly over the weighted response positions.

    Sizes are drawn per tile of `TILE` tokens; starts lie in the order of the texts, so a tile's queries need
    few tiles of keys.
    """
    sizes, shares = np.array(list(config.sizes)), np.array(list(config.sizes.values()), dtype=np.float64)
    drawn = rng.choice(sizes, size=noisy_tokens // TILE, p=shares / shares.sum())
    size = np.repeat(drawn, TILE // drawn)
    prompt = corpus.prompt_lengths[members].astype(np.int64)
    room = corpus.lengths[members] - prompt - 1  # starts: every response position but the last
    document = np.repeat(np.arange(len(members)), room)
    start = ragged_ranges(prompt, room)
    chances = corpus.chances[corpus.offsets[members][document] + start].astype(np.float64)
    ends = (1 + config.hard_start_bias * (1 - chances)).cumsum()
    marks = (np.arange(len(size)) + rng.random()) / len(size) * ends[-1]
    chosen = np.minimum(np.searchsorted(ends, marks, side="right"), len(ends) - 1)
    return Blocks(
        document=document[chosen],
        start=start[chosen],
        size=size,
        continuation=rng.random(len(size)) < config.continuation_share,
    )


def lay_out(
    corpus: Corpus, members: Longs, blocks: Blocks, clean_tokens: int, noisy_tokens: int | None = None
) -> Step:
    """The step's arrays. Tokens behind the last text, or behind the last block, see themselves alone.

    Args:
        noisy_tokens: length of the noisy half; None is the sum of the block sizes.
    """
    lengths = corpus.lengths[members]
    used = int(lengths.sum())
    before = lengths.cumsum() - lengths
    source = ragged_ranges(corpus.offsets[members], lengths)
    clean = np.zeros(clean_tokens, dtype=np.int64)
    clean[:used] = corpus.tokens[source]
    first = np.arange(clean_tokens)
    first[:used] = np.repeat(before, lengths)
    positions = np.arange(clean_tokens) - first

    # mask_token is filled in where the step meets the model; −1 stands for it here.
    count = len(blocks.size)
    block = np.repeat(np.arange(count), blocks.size)
    block_first = np.repeat(blocks.size.cumsum() - blocks.size, blocks.size)
    slot = np.arange(len(block)) - block_first
    document, start = blocks.document[block], blocks.start[block]
    continuation = blocks.continuation[block]
    position = start + slot
    index = before[document] + position
    inside = position < lengths[document]
    labelled = inside & ((slot > 0) | continuation)
    masked = (slot > 0) | continuation
    index = np.where(inside, index, 0)
    step = Step(
        clean_tokens=clean,
        clean_positions=positions,
        clean_first=first,
        noisy_tokens=np.where(masked, -1, clean[index]),
        noisy_positions=position,
        masked=masked.astype(np.int64),
        noisy_first=before[document],
        noisy_limit=before[document] + start,
        noisy_block=block,
        block_first=block_first,
        slot=slot,
        ahead=slot + continuation,
        labels=np.where(labelled, clean[index], -1),
        teacher=np.where(labelled, index - 1, 0),
    )
    return step if noisy_tokens is None else _pad_noisy(step, noisy_tokens)


def _pad_noisy(step: Step, noisy_tokens: int) -> Step:
    """Tokens behind the last block, each a block of its own without prefix or label."""
    used = len(step.slot)
    extra = noisy_tokens - used
    zeros, here = np.zeros(extra, dtype=np.int64), np.arange(used, noisy_tokens)

    def pad(values: Longs, tail: Longs) -> Longs:
        return np.concatenate((values, tail))

    return Step(
        clean_tokens=step.clean_tokens,
        clean_positions=step.clean_positions,
        clean_first=step.clean_first,
        noisy_tokens=pad(step.noisy_tokens, zeros),
        noisy_positions=pad(step.noisy_positions, zeros),
        masked=pad(step.masked, zeros),
        noisy_first=pad(step.noisy_first, zeros),
        noisy_limit=pad(step.noisy_limit, zeros),
        noisy_block=pad(step.noisy_block, here),
        block_first=pad(step.block_first, here),
        slot=pad(step.slot, zeros),
        ahead=pad(step.ahead, zeros),
        labels=pad(step.labels, zeros - 1),
        teacher=pad(step.teacher, zeros),
    )
