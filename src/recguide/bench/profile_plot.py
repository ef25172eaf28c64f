"""A cost table as a picture: time over N, and every measured point against what the table says."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from recguide.bench.profile import Profile

INK, BLUE, FAINT = "#24292f", "#2377cc", "#d0d7de"


def plot_profile(profile: Profile, file: Path) -> None:
    """Writes a PNG; needs the extra `plot` (matplotlib)."""
    from matplotlib.figure import Figure  # an extra, and slow to import

    table = profile.table
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    over_n, terms = figure.subplots(1, 2)
    over_n.errorbar(
        table.tokens, table.base_ms, yerr=table.spread_ms, fmt="o", color=INK, markersize=4, label="measured"
    )
    n = np.unique(np.geomspace(1, 1.5 * table.tokens[-1], 400).round())
    over_n.plot(n, table.ms(n), color=BLUE, drawstyle="steps-post" if table.stepped else None, label="table")
    over_n.set(xscale="log", xlabel="query tokens N", ylabel="milliseconds, prefix taken out", ylim=(0, None))
    over_n.legend(frameon=False)

    rows = profile.rows()
    said, found = [row["table_ms"] for row in rows], [row["ms"] for row in rows]
    limit = 1.05 * max(*said, *found)
    terms.plot((0, limit), (0, limit), color=FAINT)
    terms.plot(said, found, "o", color=BLUE, markersize=4)
    terms.set(
        xlabel="table with its M and X terms, ms", ylabel="measured, ms", xlim=(0, limit), ylim=(0, limit)
    )

    conditions = table.conditions
    figure.suptitle(f"{conditions.model} on {conditions.device}", fontsize=10, color=INK)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
