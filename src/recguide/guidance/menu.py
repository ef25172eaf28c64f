"""The menu of every cell: plain AR, AR with a continuation, drafts of each block at each level of thrift.

Use n and yield y are means per forward over the cycle of drafts and verifications (architecture §4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.hull import Hulls, hulls
from recguide.guidance.outlook import Outlook


@dataclass(frozen=True, slots=True)
class Menus:
    """Of every cell.

    Attributes:
        n, y: [cells, vertices] query tokens and tokens per forward along the menus' hulls, from AR, (1, 1),
            on. At any price the best item is one of them.
        hulls: the steps between them.
        block: block → its outlook.
        head: [cells] probability that a continuation beside an AR step is right.
    """

    n: Floats
    y: Floats
    hulls: Hulls
    block: Mapping[int, Outlook]
    head: Floats

    @classmethod
    def of(cls, outlooks: Mapping[int, Outlook], head: Floats) -> Menus:
        columns = [(np.ones((len(head), 1)), np.ones((len(head), 1)))]
        for block, outlook in outlooks.items():
            columns.append(drafting(block, outlook))
            columns.append(stepping(block, outlook, head))
        n, y = (np.concatenate(parts, axis=1) for parts in zip(*columns, strict=True))
        found = hulls(n, y)
        rows = np.arange(len(n))[:, None]
        return cls(n[rows, found.item], y[rows, found.item], found, outlooks, head)

    def net(self, price: float, cells: Ints, token: Floats | float = 1.0) -> Floats:
        """[R] g of these cells: the best mean of (tokens − μ·n) per forward.

        `token` [R] is what a token counts.
        """
        return (_column(token) * self.y[cells] - price * self.n[cells]).max(1)

    def worth(self, price: float, cells: Ints, token: Floats | float = 1.0) -> Floats:
        """[R, blocks] what a draft in hand is worth, against none, at this price.

        The rounds until a draft is needed again emit A each, and each costs its query tokens and a forward.
        """
        net, token = self.net(price, cells, token)[:, None], _column(token)
        columns: list[Floats] = []
        for block, of in self.block.items():
            made = token * of.acceptance[cells]
            spent = price * (of.verified[cells] + block * of.branches[cells])
            columns.append(((made - spent - net) / (1 - of.reuse[cells])).max(1))
        return np.stack(columns, axis=1)

    def cost(self, price: float, rent: float, cells: Ints) -> tuple[Floats, Floats]:
        """[R] the least a token costs if forwards cost `rent` beside their query tokens, and y then."""
        n, y = self.n[cells], self.y[cells]
        each = (rent + price * n) / y
        best = each.argmin(1)
        rows = np.arange(len(cells))
        return each[rows, best], y[rows, best]


def _column(values: Floats | float) -> Floats:
    return np.reshape(values, (-1, 1))


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
