"""The menu of every cell: plain AR, AR with a continuation, drafts of each block at each level of thrift.

Use n and yield y are means per forward over the cycle of drafts and verifications (architecture §4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recguide.guidance.arrays import Floats
from recguide.guidance.hull import Hulls, hulls
from recguide.guidance.outlook import Choice, Outlook


@dataclass(frozen=True, slots=True)
class Menus:
    """Of every cell.

    Attributes:
        n, y: [vertices, cells] query tokens and tokens per forward along the menus' hulls, from AR, (1, 1),
            on. At any price the best item is one of them.
        hulls: the steps between them.
        block: block → its outlook.
        head: [cells] probability that a continuation beside an AR step is right; 0 without branches.
        choice: what is chosen of drafts in hand.
    """

    n: Floats
    y: Floats
    hulls: Hulls
    block: Mapping[int, Outlook]
    head: Floats
    choice: Choice
    _steps: dict[int, list[tuple[float, float, float]]]
    _vertices: dict[int, list[tuple[float, float]]]
    """What `steps` and `vertices` have said."""
    _acceptance: Floats
    _spent: Floats
    _forwards: Floats
    """[levels, blocks, cells] A, query tokens, and how many forwards of a draft's kind a draft lasts for."""

    @classmethod
    def of(cls, outlooks: Mapping[int, Outlook], head: Floats, choice: Choice = Choice.ALL) -> Menus:
        branches = choice is Choice.ALL
        if not branches:
            outlooks = {block: outlook.of(choice) for block, outlook in outlooks.items()}
            head = np.zeros_like(head)
        columns = [(np.ones((len(head), 1)), np.ones((len(head), 1)))]
        for block, outlook in outlooks.items():
            columns.append(drafting(block, outlook))
            if branches:
                columns.append(stepping(block, outlook, head))
        n, y = (np.concatenate(parts, axis=1) for parts in zip(*columns, strict=True))
        found = hulls(n, y)
        # Vertices and levels come first: reducing over few at the end is slow.
        n, y = (np.ascontiguousarray(np.take_along_axis(of, found.item, axis=1).T) for of in (n, y))
        spent = [of.verified + block * of.branches for block, of in outlooks.items()]
        lasting = [1 / (1 - of.reuse) for of in outlooks.values()]
        made = [of.acceptance for of in outlooks.values()]
        by_level = [_levels_first(parts) for parts in (made, spent, lasting)]
        return cls(n, y, found, outlooks, head, choice, {}, {}, by_level[0], by_level[1], by_level[2])

    @property
    def whole(self) -> Floats:
        """[blocks, cells] A of drafts that are verified whole, where they all are."""
        return self._acceptance[0]

    def net(self, price: float, token: Floats | float = 1.0) -> Floats:
        """[cells] g: the best mean of (tokens − μ·n) per forward.

        `token` [cells] is what a token counts.
        """
        return (token * self.y - price * self.n).max(0)

    def worth(self, price: float, token: Floats | float = 1.0) -> Floats:
        """[cells, blocks] what a draft in hand is worth, against none, at this price.

        The rounds until a draft is needed again emit A each, and each costs its query tokens and a forward.
        """
        worth = self._acceptance * token
        worth -= price * self._spent
        worth -= self.net(price, token)
        worth *= self._forwards
        return np.ascontiguousarray(worth.max(0).T)

    def steps(self, cell: int) -> list[tuple[float, float, float]]:
        """(Δy/Δn, Δn, Δy) from vertex to vertex."""
        if cell not in self._steps:
            columns = self.hulls.tokens[cell].tolist(), self.hulls.gain[cell].tolist()
            self._steps[cell] = [(gain / n, n, gain) for n, gain in zip(*columns, strict=True) if n]
        return self._steps[cell]

    def vertices(self, cell: int) -> list[tuple[float, float]]:
        """(n, y) along the hull of a cell."""
        if cell not in self._vertices:
            columns = self.n[:, cell].tolist(), self.y[:, cell].tolist()
            self._vertices[cell] = list(dict.fromkeys(zip(*columns, strict=True)))
        return self._vertices[cell]

    def cost(self, price: float, rent: float) -> Floats:
        """[vertices, cells] what a token costs if forwards cost `rent` beside their query tokens."""
        return (rent + price * self.n) / self.y


def _levels_first(parts: Sequence[Floats]) -> Floats:
    """[blocks] of [cells, levels] → [levels, blocks, cells]."""
    return np.ascontiguousarray(np.stack(parts).transpose(2, 0, 1))


def drafting(block: int, outlook: Outlook) -> tuple[Floats, Floats]:
    """(n, y) of a draft forward, then rounds until no branch is reused: y = A/(2−H)."""
    again = 1 - outlook.reuse
    forwards = 1 + again
    tokens = block * again + outlook.verified + block * outlook.branches
    return tokens / forwards, outlook.acceptance / forwards


def stepping(block: int, outlook: Outlook, head: Floats) -> tuple[Floats, Floats]:
    """(n, y) of AR steps with a continuation; if it is right, rounds until no branch is reused."""
    rounds = head[:, None] / (1 - outlook.reuse)
    forwards = 1 + rounds
    tokens = 1 + block + rounds * (outlook.verified + block * outlook.branches)
    return tokens / forwards, (1 + rounds * outlook.acceptance) / forwards
