"""Drafts at known places of known texts, and what their distributions say: what a decoding round has in hand.

A draft row sees the text before it and its own slots. So does a correction branch whose candidate is right,
which makes it the draft row of its place; a continuation branch is a row of MASK slots alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.core import Vocabulary
from recguide.models.adapter import Adapter
from recguide.models.layout import parts
from recguide.models.ops.torch_ops import head_logits
from recguide.speculation.noise import gumbel
from recguide.speculation.slots import Picker, SlotTable
from recguide.training.corpus import Corpus
from recguide.training.halves import Halves, Loaded, load
from recguide.training.network import Backbone, LayerWeights
from recguide.training.steps import Blocks, Longs, Step, lay_out

SLOTS_AT_ONCE = 4096
"""Slots whose logits are held together."""
RANKED_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class Places:
    """`M` draft rows, sorted by text.

    Attributes:
        text: [M] index of the text.
        start: [M] position of slot 0.
        length: [M] slots.
        continuation: whether the rows are MASK alone; else slot 0 holds the text's token.
    """

    text: Longs
    start: Longs
    length: Longs
    continuation: bool

    def __len__(self) -> int:
        return len(self.text)

    def part(self, which: slice) -> Places:
        return Places(self.text[which], self.start[which], self.length[which], self.continuation)


@dataclass(frozen=True, slots=True)
class Drafted:
    """What was drafted at `M` places, in blocks of at most `B` slots; slots that were not drafted hold 0.

    Attributes:
        places: the rows.
        tokens: [M, B] int32, picks.
        p1, p2: [M, B] float32, of the draft statistics.
        candidates: [M, B] int32, best token beside the pick, the mask and EOS.
        hits: [M, B] bool, the pick is the text's token (false behind the text's end).
        rank: [M] int32, rank by z + T·G of the text's token at the first slot that missed it; 0 where no
            slot did.
        raw_rank: [M] int32, the same by z alone.
    """

    places: Places
    tokens: NDArray[np.int32]
    p1: NDArray[np.float32]
    p2: NDArray[np.float32]
    candidates: NDArray[np.int32]
    hits: NDArray[np.bool_]
    rank: NDArray[np.int32]
    raw_rank: NDArray[np.int32]


def adapted(backbone: Backbone, adapter: Adapter) -> list[LayerWeights]:
    """The backbone's layers with the adapter's deltas in their weights."""
    found = {part.module: part for part in parts(backbone.decoder.config)}
    groups = [layer._asdict() for layer in backbone.layers]
    for (layer, module), (inner, outer) in adapter.factors().items():
        part, scale = found[module], adapter.ranks[layer, module].scale
        weight = cast("Tensor", groups[layer][part.group])
        if weight is getattr(backbone.layers[layer], part.group):
            weight = weight.clone()
        rows = weight[part.start : part.start + part.outputs]
        delta = outer.to(backbone.device).float() @ inner.to(backbone.device).float() * scale
        rows.copy_(rows + delta)
        groups[layer][part.group] = weight
    return [LayerWeights(**group) for group in groups]


class DraftReader:
    """Runs draft rows over texts; steps have the size that `halves` was made for.

    Args:
        picker: picks tokens, with their statistics, as decoding would.
        compiled: fuse the noise that ranks need (on a GPU).
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: Adapter,
        vocabulary: Vocabulary,
        halves: Halves,
        sizes: tuple[int, int],
        picker: Picker,
        *,
        compiled: bool,
    ) -> None:
        assert vocabulary.mask is not None, "a model that drafts has a mask token"
        self._backbone = backbone
        self._layers = adapted(backbone, adapter)
        self._mask_token = vocabulary.mask
        own = (
            backbone.embedding[self._mask_token] if adapter.mask_embedding is None else adapter.mask_embedding
        )
        self._mask_embedding = own.detach().to(backbone.device)
        self._halves = halves
        self._sizes = sizes
        self._picker = picker
        self._ranks: Callable[..., Tensor] = ranks
        if compiled:
            self._ranks = torch.compile(ranks, fullgraph=True, dynamic=False)

    @torch.no_grad()
    def read(
        self, corpus: Corpus, places: Places, block: int, temperature: float, seeds: Sequence[int]
    ) -> Drafted:
        """Drafts at all places; `seeds` are the sampling seeds of the texts, which must fit a step."""
        pieces = [
            self._step(corpus, places.part(which), block, temperature, seeds)
            for which in self._cut(corpus, places)
        ]
        columns = (torch.cat(column).cpu().numpy() for column in zip(*pieces, strict=True))
        tokens, p1, p2, candidates, hits, rank, raw_rank = columns
        return Drafted(places, tokens, p1, p2, candidates, hits, rank, raw_rank)

    def _cut(self, corpus: Corpus, places: Places) -> Iterator[slice]:
        """As many places at a time as fit a step, with their texts."""
        clean, noisy = self._sizes
        first = used = taken = 0
        last = -1
        for index, (text, length) in enumerate(
            zip(places.text.tolist(), places.length.tolist(), strict=True)
        ):
            more = int(corpus.lengths[text]) if text != last else 0
            if used + more > clean or taken + length > noisy:
                yield slice(first, index)
                first, used, taken = index, 0, 0
                more = int(corpus.lengths[text])
            used, taken, last = used + more, taken + length, text
        yield slice(first, len(places))

    def _step(
        self, corpus: Corpus, places: Places, block: int, temperature: float, seeds: Sequence[int]
    ) -> tuple[Tensor, ...]:
        """tokens, p1, p2, candidates and hits [M, B], rank and raw rank [M]."""
        members, document = np.unique(places.text, return_inverse=True)
        blocks = Blocks(document, places.start, places.length, np.full(len(places), places.continuation))
        step = lay_out(corpus, members, blocks, *self._sizes)
        loaded = load(step, self._backbone.device, self._mask_token)
        clean_mask, noisy_mask = self._halves.masks(loaded)
        _, kept = self._halves.clean(loaded, clean_mask)
        hidden = self._halves.noisy(loaded, noisy_mask, self._layers, self._mask_embedding, kept)
        own = np.array([seeds[text] for text in places.text.tolist()], dtype=np.int64)
        chunks = [
            self._chunk(hidden, step, loaded, places, which, block, temperature, own)
            for which in _chunks(places.length)
        ]
        return tuple(torch.cat(column) for column in zip(*chunks, strict=True))

    def _chunk(
        self,
        hidden: Tensor,
        step: Step,
        loaded: Loaded,
        places: Places,
        which: slice,
        block: int,
        temperature: float,
        seeds: NDArray[np.int64],
    ) -> tuple[Tensor, ...]:
        """The same for some consecutive rows."""
        ends = places.length.cumsum()
        begin = int(ends[which.start] - places.length[which.start])
        index = begin + np.flatnonzero(step.masked[begin : int(ends[which.stop - 1])])
        row = step.noisy_block[index] - which.start
        device = hidden.device

        def move(values: NDArray[Any], dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(values).to(device, dtype)

        rows, slots = move(row, torch.int64), move(step.slot[index], torch.int64)
        table = SlotTable(
            seed=move(seeds[which][row], torch.int64),
            position=move(step.noisy_positions[index], torch.int32),
            start=move(places.start[which][row], torch.int32),
            slot=slots.to(torch.int32),
            temperature=torch.full((len(row),), temperature, dtype=torch.float32, device=device),
            draft=torch.ones(len(row), dtype=torch.bool, device=device),
        )
        where = move(index, torch.int64)
        logits = head_logits(hidden[where], self._backbone.head)
        picks = self._picker(logits, table)
        labels = loaded.labels[where]
        hits = picks.tokens == labels
        count = which.stop - which.start

        def spread(values: Tensor, dtype: torch.dtype) -> Tensor:
            room = torch.zeros(count, block, dtype=dtype, device=device)
            room[rows, slots] = values.to(dtype)
            return room

        missed = torch.full((count,), len(row), device=device).scatter_reduce(
            0, rows, torch.where(hits, len(row), torch.arange(len(row), device=device)), "amin"
        )
        return (
            spread(picks.tokens, torch.int32),
            spread(picks.p1, torch.float32),
            spread(picks.p2, torch.float32),
            spread(picks.candidates[0], torch.int32),
            spread(hits, torch.bool),
            *self._rank(logits, labels, table, missed, temperature),
        )

    def _rank(
        self, logits: Tensor, labels: Tensor, table: SlotTable, missed: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Ranks [M] of the labels at slots `missed` [M]; 0 where that is no slot, or one without a label."""
        known = (missed < len(labels)).nonzero().squeeze(1)
        known = known[labels[missed[known]] >= 0]
        found = torch.zeros(len(missed), 2, dtype=torch.int32, device=logits.device)
        for some in known.split(RANKED_AT_ONCE):
            at = torch.zeros(
                RANKED_AT_ONCE, dtype=torch.int64, device=logits.device
            )  # one size, compiled once
            at[: len(some)] = missed[some]
            ranked = self._ranks(
                logits[at],
                labels[at].clamp(min=0),
                table.seed[at],
                table.position[at],
                temperature,
                self._mask_token,
            )
            found[some] = ranked[: len(some)]
        return found[:, 0], found[:, 1]


def ranks(
    logits: Tensor, tokens: Tensor, seeds: Tensor, positions: Tensor, temperature: float, mask_token: int
) -> Tensor:
    """Ranks, from 1, of a token at each of n slots by z + T·G and by z, the mask token left out: [n, 2]."""
    every = torch.arange(logits.shape[1], device=logits.device)
    z = torch.where(every == mask_token, float("-inf"), logits.double())
    scores = z if temperature == 0 else z + temperature * gumbel(seeds, positions.long(), every)
    own = tokens[:, None]
    return torch.stack([1 + (values > values.gather(1, own)).sum(1) for values in (scores, z)], 1).to(
        torch.int32
    )


def _chunks(lengths: Longs) -> Iterator[slice]:
    """Consecutive rows of at most SLOTS_AT_ONCE slots."""
    first = used = 0
    for index, length in enumerate(lengths.tolist()):
        if used + length > SLOTS_AT_ONCE:
            yield slice(first, index)
            first, used = index, 0
        used += length
    yield slice(first, len(lengths))
