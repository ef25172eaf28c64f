"""Recorded rounds of real serving as calibration data: what they may be used for, and what they lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from recguide.core import ParameterError
from recguide.guidance.arrays import Ints
from recguide.guidance.records import RoundRecord, Rounds
from recguide.guidance.trace_file import read_trace
from recguide.guidance.value import BLOCKS, STRATA, strata

ENOUGH = 48
"""Rounds of a block under a history, below which its curve is that of all histories."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Rounds of several traces of one model; warm-ups never enter a trace.

    Attributes:
        model, fingerprint: that they were recorded with.
        policies: rounds by the policy in use.
        records: of all traces.
    """

    model: str
    fingerprint: str
    policies: Mapping[str, int]
    records: Sequence[RoundRecord]


def recorded(files: Sequence[Path]) -> Recorded:
    """Reads traces; ParameterError if they are of different models, or hold nothing."""
    policies: dict[str, int] = {}
    kept: list[RoundRecord] = []
    models: dict[str, str] = {}
    for number, file in enumerate(files):
        header, records = read_trace(file)
        fingerprint, model = _model(file, header)
        models.setdefault(fingerprint, model)
        # Requests of different runs may share their numbers.
        kept += [replace(one, prompt=f"{number}/{one.prompt}") for one in records]
        policy = str(header.get("policy", "unknown"))
        policies[policy] = policies.get(policy, 0) + len(records)
    if len(models) != 1:
        names = ", ".join(models.values())
        raise ParameterError("from_trace", f"the traces are of different models: {names}")
    if not kept:
        raise ParameterError("from_trace", "holds no rounds")
    ((fingerprint, model),) = models.items()
    return Recorded(model, fingerprint, policies, kept)


def _model(file: Path, header: Mapping[str, Any]) -> tuple[str, str]:
    """Fingerprint and name."""
    conditions = header.get("conditions", {})
    if not conditions.get("fingerprint"):
        raise ParameterError("from_trace", f"{file} does not say of which model it is")
    return str(conditions["fingerprint"]), str(conditions.get("model", "unknown"))


@dataclass(frozen=True, slots=True)
class Support:
    """What traces of a policy say of blocks that it seldom chose.

    Attributes:
        rounds: block → rounds that drafted it.
        share: block → share of all rounds whose history has ENOUGH rounds of that block; for the others its
            curve is that of all histories, which the policy did not choose it under.
    """

    rounds: Mapping[int, int]
    share: Mapping[int, float]


def support(rounds: Rounds) -> Support:
    """Of every block in BLOCKS."""
    stratum = strata(rounds.previous, rounds.full)
    mass = np.bincount(stratum, rounds.weight, STRATA)
    counts: dict[int, Ints] = {
        block: np.bincount(stratum[rounds.block == block], minlength=STRATA) for block in BLOCKS
    }
    return Support(
        rounds={block: int(count.sum()) for block, count in counts.items()},
        share={block: float(mass[count >= ENOUGH].sum()) for block, count in counts.items()},
    )
