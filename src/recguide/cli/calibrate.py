"""`recguide calibrate`: what drafts of every block are worth, for this model's own texts."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from recguide.cli.console import note, out, print_json, steps
from recguide.cli.options import ChatTemplateKwargs, Json, LoadOptions, fills, loading, template_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recguide.bench.calibration.reliability import Reliability
    from recguide.bench.calibration.run import Asked, Settings
    from recguide.bench.calibration.traces import Recorded, Support
    from recguide.guidance.conditions import Conditions
    from recguide.guidance.records import RoundRecord, Rounds
    from recguide.guidance.value import ValueTable
    from recguide.llm import LLM

BINS = 24
ROUNDS_A_BIN = 400
"""Fewer bins are made where there are fewer rounds; every place makes five."""
FEW_ROUNDS = 4 * ROUNDS_A_BIN
"""Below, a table says little of how acceptance follows a request's history."""

LONGER = "the texts are too short or too few: raise --max-tokens, or give more prompts"
OTHER_POLICIES = "record more traffic, or some under a policy that tries it, such as fixed-32"
"""What to do where a block was never tried."""


@fills(load=loading)
def calibrate(
    model: Annotated[
        str | None,
        typer.Argument(
            help="smollm2-135m, a folder, a Hugging Face id; none with --from-trace.",
            metavar="MODEL",
            show_default=False,
        ),
    ] = None,
    *,
    prompts: Annotated[
        Path | None,
        typer.Option(help='.jsonl, .gz or .zst of {"prompt", "task"}: tasks weigh the same.'),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Prompts at most.", show_default="all")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each text at most.")] = 192,
    temperature: Annotated[float, typer.Option(help="Of the texts; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the texts and of the histories.")] = 0,
    positions: Annotated[
        int | None, typer.Option(help="Places to try, about; then no more prompts are taken.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Minutes; then no more prompts are taken.", show_default="none")
    ] = None,
    from_trace: Annotated[
        list[Path] | None,
        typer.Option(help="Recorded rounds of real serving to go by instead; repeat for more."),
    ] = None,
    signal: Annotated[str, typer.Option(help="s: entropy, entropy-all, record.")] = "entropy",
    bins: Annotated[int, typer.Option(help="Of s, at most.")] = BINS,
    output: Annotated[
        Path | None,
        typer.Option(help="File of the table.", show_default="in the user's cache, where it is found again"),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Keep the rounds, as .jsonl.zst.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG or SVG; needs the extra 'plot'.")] = None,
    chat: Annotated[
        bool | None, typer.Option("--chat/--no-chat", help="Through the chat template, or as they are.")
    ] = None,
    chat_template_kwargs: ChatTemplateKwargs = "",
    json_output: Json = False,
    load: LoadOptions,
) -> None:
    """Measure V_B(s, z), what margins say and what branches are worth; policies look up the saved table.

    The model writes one text for every prompt. As no method changes the text, every block size is then tried
    at many of its places at once. Stopped early, the same command goes on where it was.

    Example: [bold]recguide calibrate smollm2-135m --prompts prompts.jsonl --plot value.png[/bold]
    """
    from recguide.guidance.records import Rounds
    from recguide.guidance.trace_file import write_trace
    from recguide.guidance.value import place

    _check_libraries(plot)
    supported, recorded = None, None
    if from_trace:
        if model is not None or prompts is not None:
            raise typer.BadParameter("--from-trace takes no model and no --prompts: traces name their model")
        recorded, where = _recorded(from_trace)
        records = recorded.records
        supported = _support(Rounds.of(records))
    elif model is None or prompts is None:
        raise typer.BadParameter("give a model and --prompts FILE, or --from-trace FILE")
    else:
        settings = _settings(max_tokens, temperature, seed, positions, budget)
        templates = chat, template_arguments(chat_template_kwargs)
        records, where = _measured(model, load, _read(prompts, limit), templates, settings)
    rounds = Rounds.of(records)
    table = _fitted(rounds, where, signal, bins, LONGER if recorded is None else OTHER_POLICIES)
    judged = _judged(rounds, signal, len(table.edges) + 1)
    file = place(where) if output is None else output
    table.save(file)
    if trace is not None:
        write_trace(trace, {"policy": "calibration", **_header(where)}, records)
    if plot is not None:
        _plot(table, judged, plot)
    if json_output:
        print_json(_object(file, table, judged, supported, recorded))
    else:
        _show(table, rounds, judged)
        if supported is not None and recorded is not None:
            _show_support(supported, recorded)
        note(f"saved as {file}")
    if len(rounds) < FEW_ROUNDS:
        note(
            f"{len(rounds)} rounds are few, and policies go by this table from now on: calibrate on more "
            f"prompts, or delete {file}"
        )


# --- what goes in -------------------------------------------------------------------------------------------


def _check_libraries(plot: Path | None) -> None:
    """Before anything is measured."""
    from importlib.util import find_spec

    if find_spec("scipy") is None:
        raise typer.BadParameter("calibration needs scipy: pip install 'recguide[calibrate]'")
    if plot is not None and find_spec("matplotlib") is None:
        raise typer.BadParameter("--plot needs matplotlib: pip install 'recguide[plot]'")


def _settings(
    max_tokens: int, temperature: float, seed: int, positions: int | None, minutes: float | None
) -> Settings:
    from recguide.bench.calibration.run import Settings

    return Settings(
        max_tokens=max_tokens, temperature=temperature, seed=seed, positions=positions, minutes=minutes
    )


def _read(file: Path, limit: int | None) -> list[tuple[str, str]]:
    """(set, text) of each prompt."""
    from recguide.training.prompts import limited, read_prompts

    return [(prompt.task, prompt.text) for prompt in limited(read_prompts(file), limit, seed=0)]


def _measured(
    model: str,
    load: LoadOptions,
    prompts: Sequence[tuple[str, str]],
    templates: tuple[bool | None, dict[str, Any]],
    settings: Settings,
) -> tuple[Sequence[RoundRecord], Conditions]:
    from recguide.bench.calibration.run import Asked, calibrate, interleaved
    from recguide.cli.opening import open_llm, tokens_of

    llm = open_llm(model, load)
    asked = interleaved(
        [Asked(name, tuple(tokens_of(llm.model, text, *templates))) for name, text in prompts]
    )
    where = _conditions(llm, settings)
    work = _work(where, asked)
    if work.found:
        note(f"going on after {len(work.found)} of {len(asked)} prompts")
    with steps("calibrating", remaining=True) as progress:
        records = calibrate(llm, asked, settings, work, progress)
    work.remove()
    return records, where


def _conditions(llm: LLM, settings: Settings) -> Conditions:
    """Settings are for readers: a table of one temperature serves at others, too."""
    from recguide.guidance.conditions import Conditions

    said = {
        "temperature": f"{settings.temperature:g}",
        "max_tokens": settings.max_tokens,
        "seed": settings.seed,
    }
    return Conditions.here(llm.model.name, llm.model.fingerprint, llm.model.kv_shape.device, said)


def _work(where: Conditions, asked: Sequence[Asked]) -> Any:  # noqa: ANN401  its type costs an import of torch
    """Found again by the same model, settings and prompts."""
    from recguide.bench.calibration.work import Work
    from recguide.guidance.value import place

    header = {"fingerprint": where.fingerprint, "settings": dict(where.settings)}
    prompts = hashlib.sha256(repr([(one.set, one.ids) for one in asked]).encode()).hexdigest()[:16]
    header["prompts"] = prompts
    name = hashlib.sha256(repr(sorted(header.items(), key=str)).encode()).hexdigest()[:12]
    table = place(where)
    return Work(table.with_name(f"{table.stem}-{name}.work.jsonl"), header)


def _recorded(files: Sequence[Path]) -> tuple[Recorded, Conditions]:
    from recguide.bench.calibration.traces import recorded
    from recguide.guidance.conditions import Conditions

    found = recorded(files)
    return found, Conditions(found.model, found.fingerprint, "", {}, {"policies": ", ".join(found.policies)})


# --- what is made of it -------------------------------------------------------------------------------------


def _fitted(rounds: Rounds, where: Conditions, signal: str, bins: int, remedy: str) -> ValueTable:
    from recguide.guidance.fitting import TooFewRounds, fit

    most = max(1, min(bins, len(rounds) // ROUNDS_A_BIN))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        return fit(rounds, where, signal=signal, bins=most, measured_at=now)
    except TooFewRounds as error:
        raise TooFewRounds(f"{error}; {remedy}") from error


def _judged(rounds: Rounds, signal: str, bins: int) -> Reliability | None:
    """None if there are too few prompts to hold some out."""
    from recguide.bench.calibration.reliability import reliability
    from recguide.guidance.fitting import TooFewRounds

    if int(rounds.prompt.max()) < 4:
        return None
    try:
        return reliability(rounds, signal=signal, bins=bins)
    except TooFewRounds:  # a block that four fifths of the prompts never tried
        return None


def _support(rounds: Rounds) -> Support:
    from recguide.bench.calibration.traces import support

    return support(rounds)


def _plot(table: ValueTable, judged: Reliability | None, file: Path) -> None:
    from recguide.bench.calibration.plot import plot_calibration

    if judged is None:
        note("no plot: it takes five prompts, so that some can be held out")
    else:
        plot_calibration(table, judged, file)


def _header(where: Conditions) -> dict[str, object]:
    from dataclasses import asdict

    return {"conditions": asdict(where)}


# --- what comes out -----------------------------------------------------------------------------------------


def _object(
    file: Path,
    table: ValueTable,
    judged: Reliability | None,
    supported: Support | None,
    recorded: Recorded | None,
) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "file": str(file),
        "model": table.conditions.model,
        "fingerprint": table.conditions.fingerprint,
        "rounds": table.rounds,
        "bins": len(table.edges) + 1,
        "values": _values(table),
        "reliability": None if judged is None else judged.as_object(),
        "support": None if supported is None else asdict(supported),
        "policies": None if recorded is None else dict(recorded.policies),
    }


def _values(table: ValueTable) -> dict[str, float]:
    """V_B over all histories that were seen."""
    mean = (table.share.reshape(-1)[:, None] * table.values()).sum(0)
    return {str(block): round(float(value), 3) for block, value in zip(table.blocks, mean, strict=True)}


def _show(table: ValueTable, rounds: Rounds, judged: Reliability | None) -> None:
    screen = out()
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("block", "rounds", "mean A", "full", "V least", "V most", "off by"):
        grid.add_column(head, justify="right")
    values, used = table.values(), table.share.reshape(-1) > 0
    errors = {} if judged is None else judged.as_object()["value_error"]
    for at, block in enumerate(table.blocks):
        rows = rounds.block == block
        full = rounds.weight[rows] @ (rounds.acceptance[rows] == block) / rounds.weight[rows].sum()
        error = errors.get(str(block))
        grid.add_row(
            str(block),
            f"{int(rows.sum()):,}",
            f"{_values(table)[str(block)]:.2f}",
            f"{full:.0%}",
            f"{values[used, at].min():.2f}",
            f"{values[used, at].max():.2f}",
            "" if error is None else f"{error:.2f}",
        )
    screen.print(grid)
    screen.print()
    evidence = table.evidence
    screen.print(f"a continuation after a full block is right   {evidence.continuation:.1%}")
    if judged is not None:
        shares = ", ".join(f"{share:.0%}" for share in judged.ranks.overall)
        screen.print(f"at a mismatch candidate 1, 2, 3 is right     {shares}")
        screen.print(f"slots pass as promised, within               {judged.as_object()['slot_error']:.1%}")
    screen.print(f"s is {table.signal} in {len(table.edges) + 1} bins, from {table.rounds:,} rounds")


def _show_support(supported: Support, recorded: Recorded) -> None:
    screen = out()
    policies = ", ".join(f"{name} ({count:,} rounds)" for name, count in recorded.policies.items())
    screen.print(f"recorded under {policies}")
    for block, share in supported.share.items():
        screen.print(
            f"block {block}: {supported.rounds[block]:,} rounds; {share:.0%} of all rounds have a history "
            "under which it was tried often enough"
        )
