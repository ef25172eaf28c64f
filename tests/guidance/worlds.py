"""Small value tables, views and clocks whose answers can be worked out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recguide.guidance.clock import Clock
from recguide.guidance.conditions import Conditions
from recguide.guidance.cost import CostTable
from recguide.guidance.value import BLOCKS, STRATA, Evidence, ValueTable
from recguide.guidance.view import View

NOWHERE = Conditions("toy", "toy", "", {}, {})


def cost(fixed=5.0, each=0.02, *, tokens=(1, 64, 4096), prefix_ms=0.0, pair_ms=0.0, free=0, stepped=False):
    """T(N) = fixed + each · max(0, N − free)."""
    tokens = tuple(sorted({*tokens, *([free] if free else [])}))
    return CostTable(
        tokens=tokens,
        base_ms=tuple(fixed + each * max(0, n - free) for n in tokens),
        spread_ms=(0.0,) * len(tokens),
        prefix_ms=prefix_ms,
        pair_ms=pair_ms,
        stepped=stepped,
        residual=0.0,
        conditions=NOWHERE,
        measured_at="",
    )


def clock(**settings):
    return Clock(cost(**settings))


EVIDENCE = Evidence(
    edges=(0.5,),
    right=(0.1, 0.9),
    wrong=(0.8, 0.2),
    candidates=((0.6, 0.4), (0.2, 0.2)),
    continuation=0.95,
    step=1.5,
)


def table(hazard=0.1, *, hazards=None, evidence=EVIDENCE):
    """One bin of s; hazard per slot, or by stratum."""
    by_stratum = np.full(STRATA, hazard) if hazards is None else np.asarray(hazards)
    survival = {
        block: np.broadcast_to((1 - by_stratum)[:, None, None] ** np.arange(block), (STRATA, 2, block)).copy()
        for block in BLOCKS
    }
    share = np.full((STRATA, 2), 1 / (2 * STRATA))
    return ValueTable(
        signal="entropy",
        edges=(),
        survival=survival,
        share=share,
        evidence=evidence,
        rounds=1000,
        conditions=NOWHERE,
    )


def view(requests=1, *, draft=0, margin=0.9, remaining=200, prefix=100, previous=16, full=False, **more):
    width = max(1, int(np.max(draft)))
    made = View(
        draft=np.broadcast_to(np.asarray(draft, np.int64), requests).copy(),
        margins=np.broadcast_to(np.asarray(margin, float), (requests, width)).copy(),
        signals=np.zeros((requests, 3)),
        previous=np.broadcast_to(np.asarray(previous, np.int64), requests).copy(),
        full=np.broadcast_to(np.asarray(full, bool), requests).copy(),
        idle=np.zeros(requests, np.int64),
        prefix=np.broadcast_to(np.asarray(prefix, np.int64), requests).copy(),
        remaining=np.broadcast_to(np.asarray(remaining, np.int64), requests).copy(),
    )
    return replace(made, **more)
