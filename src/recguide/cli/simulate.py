"""`recguide simulate`: what budgets are worth at any load, before a GPU is asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from recguide.cli.console import note, out, print_json, steps
from recguide.cli.options import Json

if TYPE_CHECKING:
    from recguide.guidance.clock import Clock
    from recguide.guidance.policy import Policy
    from recguide.guidance.tally import Tally
    from recguide.guidance.traffic import Traffic
    from recguide.guidance.value import ValueTable

DEFAULT_POLICIES = ("ar", "fixed", "paper", "price", "oracle")


def simulate(
    *,
    process: Annotated[str, typer.Option(help="Acceptance process: nld-8b, nld-14b.")] = "nld-8b",
    trace: Annotated[
        Path | None, typer.Option(help="Recorded rounds to go by instead.", show_default=False)
    ] = None,
    cost: Annotated[
        str, typer.Option(help="ideal-8b, ideal-14b, or the file of a table by recguide profile.")
    ] = "ideal-8b",
    value: Annotated[
        Path | None,
        typer.Option(help="File of a value table.", show_default="the published statistics"),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="price, paper, fixed (the official recipe), fixed-16 ..., ar, oracle; repeat for more.",
            show_default=", ".join(DEFAULT_POLICIES),
        ),
    ] = None,
    load: Annotated[
        list[int] | None,
        typer.Option("--load", "-c", help="Requests decoding together; repeat for more.", show_default="16"),
    ] = None,
    arrivals: Annotated[
        float | None,
        typer.Option(help="Poisson arrivals a second, at most --load decoding.", show_default="closed loop"),
    ] = None,
    batching: Annotated[str, typer.Option(help="ragged, bucketed, padded.")] = "ragged",
    texts: Annotated[
        int | None, typer.Option(help="Requests in all.", show_default="four for each that decodes")
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens of each text of a process.")] = 512,
    prefix: Annotated[int, typer.Option(help="Cached tokens of a request when it starts.")] = 750,
    host: Annotated[
        tuple[float, float],
        typer.Option(
            help="What a step takes beyond its forward, ms, and for each request.", metavar="STEP EACH"
        ),
    ] = (0.0, 0.0),
    host_plain: Annotated[
        tuple[float, float],
        typer.Option(help="The same of plain steps alone, which run ahead of the host.", metavar="STEP EACH"),
    ] = (0.0, 0.0),
    host_ahead: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="The same of steps that policies plan before the outcome of the forward before is known.",
            metavar="STEP EACH",
            show_default="none are",
        ),
    ] = None,
    host_newcomer: Annotated[
        float, typer.Option(help="What a step takes longer for each text that begins in it: its prefill.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of texts and arrivals.")] = 0,
    json_output: Json = False,
) -> None:
    """Try policies on drawn or recorded acceptances, with a cost table for a clock.

    The policies are those that the engine asks, on the same views. Every policy meets the same texts.

    Example: [bold]recguide simulate -c 1 -c 16 -c 64 --policy price --policy fixed[/bold]
    """
    from recguide.guidance.batching import batching_named
    from recguide.guidance.host import Host
    from recguide.guidance.load import Load
    from recguide.guidance.simulation import simulate as run

    table, clock, mode = _value(value), _clock(cost), batching_named(batching)
    names, loads = policy or list(DEFAULT_POLICIES), load or [16]
    if min(loads) < 1 or length < 8:
        raise typer.BadParameter("--load must be at least 1, --length at least 8")
    times = {"": host, "-plain": host_plain, "-ahead": host_ahead or (), "-newcomer": (host_newcomer,)}
    for name, milliseconds in times.items():
        if min(milliseconds, default=0.0) < 0:
            raise typer.BadParameter(f"--host{name} must not be negative")
    beside = Host(plain=host_plain, other=host, ahead=host_ahead, newcomer=host_newcomer)
    jobs = [(seats, name) for seats in loads for name in names]
    policies = [_policy(name, table, clock) for _, name in jobs]
    rows: list[tuple[int, str, Tally]] = []
    with steps("simulating") as progress:
        for done, ((seats, name), each) in enumerate(zip(jobs, policies, strict=True)):
            progress(f"{name} at {seats}", done, len(jobs))
            much = Load(
                seats=seats,
                texts=texts or max(24, 4 * seats),
                arrivals_per_s=arrivals,
                prefix=prefix,
                seed=seed,
            )
            tally = run(_traffic(process, trace, seats, length, seed), each, clock, much, mode, beside)
            if not tally.forwards:
                raise typer.BadParameter(
                    f"of {much.texts} texts none is left to count at --load {seats}: raise --texts"
                )
            rows.append((seats, name, tally))
    if json_output:
        settings = {"process": process if trace is None else str(trace), "cost": cost, "batching": batching}
        settings |= {"host_ms": host, "host_plain_ms": host_plain, "host_ahead_ms": host_ahead}
        settings |= {"host_newcomer_ms": host_newcomer}
        print_json({**settings, "seed": seed, "rows": [_row(*row) for row in rows]})
    else:
        _show(rows)


def _value(file: Path | None) -> ValueTable:
    from recguide.guidance.value import ValueTable, prior

    return prior() if file is None else ValueTable.read(file)


def _clock(cost: str) -> Clock:
    from recguide.guidance.clock import Clock
    from recguide.guidance.cost import CostTable
    from recguide.guidance.ideal import IDEALS, ideal_cost

    return Clock(ideal_cost(cost) if cost in IDEALS else CostTable.read(Path(cost)))


def _policy(name: str, table: ValueTable, clock: Clock) -> Policy:
    from recguide.guidance.oracle import Oracle
    from recguide.guidance.policy import policy_named

    return Oracle(clock) if name == "oracle" else policy_named(name, table, clock)


def _traffic(process: str, trace: Path | None, seats: int, length: int, seed: int) -> Traffic:
    from recguide.bench.acceptance.process import fitted
    from recguide.bench.acceptance.traffic import ReplayTraffic
    from recguide.guidance.trace_file import read_trace
    from recguide.guidance.trace_traffic import TraceTraffic

    if trace is not None:
        return TraceTraffic(read_trace(trace)[1])
    return ReplayTraffic(fitted(process).process, seats=seats, length=length, seed=seed)


def _row(seats: int, name: str, tally: Tally) -> dict[str, Any]:
    return {
        "load": seats,
        "policy": name,
        "tokens_per_s": tally.throughput,
        "request_tokens_per_s": tally.request_rate,
        "forwards": tally.forwards,
        "query_tokens": tally.query_tokens,
        "blocks": dict(sorted(tally.blocks.items())),
        "verified": dict(sorted(tally.verified.items())),
        "branches": dict(sorted(tally.branches.items())),
        "reused": dict(sorted(tally.reused.items())),
        "price": [{"ms": ms, "price": price, "query_tokens": n} for ms, price, n in tally.prices],
    }


def _show(rows: list[tuple[int, str, Tally]]) -> None:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("load", "policy", "tok/s", "tok/s each", "N", "price", "reused", "blocks begun"):
        grid.add_column(
            head,
            justify="left" if head in ("policy", "blocks begun") else "right",
            no_wrap=head != "blocks begun",
        )
    for seats, name, tally in rows:
        forwards = max(1, tally.forwards)
        price = sum(price for _, price, _ in tally.prices) / forwards
        grid.add_row(
            str(seats),
            name,
            f"{tally.throughput:,.0f}",
            f"{tally.request_rate:,.1f}" if tally.rates else "",
            f"{tally.query_tokens / forwards:.0f}",
            f"{price:.3f}" if price else "",
            f"{tally.reused.total()} of {tally.branches.total()}" if tally.branches else "",
            _blocks(tally),
        )
    out().print(grid)
    note(
        "N: query tokens a forward; price: tokens that one more query token has to bring; reused: branches "
        "that became the next draft; blocks begun: drafts by their largest size"
    )


def _blocks(tally: Tally) -> str:
    """Shares of drafts by block, branches that came true not included; short ones at the cap counted up."""
    total = tally.blocks.total()
    shares = {
        most: sum(count for block, count in tally.blocks.items() if least < block <= most)
        for least, most in ((0, 4), (4, 8), (8, 16), (16, 32), (32, 64))
    }
    return " ".join(f"{most}: {count / total:.0%}" for most, count in shares.items() if count)
