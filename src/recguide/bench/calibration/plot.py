"""A calibration as a picture: promised and kept, candidates, and the table itself."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from recguide.bench.calibration.reliability import Reliability
from recguide.guidance.value import BLOCKS, STRATA, ValueTable

INK, FAINT = "#24292f", "#d0d7de"
COLOURS = {4: "#8c959f", 8: "#2377cc", 16: "#2da44e", 32: "#cf4520"}
RANKS = ("#2377cc", "#5ba4e6", "#a8d1f7")


def plot_calibration(table: ValueTable, found: Reliability, file: Path) -> None:
    """Writes a PNG or SVG, by the file's suffix; needs the extra `plot` (matplotlib)."""
    from matplotlib.figure import Figure  # an extra, and slow to import

    figure = Figure(figsize=(11.0, 8.2), layout="constrained")
    (values, slots), (ranks, curves) = figure.subplots(2, 2)
    _values(values, found)
    _slots(slots, found)
    _ranks(ranks, found)
    _curves(curves, table)
    for axes in (values, slots, ranks, curves):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
    where = table.conditions
    figure.suptitle(f"{where.model}: value table of {table.rounds:,} rounds", fontsize=11, color=INK)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def _values(axes: Any, found: Reliability) -> None:  # noqa: ANN401  matplotlib is imported when it is used
    top = 1.0
    for block in BLOCKS:
        for number, curve in enumerate(found.values[block]):
            label = f"B = {block}" if number == 0 else None
            axes.plot(
                curve.predicted, curve.observed, "o-", color=COLOURS[block], markersize=3, lw=0.8, label=label
            )
            top = max(top, *curve.predicted, *curve.observed)
    _diagonal(axes, 1.0, 1.05 * top)
    axes.set(xlabel="V promised, tokens", ylabel="mean A of prompts not seen")
    axes.set_title("Acceptance, a line for each fold", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _slots(axes: Any, found: Reliability) -> None:  # noqa: ANN401
    low = 1.0
    for curve in found.slots:
        axes.plot(curve.predicted, curve.observed, "o-", color=COLOURS[8], markersize=3, lw=0.8)
        low = min(low, *curve.predicted, *curve.observed)
    _diagonal(axes, max(0.0, low - 0.03), 1.0)
    axes.set(xlabel="promised probability that a reached slot passes", ylabel="share that passed")
    axes.set_title("Slots, by margin and history", fontsize=10)


def _ranks(axes: Any, found: Reliability) -> None:  # noqa: ANN401
    edges = (0.0, *found.ranks.edges, 1.0)
    names = [f"{a:g}-{b:g}" for a, b in pairwise(edges)]
    bottom = np.zeros(len(names))
    for number, (shares, colour) in enumerate(zip(found.ranks.shares, RANKS, strict=True), 1):
        axes.bar(names, shares, bottom=bottom, color=colour, width=0.7, label=f"candidate {number}")
        bottom = bottom + np.array(shares)
    for at, mass in enumerate(found.ranks.mass):
        axes.annotate(f"{mass:.0%}", (at, bottom[at]), ha="center", va="bottom", fontsize=8, color=INK)
    axes.set(xlabel="margin at the first mismatch", ylabel="share whose right token it is", ylim=(0, 1.02))
    axes.set_title("Corrections (above: share of mismatches)", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _curves(axes: Any, table: ValueTable) -> None:  # noqa: ANN401
    """V_B over s, from rough to fine certainty; means over z, and where z is the same block, full."""
    share = table.share[:, :-1]
    s = np.arange(share.shape[1]) + 0.5
    for block in table.blocks:
        values = table.survival[block].sum(2)[:, :-1]
        mass = np.maximum(share.sum(0), 1e-300)
        axes.plot(
            s,
            (share * values).sum(0) / mass,
            "o-",
            markersize=3,
            color=COLOURS[block],
            lw=1.4,
            label=f"B = {block}",
        )
        full = 3 + 2 * BLOCKS.index(block)
        assert full < STRATA
        axes.plot(s, values[full], ":", color=COLOURS[block], lw=1.2)
    axes.set(
        xlabel=f"bin of s ({table.signal}), from uncertain to certain", ylabel="V, tokens", ylim=(0, None)
    )
    axes.set_title("The table: all histories, and (dotted) after a full block of that size", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _diagonal(axes: Any, low: float, high: float) -> None:  # noqa: ANN401
    axes.plot((low, high), (low, high), color=FAINT, zorder=0)
    axes.set(xlim=(low, high), ylim=(low, high))
