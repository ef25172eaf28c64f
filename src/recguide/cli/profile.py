"""`recguide profile`: what a forward costs here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from recguide.cli.console import note, out, print_json, steps
from recguide.cli.options import Json, LoadOptions, Model, fills, loading

if TYPE_CHECKING:
    from recguide.bench.profile import Profile

WORTH_SAYING_S = 10.0


@fills(load=loading)
def profile(
    model: Model,
    *,
    output: Annotated[
        Path | None,
        typer.Option(help="File of the table.", show_default="in the user's cache, where it is found again"),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG of the table; needs the extra 'plot'.")] = None,
    largest: Annotated[int, typer.Option(help="Query tokens of the largest forward.")] = 1024,
    json_output: Json = False,
    load: LoadOptions,
) -> None:
    """Measure what a forward costs on this device: T(N, M, X) in milliseconds.

    N query tokens, M prefix tokens read (once per request), X query tokens × prefix tokens. Policies look up
    the saved table. Times that cannot be true (flat, falling, noisy) are refused with the reason.

    Example: [bold]recguide profile smollm2-135m --plot cost.png[/bold]
    """
    from recguide.bench.forwards import measure
    from recguide.bench.profile_plot import plot_profile
    from recguide.cli.opening import open_llm
    from recguide.guidance.cost import place

    if largest < 2:
        raise typer.BadParameter("--largest must be at least 2")
    if plot is not None:
        _check_matplotlib()
    llm = open_llm(model, load)
    with steps("timing forwards") as progress:
        found = measure(llm.engine, llm.model, largest, progress, _expect)
    file = place(found.table.conditions) if output is None else output
    found.table.save(file)
    if plot is not None:
        plot_profile(found, plot)
    if json_output:
        print_json(
            {"file": str(file), **found.table.as_object(), "terms": _terms(found), "rows": found.rows()}
        )
    else:
        _show(found)
        note(f"saved as {file}")


def _expect(seconds: float) -> None:
    if seconds > WORTH_SAYING_S:
        about = f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"
        note(f"this will take about {about}; a smaller --largest takes less")


def _check_matplotlib() -> None:
    """Before anything is measured."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise typer.BadParameter("--plot needs matplotlib: pip install 'recguide[plot]'")


def _terms(found: Profile) -> dict[str, float]:
    """The fitted terms with their errors."""
    terms = found.terms
    return {
        "prefix_ms": terms.prefix_ms,
        "prefix_error_ms": terms.prefix_error_ms,
        "pair_ms": terms.pair_ms,
        "pair_error_ms": terms.pair_error_ms,
        "residual": terms.residual,
    }


def _show(found: Profile) -> None:
    table, terms, screen = found.table, found.terms, out()
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("query tokens", "ms", "±"):
        grid.add_column(head, justify="right")
    for n, time, spread in zip(table.tokens, table.base_ms, table.spread_ms, strict=True):
        grid.add_row(str(n), f"{time:.3f}", f"{spread:.3f}")
    screen.print(grid)
    screen.print()
    kilo, mega = 1e3, 1e6
    screen.print(
        f"per 1,000 prefix tokens read   {kilo * terms.prefix_ms:.4f} ± {kilo * terms.prefix_error_ms:.4f} ms"
    )
    screen.print(
        f"per 1,000 query x 1,000 prefix {mega * terms.pair_ms:.4f} ± {mega * terms.pair_error_ms:.4f} ms"
    )
    screen.print(f"beyond {table.tokens[-1]} query tokens    {table.slope_ms:.4f} ms each")
    screen.print(f"residual of the terms          {terms.residual:.1%}")
