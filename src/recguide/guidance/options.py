"""What a request without a draft may begin with: AR, a draft, or AR with a continuation beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.hull import Hulls, SharedHulls, vertices

ROOM = 3
"""Tokens that may still be emitted from which on every option is on offer, if with a shorter block."""

Steps = list[tuple[int, float]]
"""(Δn, Δy) from vertex to vertex of a hull."""


@dataclass(frozen=True, slots=True)
class Options:
    """[items] each, in the order of their query tokens; the first is AR.

    Attributes:
        blocks, sizes: that a draft may have, rising: an array, and a list.
        pairs: (block, branch) of each; verified is 1 without a block.
        block, verified, branch: draft's block, slots of the causal row, continuation's block; capped by what
            a request may still emit when it is laid out.
    """

    blocks: Ints
    sizes: list[int]
    pairs: list[tuple[int, int]]
    block: Ints
    verified: Ints
    branch: Ints
    _least: Ints
    """Tokens that a request must still be able to emit: one slot is no draft."""
    _drafts: Ints
    _beside: Ints
    """Which items are drafts, and AR with a continuation, by rising blocks."""
    _each: list[tuple[int, int, bool]]
    """(query tokens, place of the block, whether it is drafted at once) of each but the first."""
    _hulls: SharedHulls

    @classmethod
    def of(cls, blocks: Sequence[int]) -> Options:
        items = [(1, 0, 1, 0, 1)]
        items += [(block, block, 0, 0, ROOM - 1) for block in blocks]
        items += [(1 + block, 0, 1, block, ROOM) for block in blocks]
        items.sort()
        tokens, block, verified, branch, least = np.array(items, np.int64).T
        return cls(
            blocks=np.array(blocks, np.int64),
            sizes=list(blocks),
            pairs=list(zip(block.tolist(), branch.tolist(), strict=True)),
            block=block,
            verified=verified,
            branch=branch,
            _least=least,
            _drafts=np.flatnonzero(block),
            _beside=np.flatnonzero(branch),
            _each=[(n, blocks.index(own or beside), own > 0) for n, own, _, beside, _ in items[1:]],
            _hulls=SharedHulls(tokens.astype(np.float64)),
        )

    def hulls(self, token: Floats, head: Floats, draft: Floats, remaining: Ints) -> Hulls:
        """Of R requests.

        Args:
            token: [R] what an emitted token counts.
            head: [R] probability that a continuation beside an AR step is right.
            draft: [R, blocks] what a draft in hand is worth.
            remaining: [R] tokens that may still be emitted.
        """
        gain = np.empty((len(self.block), len(token)))
        worth = draft.T
        gain[0] = token
        gain[self._drafts] = worth
        gain[self._beside] = token + head * worth
        np.copyto(gain, -np.inf, where=remaining < self._least[:, None])
        return self._hulls.of(gain)

    def hull(
        self, token: float, head: float, draft: Sequence[float], remaining: int
    ) -> tuple[list[int], Steps]:
        """Items and steps of one request's hull; as `hulls`, with `draft` [blocks] not capped yet."""
        most = token * remaining
        n, gain = [1], [token]
        if remaining >= ROOM - 1:
            for tokens, place, drafted in self._each:
                worth = min(draft[place], most)
                n.append(tokens)
                gain.append(worth if drafted else token + head * worth if remaining >= ROOM else 0.0)
        items = vertices(n, gain)
        return items, [(n[b] - n[a], gain[b] - gain[a]) for a, b in pairwise(items)]
