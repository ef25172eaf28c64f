"""Texts and what drafts make of them: what a simulation needs to know of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from recguide.guidance.arrays import Bools, Floats, Ints

WIDEST = 32
"""Slots of the largest block that a simulation drafts."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafts of `block` slots, [D, block] each.

    Attributes:
        right: whether the slot holds the text's token; slot 0 as a continuation predicts it.
        margins: M_i.
        ranks: rank of the text's token among the candidates where the slot is wrong; 0 if none holds it.
    """

    right: Bools
    margins: Floats
    ranks: Ints


class Traffic(Protocol):
    """Texts, numbered; the same number is the same text and the same drafts, whatever the policy."""

    @property
    def length(self) -> int:
        """Tokens of the longest text."""
        ...

    def seat(self, seat: int, text: int) -> int:
        """A text takes a seat; returns its length in tokens."""
        ...

    def draft(self, seats: Ints, positions: Ints, block: int) -> Drafted:
        """What drafts of `block` slots whose slot 0 stands at `positions` [D] hold."""
        ...

    def entropy(self, seats: Ints, positions: Ints, slots: int) -> Floats:
        """[D, slots] the verifier's entropy at slots 0, 1, … of a block that starts there, in nats."""
        ...
