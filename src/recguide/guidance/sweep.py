"""The exact solutions of a step: increments in the order of Δy/Δn, and N swept upward over the cost table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from recguide.guidance.arrays import Bools, Floats, Ints

Time = Callable[[Floats, Floats], Floats]
"""(N, X) → T in milliseconds, for arrays."""

BETWEEN = 64
"""Places in between at which T is looked at too, where equal requests may be split."""


@dataclass(frozen=True, slots=True)
class Base:
    """What is there before any increment: query tokens, query × prefix tokens, yield."""

    tokens: float
    pairs: float
    gain: float


@dataclass(frozen=True, slots=True)
class Increments:
    """What may be added, [I] each; Δy/Δn of one request's must fall.

    Attributes:
        tokens, gain: Δn > 0 and Δy.
        prefix: prefix tokens of its request.
        weight: what one of its query tokens costs, relative to one of a request without prefix.
    """

    tokens: Floats
    gain: Floats
    prefix: Floats
    weight: Floats

    @property
    def slope(self) -> Floats:
        return self.gain / (self.tokens * self.weight)


@dataclass(frozen=True, slots=True)
class Cut:
    """Where plans have the most Y/T.

    Attributes:
        tokens, gain, ms: N, Y and T there.
        last, following: Δy/Δn just below and just above; inf and 0 where there is nothing.
    """

    tokens: float
    gain: float
    ms: float
    last: float
    following: float


def best_rate(base: Base, increments: Increments, time: Time) -> Cut:
    """The cut with the most Y/T. An increment may be taken in part: it stands for equal requests."""
    slope, n, x, y = _swept(base, increments)
    places = np.union1d(n, np.linspace(n[0], n[-1], BETWEEN))
    gain = np.interp(places, n, y)
    ms = time(places, np.interp(places, n, x))
    best = int((gain / ms).argmax())
    below = int(np.searchsorted(n, places[best], side="left"))  # increments begun up to there
    above = int(np.searchsorted(n, places[best], side="right")) - 1  # increments completed
    return Cut(
        tokens=float(places[best]),
        gain=float(gain[best]),
        ms=float(ms[best]),
        last=float(slope[below - 1]) if below else float("inf"),
        following=float(slope[above]) if above < len(slope) else 0.0,
    )


def best_profit(base: Base, increments: Increments, time: Time, rate: float) -> Bools:
    """[I] the increments up to the most Y − ρ·T: one step of a run with ρ tokens per millisecond."""
    order = _order(increments)
    _, n, x, y = _swept(base, increments, order)
    best = int((y - rate * time(n, x)).argmax())
    taken = np.zeros(len(order), np.bool_)
    taken[order[:best]] = True
    return taken


def _order(increments: Increments) -> Ints:
    return np.argsort(-increments.slope, kind="stable")


def _swept(
    base: Base, increments: Increments, order: Ints | None = None
) -> tuple[Floats, Floats, Floats, Floats]:
    """Falling slopes [I], and N, X, Y [I + 1] before the first increment and after each."""
    order = _order(increments) if order is None else order
    tokens, gain = increments.tokens[order], increments.gain[order]
    return (
        increments.slope[order],
        _summed(base.tokens, tokens),
        _summed(base.pairs, tokens * increments.prefix[order]),
        _summed(base.gain, gain),
    )


def _summed(first: float, values: Floats) -> Floats:
    return np.cumsum(np.concatenate([[first], values]))
