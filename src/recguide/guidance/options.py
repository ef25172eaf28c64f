"""What a request without a draft may begin with: AR, a draft, or AR with a continuation beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.hull import Hulls, SharedHulls

ROOM = 3
"""Tokens that may still be emitted from which on every option is on offer, if with a shorter block."""


@dataclass(frozen=True, slots=True)
class Options:
    """[items] each, in the order of their query tokens; the first is AR.

    Attributes:
        blocks: sizes that a draft may have, rising.
        pairs: (block, branch) of each; verified is 1 without a block.
        block, verified, branch: draft's block, slots of the causal row, continuation's block; capped by what
            a request may still emit when it is laid out.
    """

    blocks: Ints
    pairs: list[tuple[int, int]]
    block: Ints
    verified: Ints
    branch: Ints
    _least: Ints
    """Tokens that a request must still be able to emit: one slot is no draft."""
    _drafts: Ints
    _beside: Ints
    """Which items are drafts, and AR with a continuation, by rising blocks."""
    _hulls: SharedHulls

    @classmethod
    def of(cls, blocks: Sequence[int]) -> Options:
        items = [(1, 0, 1, 0, 1)]
        items += [(block, block, 0, 0, ROOM - 1) for block in blocks]
        items += [(1 + block, 0, 1, block, ROOM) for block in blocks]
        tokens, block, verified, branch, least = np.array(sorted(items), np.int64).T
        return cls(
            blocks=np.array(blocks, np.int64),
            pairs=list(zip(block.tolist(), branch.tolist(), strict=True)),
            block=block,
            verified=verified,
            branch=branch,
            _least=least,
            _drafts=np.flatnonzero(block),
            _beside=np.flatnonzero(branch),
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
