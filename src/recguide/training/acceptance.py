"""How many tokens a round would emit, measured on known texts without an engine.

The drafts of blocks at every position of a text's response are compared with the text (teacher-forced).
Because greedy verification emits exactly the greedy text, following the blocks from round to round, each
starting where the one before ended, gives the acceptance A of linear rounds on that text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from recguide.models.ops.torch_ops import head_logits
from recguide.training.corpus import Corpus, ragged_ranges
from recguide.training.halves import Halves, load
from recguide.training.network import Backbone, LayerWeights
from recguide.training.steps import Blocks, Longs, lay_out


@dataclass(frozen=True, slots=True)
class Measured:
    """Acceptance on a set of texts at one block size.

    Attributes:
        block: block size.
        rounds: A of each round of the replayed decoding, 1..block.
        anywhere: A of blocks at every position, the mean over all of them.
    """

    block: int
    rounds: tuple[int, ...]
    anywhere: float

    @property
    def mean(self) -> float:
        """Mean A of the rounds; 1 without any."""
        return sum(self.rounds) / len(self.rounds) if self.rounds else 1.0

    def histogram(self) -> list[int]:
        """Rounds with A = 1..block."""
        return np.bincount(np.array(self.rounds, dtype=np.int64), minlength=self.block + 1)[1:].tolist()


class Drafter:
    """Matches drafts against texts with given weights; steps have the size that `halves` was made for."""

    def __init__(self, backbone: Backbone, halves: Halves, sizes: tuple[int, int], mask_token: int) -> None:
        self._backbone = backbone
        self._halves = halves
        self._sizes = sizes
        self._mask_token = mask_token

    @torch.no_grad()
    def measure(
        self, corpus: Corpus, block: int, layers: Sequence[LayerWeights], mask_embedding: torch.Tensor
    ) -> Measured:
        """Replays decoding of all texts of `corpus` that fit a step."""
        matched: dict[int, NDArray[np.int64]] = {
            text: np.zeros(int(corpus.lengths[text]), np.int64) for text in range(len(corpus))
        }
        for members, blocks in self._steps(corpus, block):
            counts = self._matches(corpus, members, blocks, block, layers, mask_embedding)
            for place, text in enumerate(members.tolist()):
                here = blocks.document == place
                matched[text][blocks.start[here]] = counts[here]
        return _replay(corpus, matched, block)

    def _steps(self, corpus: Corpus, block: int) -> Iterator[tuple[Longs, Blocks]]:
        """Blocks at every response position but the last, as many as a step holds at a time."""
        clean, noisy = self._sizes
        room = noisy // block
        members: list[int] = []
        starts: list[Longs] = []
        used = taken = 0
        for text in range(len(corpus)):
            length = int(corpus.lengths[text])
            if length > clean:
                continue
            left = np.arange(int(corpus.prompt_lengths[text]), length - 1)
            while len(left):
                if used + length > clean or taken == room:
                    yield _blocks(members, starts, block)
                    members, starts, used, taken = [], [], 0, 0
                members.append(text)
                starts.append(left[: room - taken])
                left = left[room - taken :]
                used += length
                taken += len(starts[-1])
        if members:
            yield _blocks(members, starts, block)

    def _matches(
        self,
        corpus: Corpus,
        members: Longs,
        blocks: Blocks,
        block: int,
        layers: Sequence[LayerWeights],
        mask_embedding: torch.Tensor,
    ) -> NDArray[np.int64]:
        """Leading slots of each block that equal the text."""
        backbone = self._backbone
        step = lay_out(corpus, members, blocks, self._sizes[0], self._sizes[1])
        loaded = load(step, backbone.device, self._mask_token)
        clean_mask, noisy_mask = self._halves.masks(loaded)
        _, kept = self._halves.clean(loaded, clean_mask)
        hidden = self._halves.noisy(loaded, noisy_mask, layers, mask_embedding, kept)
        used = len(blocks.size) * block
        hits = torch.cat(
            [
                self._hits(h, lab)
                for h, lab in zip(hidden[:used].split(4096), loaded.labels[:used].split(4096), strict=True)
            ]
        )
        return hits.view(-1, block)[:, 1:].long().cumprod(1).sum(1).cpu().numpy()

    def _hits(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = head_logits(hidden, self._backbone.head)
        logits[:, self._mask_token] = float("-inf")
        return logits.argmax(-1) == labels


def _blocks(members: Sequence[int], starts: Sequence[Longs], block: int) -> tuple[Longs, Blocks]:
    count = sum(len(part) for part in starts)
    return np.array(members, dtype=np.int64), Blocks(
        document=np.repeat(np.arange(len(members)), [len(part) for part in starts]),
        start=np.concatenate(starts),
        size=np.full(count, block),
        continuation=np.zeros(count, dtype=np.bool_),
    )


def _replay(corpus: Corpus, matched: Mapping[int, NDArray[np.int64]], block: int) -> Measured:
    """Rounds from the first response token on.

    A round that runs into the text's end without a mismatch is left out: its full A is not known.
    """
    rounds: list[int] = []
    anywhere: list[int] = []
    for text, counts in matched.items():
        prompt, length = int(corpus.prompt_lengths[text]), int(corpus.lengths[text])
        known = [
            min(int(counts[n]), block - 1) + 1 if n + 1 + counts[n] < length else 0
            for n in range(prompt, length - 1)
        ]
        anywhere += [a for a in known if a]
        n = prompt
        while n < length - 1 and known[n - prompt]:
            rounds.append(known[n - prompt])
            n += known[n - prompt]
    return Measured(block, tuple(rounds), float(np.mean(anywhere)) if anywhere else 1.0)


def responses_only(corpus: Corpus, texts: Sequence[int]) -> Corpus:
    """The greedy texts among the given ones."""
    wanted = np.array([t for t in texts if corpus.temperatures[t] == 0], dtype=np.int64)
    return corpus.select(wanted)


__all__ = ["Drafter", "Measured", "ragged_ranges", "responses_only"]
