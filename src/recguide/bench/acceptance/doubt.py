"""How sure a draft says it is: the law of p1 and p2 given that a slot is risky or not, right or wrong."""

from __future__ import annotations

from recguide.bench.acceptance.process import AcceptanceReplay

SPAN = 0.49
"""Risky slots' margins are at most SPAN, others' at least 1 - SPAN: no rounding carries one over δ = 0.5."""


def mean_p1(process: AcceptanceReplay, *, risky: float, right: bool) -> float:
    """Mean top-1 probability of slots of which a share `risky` is risky."""
    shape = process.sure_right if right else process.sure_wrong
    margin = risky * SPAN / 2 + (1 - risky) * (1 - SPAN / (shape + 1))
    return margin + process.shared * (1 - margin) / 2
