"""`recguide bench`: loads for endpoints that run already."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recguide.cli.bench_options import asking, endpoints, load
from recguide.cli.bench_summary import show
from recguide.cli.console import fail, note, print_json, steps
from recguide.cli.options import Json, fills

if TYPE_CHECKING:
    from recguide.bench.load.endpoint import Asking
    from recguide.bench.load.run import Outcome, Plan
    from recguide.cli.bench_options import Sending, Ways


@fills(ways=endpoints, load=load, asking=asking)
def serve(
    *,
    slo: Annotated[
        str | None, typer.Option(help="Limits for goodput, in ms: ttft=500,tpot=20,e2e=10000.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file with every request.")] = None,
    report: Annotated[Path | None, typer.Option(help="HTML page with plots.")] = None,
    same_texts: Annotated[
        bool, typer.Option("--same-texts", help="With --against: fail unless all texts are equal.")
    ] = False,
    json_output: Json = False,
    ways: Ways,
    load: Sending,
    asking: Asking,
) -> None:
    """Send load to any OpenAI endpoint: latencies, rates, goodput and failures.

    In an open loop (--rate) latencies count from the scheduled time, so that a stall hides nothing.
    With --against two endpoints take turns, so that both see the same minutes.

    Example: [bold]recguide bench serve --base-url http://127.0.0.1:8000 --rate 4 --report load.html[/bold]
    """
    _check_extra(report)
    from recguide.bench.load.result import conclude
    from recguide.bench.load.slo import Slo

    wanted = None if slo is None else Slo.parse(slo)
    plan = load.plan(asking, comparing=ways.comparing)
    outcomes = asyncio.run(_run(ways, plan))
    result = conclude(outcomes, plan, wanted, load.settings(asking))
    if output is not None:
        result.save(output)
        note(f"saved as {output}")
    if report is not None:
        from recguide.bench.load.report.page import write_report

        write_report(report, result)
        note(f"report in {report}")
    if json_output:
        print_json(result.as_object())
    else:
        show(result)
    agreement = result.agreement
    if same_texts and (agreement is None or agreement.equal < agreement.compared or not agreement.compared):
        raise fail("the endpoints' texts are not all equal, or there were none to compare")


async def _run(ways: Ways, plan: Plan) -> list[Outcome]:
    from recguide.bench.load.run import run

    found = await ways.endpoints()
    with steps("sending") as progress:
        return await run(found, plan, progress)


def _check_extra(report: Path | None) -> None:
    """Before anything is sent."""
    from importlib.util import find_spec

    needed = ("httptools", "matplotlib") if report is not None else ("httptools",)
    if missing := [name for name in needed if find_spec(name) is None]:
        raise typer.BadParameter(f"needs {' and '.join(missing)}: pip install 'recguide[bench]'")


def _bench() -> None:
    """Measure from outside what runs already.

    Every benchmark has --help with its options, and --json.

    Example: [bold]recguide bench serve --base-url http://127.0.0.1:8000 --json[/bold]
    """


def _group() -> typer.Typer:
    group = typer.Typer(
        add_completion=False, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False
    )
    group.callback()(_bench)
    group.command("serve")(serve)
    return group


bench = _group()
