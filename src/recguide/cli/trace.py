"""`recguide trace`: a recorded run, one request at a time."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from recguide.cli.console import note, out, print_json
from recguide.cli.options import Json

if TYPE_CHECKING:
    from recguide.guidance.records import RoundRecord

MATCHED, DECIDED, LOST, UNVERIFIED = "█", "▌", "░", "·"
"""Slots of a round as signs: emitted from the draft, the verifier's own token, verified in vain, left out."""

WIDEST = 1000
"""Columns of a terminal that cuts no row."""


class What(StrEnum):
    """What is done with a trace."""

    SHOW = "show"


def trace(
    what: Annotated[What, typer.Argument(help="show draws a request's rounds.", show_default=False)],
    file: Annotated[
        Path, typer.Argument(help="By the option --trace of generate or serve.", show_default=False)
    ],
    *,
    request: Annotated[
        str | None,
        typer.Option(help="Its number in the trace.", show_default="the one with the most rounds"),
    ] = None,
    json_output: Json = False,
) -> None:
    """Draw one request of a trace as a timeline.

    A line a round: what was drafted, verified and emitted, which branches ran beside it, what it cost.

    Example: [bold]recguide trace show rounds.jsonl.zst --request 3[/bold]
    """
    from recguide.guidance.trace_file import read_trace

    assert what is What.SHOW, "there is nothing else to do with a trace"
    header, records = read_trace(file)
    by_request: dict[str, list[RoundRecord]] = {}
    for record in records:
        by_request.setdefault(record.prompt, []).append(record)
    chosen = _chosen(request, by_request)
    rounds = sorted(by_request.get(chosen, ()), key=lambda record: record.position)
    if json_output:
        print_json({"header": header, **_object(chosen, rounds), "requests": sorted(by_request)})
    else:
        _show(header, chosen, rounds, len(by_request))


def _chosen(wanted: str | None, by_request: dict[str, list[RoundRecord]]) -> str:
    if wanted is None:
        return max(by_request, key=lambda name: len(by_request[name]), default="")
    if wanted not in by_request:
        raise typer.BadParameter(f"no request {wanted}; there are {', '.join(sorted(by_request)) or 'none'}")
    return wanted


def _object(request: str, rounds: list[RoundRecord]) -> dict[str, Any]:
    return {
        "request": request,
        "tokens": sum(record.acceptance for record in rounds),
        "query_tokens": sum(record.query_tokens for record in rounds),
        "forward_ms": sum(record.forward_ms for record in rounds),
        "rounds": [asdict(record) for record in rounds],
    }


def _show(header: dict[str, Any], request: str, rounds: list[RoundRecord], requests: int) -> None:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("at", "drafted by", "slots", "emitted", "entropy", "price", "tokens", "ms", "branches"):
        left = head in ("drafted by", "slots", "branches")
        grid.add_column(head, justify="left" if left else "right", no_wrap=True)
    for record in rounds:
        grid.add_row(
            str(record.position),
            record.drafted_by,
            _slots(record),
            f"{record.acceptance} of {record.verified}",
            f"{sum(record.entropies) / len(record.entropies):.2f}" if record.entropies else "",
            f"{record.price:.3f}" if record.price else "",
            str(record.query_tokens),
            f"{record.forward_ms:.1f}",
            _branches(record),
        )
    screen = out()
    wide = screen.options.update(width=WIDEST)
    screen.width = max(screen.width, screen.measure(grid, options=wide).maximum)  # a row is never cut
    screen.print(grid)
    screen.print()
    screen.print(
        f"{MATCHED} from the draft  {DECIDED} the verifier's own  {LOST} verified in vain  "
        f"{UNVERIFIED} not verified; branches: slot, kind and block, bold if it became the next draft",
        style="dim",
    )
    model = header.get("conditions", {}).get("model") or "a model without a name"
    note(
        f"request {request} of {requests}: {len(rounds)} rounds; {model}, policy {header.get('policy')}, "
        f"batching {header.get('batching')}, recorded {header.get('started_at')}"
    )


def _slots(record: RoundRecord) -> Text:
    """The round's tokens as signs; a round emits one of its own after what it matched."""
    matched = record.acceptance - 1
    return Text.assemble(
        (MATCHED * matched, "green"),
        (DECIDED, "green" if record.acceptance == record.verified else "red"),
        (LOST * (record.verified - record.acceptance), "red"),
        (UNVERIFIED * (record.block - record.verified), "dim"),
    )


def _branches(record: RoundRecord) -> Text:
    text = Text()
    for number, (slot, head, block) in enumerate(record.branches):
        kind = {0: "continuation", -1: "any"}.get(head, f"correction {head}")
        text.append("" if not number else "  ")
        text.append(f"{slot} {kind} {block}", "bold green" if number == record.reused else "dim")
    return text
