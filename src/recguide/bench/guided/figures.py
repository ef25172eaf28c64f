"""Pictures of budgets by load: throughput all together and for each, blocks chosen, price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recguide.bench.figures import FAINT, INK, STYLE

COLOURS = {
    "price": "#cf4520",
    "oracle": "#8c959f",
    "ar": "#24292f",
    "recipe": "#8250df",
    "fixed 8": "#a8d1f7",
    "fixed 16": "#5ba4e6",
    "fixed 32": "#2377cc",
    "paper, s, padded": "#c9e8c3",
    "paper, s and z, padded": "#8fd18a",
    "paper, bucketed": "#2da44e",
    "paper, ragged": "#1a7f37",
}
BLOCK_COLOURS = {"8": "#a8d1f7", "16": "#5ba4e6", "32": "#2377cc"}


def frontier(rows: Sequence[Mapping[str, Any]], title: str, file: Path) -> None:
    """Aggregate against per-request throughput, a line for each way (the paper's Figure 5), beside ratios to
    the best fixed block or AR.

    Args:
        rows: of `load`, `way`, `tokens_per_s`, `request_tokens_per_s`.
    """
    figure, (plane, ratios) = _figure(11.0, 4.6, 2)
    best = _best_fixed(rows)
    for way in dict.fromkeys(row["way"] for row in rows):
        mine = sorted((row for row in rows if row["way"] == way), key=lambda row: row["load"])
        style = _style(way)
        plane.plot(
            [row["request_tokens_per_s"] for row in mine], [row["tokens_per_s"] for row in mine], **style
        )
        at = [row["load"] for row in mine if row["load"] in best]
        ratios.plot(
            at, [row["tokens_per_s"] / best[row["load"]] for row in mine if row["load"] in best], **style
        )
    plane.set(xscale="log", yscale="log", xlabel="tokens a second, each request")
    plane.set_ylabel("tokens a second, all requests")
    _plain_ticks(plane.xaxis)
    _plain_ticks(plane.yaxis)
    ratios.axhline(1.0, color=FAINT, zorder=0)
    ratios.set(xscale="log", xlabel="requests C", ylabel="against the best of fixed blocks and AR")
    loads = sorted(best)
    ratios.set_xticks(loads, labels=list(map(str, loads)))
    ratios.minorticks_off()
    plane.grid(color=FAINT, linewidth=0.5)
    ratios.grid(color=FAINT, linewidth=0.5)
    _legend_beside(ratios)
    _finish(figure, title, file)


def _plain_ticks(axis: Any) -> None:  # noqa: ANN401  matplotlib is imported when a picture is drawn
    """1, 2 and 5 of each power of ten, in figures."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def block_mix(rows: Sequence[Mapping[str, Any]], title: str, file: Path) -> None:
    """Shares of drafts by block over loads (Table 4), one panel for each way.

    Args:
        rows: of `load`, `way`, `shares` {"8": per cent, …}.
    """
    ways = list(dict.fromkeys(row["way"] for row in rows))
    figure, panels = _figure(4.6 * len(ways), 3.6, len(ways))
    for axes, way in zip([panels] if len(ways) == 1 else panels, ways, strict=True):
        mine = sorted((row for row in rows if row["way"] == way), key=lambda row: row["load"])
        names = [str(row["load"]) for row in mine]
        bottom = [0.0] * len(mine)
        for block, colour in BLOCK_COLOURS.items():
            heights = [row["shares"].get(block, 0.0) for row in mine]
            axes.bar(names, heights, bottom=bottom, color=colour, width=0.7, label=f"B = {block}")
            bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
        axes.set(xlabel="requests C", ylabel="drafts begun, %", ylim=(0, 100), title=way)
        if way == ways[-1]:
            _legend_beside(axes)
    _finish(figure, title, file)


def bars(
    values: Mapping[str, float], xlabel: str, title: str, file: Path, marks: Mapping[str, float]
) -> None:
    """One bar for each name; `marks` are lines across them, with their names."""
    figure, axes = _figure(7.6, 1.2 + 0.4 * len(values), 1)
    axes.barh(list(values), list(values.values()), color="#2377cc", height=0.6)
    for at, value in enumerate(values.values()):
        said = f" {value:,.0f} " if value >= 100 else f" {value:.3g} "
        # Inside, where no mark crosses it, unless it is too short.
        side, color = ("right", "white") if 8 * value >= max(values.values()) else ("left", INK)
        axes.annotate(said, (value, at), va="center", ha=side, fontsize=8, color=color)
    for name, value in marks.items():
        axes.axvline(value, color="#cf4520", linewidth=1.0, linestyle="--", label=name)
    axes.invert_yaxis()
    axes.set(xlabel=xlabel)
    if marks:
        _legend_beside(axes)
    _finish(figure, title, file)


def _best_fixed(rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    best: dict[int, float] = {}
    for row in rows:
        if row["way"] == "ar" or row["way"].startswith("fixed "):
            best[row["load"]] = max(best.get(row["load"], 0.0), row["tokens_per_s"])
    return best


def _style(way: str) -> dict[str, Any]:
    ours = way == "price"
    return {
        "color": COLOURS.get(way, "#bf8700"),
        "label": "oracle, simulated" if way == "oracle" else way,
        "marker": "o",
        "markersize": 4 if ours else 3,
        "linewidth": 2.0 if ours else 1.1,
        "linestyle": ":" if way == "oracle" else "-",
        "zorder": 3 if ours else 2,
    }


def _legend_beside(axes: Any) -> None:  # noqa: ANN401  matplotlib is imported when it is used
    """To the right of a panel, where it covers nothing."""
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)


def _figure(width: float, height: float, panels: int) -> tuple[Any, Any]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(dict[Any, Any](STYLE)):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(1, panels)


def _finish(figure: Any, title: str, file: Path) -> None:  # noqa: ANN401  matplotlib is imported when it is used
    from matplotlib import rc_context

    file.parent.mkdir(parents=True, exist_ok=True)
    figure.suptitle(title, fontsize=10, color=INK)
    with rc_context(dict[Any, Any](STYLE)):
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else {}, dpi=150)
