"""Pictures of results, as SVG files that are the same for the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recguide.bench import anchors
from recguide.bench.breakdown import PARTS

INK, FAINT = "#24292f", "#d0d7de"
COLOURS = {"nld-8b": "#2377cc", "nld-14b": "#cf4520"}
PART_COLOURS = {
    "products": "#2377cc",
    "attention": "#cf4520",
    "picks": "#a94fc4",
    "other": "#8c959f",
    "gaps": "#ffd33d",
}
STYLE: Mapping[str, Any] = {
    "svg.hashsalt": "recguide",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def roofline(file: Path, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Milliseconds of a forward against its query tokens.

    Args:
        results: model → rows of forward_cost.
    """
    figure, axes = _figure(7.6, 4.4)
    for model, rows in results.items():
        colour = COLOURS.get(model, INK)
        decoding = [row for row in rows if row["series"] == "tokens"]
        points = {row["query_tokens"]: row["ms"] for row in decoding}
        tokens = sorted(points)
        axes.plot(tokens, [points[n] for n in tokens], "o-", color=colour, markersize=4, label=model)
        limits = [(row["query_tokens"], row["limit_ms"]) for row in decoding if row["limit_ms"] is not None]
        if limits:
            axes.plot(*zip(*limits, strict=True), "v", color=colour, fillstyle="none", label="target")
        products = anchors.PRODUCTS_MS.get(model, ())
        line = [(n, ms) for n, ms in zip(anchors.QUERY_TOKENS, products, strict=False) if n <= tokens[-1]]
        if line:
            axes.plot(*zip(*line, strict=True), ":", color=colour, label="products alone, measured before")
        floor = rows[0]["ms"] / rows[0]["over_floor"]
        axes.axhline(floor, color=colour, linewidth=0.8, linestyle="--", label=f"bytes floor {floor:.2f} ms")
    axes.set(xscale="log", yscale="log", xlabel="query tokens N", ylabel="milliseconds a forward")
    _plain_ticks(axes)
    axes.grid(color=FAINT, linewidth=0.5, which="both")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    _save(figure, file)


def round_bars(file: Path, results: Mapping[str, Mapping[str, float]]) -> None:
    """One bar for each profiled decoding: its forward's milliseconds by part.

    Args:
        results: name → part → milliseconds.
    """
    figure, axes = _figure(7.6, 0.9 + 0.55 * len(results))
    names = list(results)
    left = [0.0] * len(names)
    for part in PARTS:
        widths = [results[name].get(part, 0.0) for name in names]
        axes.barh(names, widths, left=left, color=PART_COLOURS[part], height=0.6, label=part)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds a forward")
    axes.legend(frameon=False, fontsize=8, ncols=len(PARTS), loc="lower right", bbox_to_anchor=(1, 1))
    _save(figure, file)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    mpl.rcParams.update(dict[Any, Any](STYLE))
    return pyplot.subplots(figsize=(width, height), layout="constrained")


def _plain_ticks(axes: Any) -> None:  # noqa: ANN401  matplotlib is imported when a picture is drawn
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    low, high = axes.get_ylim()
    each = (
        (axes.xaxis, [n for n in anchors.QUERY_TOKENS if n & (n - 1) == 0 and n <= axes.get_xlim()[1]]),
        (axes.yaxis, [t for t in (3, 4, 5, 6, 8, 10, 15, 20, 30, 40, 60) if low <= t <= high]),
    )
    for axis, ticks in each:
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(ScalarFormatter())


def _save(figure: Any, file: Path) -> None:  # noqa: ANN401
    from matplotlib import pyplot

    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
