"""What a market says of one cell, in plain numbers: a few requests are planned for without arrays."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

from recguide.guidance.options import ROOM, Options, Steps

FEW = 12
"""Requests up to which that is quicker."""
_FAR = 1 << 30
"""A cap that binds nothing."""


class Quote:
    """Args: price: μ; options: what is chosen among.

    Attributes:
        token: what a token emitted now counts.
        worth: [blocks] of a draft in hand, against none.
        head: probability that a continuation beside an AR step is right; 0 if none pays.
        least: probability of reuse below which no branch pays.
        blocks: sizes that a draft may have, rising.
        best: the most that a draft in hand is worth.
        enough: tokens that a request must still be able to emit for `begin` to hold: a draft is worth no more
            than them.
    """

    def __init__(
        self, token: float, worth: Sequence[float], head: float, least: float, price: float, options: Options
    ) -> None:
        self.token, self.worth, self.head, self.least = token, worth, head, least
        self.blocks = options.sizes
        self.best = max(worth)
        self.enough = max(ROOM, self.best / token)
        self._price, self._options = price, options
        self.far = max(self.enough, self.blocks[-1])

    @cached_property
    def begin(self) -> tuple[list[int], Steps]:
        """Items and steps of the hull of what begins without a draft in hand, if no cap is near."""
        return self._options.hull(self.token, self.head, self.worth, _FAR)

    def begin_near(self, left: int) -> tuple[list[int], Steps]:
        """The same of a request that may emit that many tokens."""
        if left >= self.enough:
            return self.begin
        return self._options.hull(self.token, self.head, self.worth, left)

    def branch(self, chance: float, left: int) -> tuple[int, float]:
        """The block that brings most to a branch that is reused with this chance, behind which `left` tokens
        may be emitted, and that; 0 slots if no draft fits."""
        if left >= self.far:
            return self.far_branch(chance)
        most = self.token * left
        nets = [
            min(worth, most) * chance - self._price * block
            for worth, block in zip(self.worth, self.blocks, strict=True)
        ]
        at = nets.index(max(nets))
        if self.blocks[at] <= left:
            return self.blocks[at], chance * self._saved(at, self.blocks[at])
        if left < 2:
            return 0, 0.0
        return left, chance * self._saved(min(bisect_left(self.blocks, left), len(self.blocks) - 1), left)

    def far_branch(self, chance: float, left: int = _FAR) -> tuple[int, float]:
        """The same with `far` tokens left, or more."""
        del left
        edges, blocks = self._paying
        block, saved = blocks[bisect_left(edges, chance)]
        return block, chance * saved

    @cached_property
    def _paying(self) -> tuple[list[float], list[tuple[int, float]]]:
        """Chances beyond which another block pays best, and (block, what it saves) below, between and above:
        chance · worth − μ · block are lines, and the highest one at each chance is their upper envelope."""
        edges, at = list[float](), 0
        blocks = [(self.blocks[at], self._saved(at, self.blocks[at]))]
        while at + 1 < len(self.blocks):
            steeper = [
                (
                    self._price
                    * (self.blocks[other] - self.blocks[at])
                    / (self.worth[other] - self.worth[at]),
                    other,
                )
                for other in range(at + 1, len(self.blocks))
                if self.worth[other] > self.worth[at]
            ]
            if not steeper:
                break
            edge, at = min(steeper)
            edges.append(edge)
            blocks.append((self.blocks[at], self._saved(at, self.blocks[at])))
        return edges, blocks

    def _saved(self, at: int, block: int) -> float:
        """What a draft of that many slots is worth that may emit no more than them."""
        return max(0.0, min(self.worth[at], self.token * block))
