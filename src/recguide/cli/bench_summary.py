"""A load's result on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from recguide.cli.console import out

if TYPE_CHECKING:
    from recguide.bench.load.result import LoadResult

_COLUMNS = ("mean", "p50", "p90", "p99", "max")


def show(result: LoadResult) -> None:
    from recguide.bench.load.report.words import headline

    screen = out()
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("")
    for each in result.loaded:
        grid.add_column(each.name, justify="right")
    figures = [headline(each.summary) for each in result.loaded]
    for what in dict.fromkeys(name for found in figures for name in found):
        grid.add_row(what, *(found.get(what, "") for found in figures))
    screen.print(grid)
    screen.print()
    screen.print(_latencies(result))
    for each in result.loaded:
        for kind, count in each.summary.errors.items():
            screen.print(f"[red]{each.name}: {count} times {kind}[/red]")
    if result.agreement is not None:
        screen.print(f"same texts: {result.agreement.equal} of {result.agreement.compared}")


def _latencies(result: LoadResult) -> Table:
    from recguide.bench.load.report.words import LATENCIES, number

    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("ms")
    grid.add_column("")
    for column in _COLUMNS:
        grid.add_column(column, justify="right")
    for field, (name, _) in LATENCIES.items():
        for each in result.loaded:
            found = getattr(each.summary, field)
            values = (number(None if found is None else getattr(found, column)) for column in _COLUMNS)
            grid.add_row(name, each.name, *values)
    return grid
