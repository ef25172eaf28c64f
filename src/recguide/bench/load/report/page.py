"""A load as one HTML file: no scripts, nothing fetched, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from recguide.bench.load.distribution import Distribution
from recguide.bench.load.report import plots
from recguide.bench.load.report.words import LATENCIES, headline, number
from recguide.bench.load.result import Loaded, LoadResult

COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")


@dataclass(frozen=True, slots=True)
class Picture:
    """title and remark: what it shows and how to read it."""

    title: str
    remark: str
    svg: Markup


def write_report(file: Path, result: LoadResult) -> None:
    """Writes the page; needs the extra `bench` (matplotlib)."""
    environment = Environment(
        loader=PackageLoader("recguide.bench.load.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    page = environment.get_template("page.html.j2").render(
        result=result,
        headline=headline,
        latencies=LATENCIES,
        columns=COLUMNS,
        pictures=_pictures(result.loaded),
        ratio=_ratio,
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")


def _pictures(loaded: Sequence[Loaded]) -> list[Picture]:
    """Those that there is something to show of."""
    drawn: Mapping[tuple[str, str], Callable[[Sequence[Loaded]], str | None]] = {
        ("Distributions", "Share of requests, tokens or chunks that took at most so long."): plots.latencies,
        (
            "Over time",
            "Endpoints take turns: one rests while the other works."
            if len(loaded) > 1
            else "From the first request's due time on.",
        ): plots.over_time,
        ("Requests", "One dot a request; crosses are failures."): plots.requests,
        ("Acceptance", "As the answers report it."): plots.acceptance,
    }
    found = [(title, remark, draw(loaded)) for (title, remark), draw in drawn.items()]
    return [Picture(title, remark, Markup(svg)) for title, remark, svg in found if svg is not None]


def _ratio(one: Distribution | None, other: Distribution | None, column: str) -> float | None:
    """The second endpoint's value over the first's."""
    if one is None or other is None or not getattr(one, column):
        return None
    return getattr(other, column) / getattr(one, column)
