"""The menu of every cell: plain AR, AR with a continuation, drafts of each block at each level of thrift.

Use n and yield y are means per forward over the cycle of drafts and verifications (architecture §4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from recguide.guidance.arrays import Floats
from recguide.guidance.hull import Hulls, hulls
from recguide.guidance.outlook import Outlook

AR = 0
"""Index of plain AR in every menu."""


@dataclass(frozen=True, slots=True)
class Menus:
    """Of every cell.

    Attributes:
        n, y: [cells, items] query tokens and tokens per forward; item AR is (1, 1).
        hulls: of them.
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
        return cls(n, y, hulls(n, y), outlooks, head)

    def net(self, price: float) -> Floats:
        """[cells] g: the best mean of (tokens − μ·n) per forward."""
        return (self.y - price * self.n).max(1)

    def worth(self, price: float, net: Floats) -> Mapping[int, Floats]:
        """Block → [cells] what a draft in hand is worth, against none, at this price.

        The rounds until a draft is needed again emit A each, and each costs its query tokens and a forward.
        """
        return {
            block: (
                (outlook.acceptance - price * (outlook.verified + block * outlook.branches) - net[:, None])
                / (1 - outlook.reuse)
            ).max(1)
            for block, outlook in self.block.items()
        }


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
