"""`recguide verify`: is it really lossless?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from recguide.cli.console import err, out, print_json, steps
from recguide.cli.options import Json, LoadOptions, Model, fills, loading

if TYPE_CHECKING:
    from recguide.bench.verify import Case, Report

Item = TypeVar("Item", int, float)


@fills(load=loading)
def verify(
    model: Model,
    *,
    prompts: Annotated[
        Path | None, typer.Option(help="File of prompts as for generate; built-in ones if left out.")
    ] = None,
    methods: Annotated[str, typer.Option(help="Held against plain decoding.")] = "linear,tidar,recguide",
    block_sizes: Annotated[str, typer.Option(help="Every method runs at each.")] = "8,16",
    temperature: Annotated[str, typer.Option(help="Every method runs at each.")] = "0,0.8",
    max_tokens: Annotated[int, typer.Option(help="Tokens of a text.")] = 48,
    tie_rate: Annotated[
        float | None,
        typer.Option(help="Share of texts that may end in a tie; what the precision explains if left out."),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--raw", help="Through the chat template.", show_default="chat if there is one"),
    ] = None,
    json_output: Json = False,
    load: LoadOptions,
) -> None:
    """Prove that every method's text equals plain decoding's, token for token.

    Texts are compared, and teacher-forced through the method's rows and through rows of one token. Where they
    differ, it is a tie if rounding explains it (every logit within ε, the two tokens within 2ε), else a bug.
    Exit status 1 on a bug or on too many ties.

    Example: [bold]recguide verify smollm2-135m --block-sizes 1,8,16,32[/bold]
    """
    from recguide.bench.prompts import EXACTNESS
    from recguide.bench.verify import Settings
    from recguide.bench.verify import verify as compare
    from recguide.cli.opening import open_llm, tokens_of
    from recguide.cli.prompts import read_file

    settings = Settings(
        methods=[name.strip() for name in methods.split(",")],
        block_sizes=_numbers("--block-sizes", block_sizes, int),
        temperatures=_numbers("--temperature", temperature, float),
        max_tokens=max_tokens,
        tie_rate=tie_rate,
    )
    texts = list(EXACTNESS) if prompts is None else read_file(prompts)
    llm = open_llm(model, load)
    ids = [tokens_of(llm.model, text, chat, {}) for text in texts]
    with steps("decoding") as progress:
        report = compare(llm, ids, settings, progress)
    if json_output:
        print_json({"model": llm.model.name, "fingerprint": llm.model.fingerprint, **report.as_object()})
    else:
        _show(report)
    if not report.passed:
        raise typer.Exit(1)


def _numbers(option: str, text: str, kind: Callable[[str], Item]) -> list[Item]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{option} takes numbers separated by commas, not {text!r}") from error


def _show(report: Report) -> None:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("method", "identical", "ties", "bugs", "TPF", "mean acceptance", "largest Δlogit", "of ε"):
        grid.add_column(head, justify="left" if head == "method" else "right")
    for method, totals in report.totals.items():
        cases = [case for case in report.cases if case.method == method]
        counts = [sum(case.verdict == verdict for case in cases) for verdict in ("identical", "tie", "bug")]
        worst = max(cases, key=lambda case: case.difference)
        grid.add_row(
            method,
            *(str(count) for count in counts),
            f"{totals.tpf:.2f}",
            f"{totals.stats.mean_acceptance:.2f}" if totals.stats.rounds else "-",
            f"{worst.difference:.1e}",
            f"{worst.epsilon:.1e}",
        )
    out().print(grid)
    for case in report.cases:
        if case.verdict != "identical":
            err().print(_line(case), soft_wrap=True)
    out().print()
    verdict = "passed" if report.passed else "FAILED"
    out().print(
        f"{verdict}: {len(report.cases)} texts of {report.prompts} prompts in {report.dtype}",
        style="bold" if report.passed else "bold #cf4520",
    )


def _line(case: Case) -> Text:
    where = f"prompt {case.prompt}, {case.method} B = {case.block_size}, T = {case.temperature:g}"
    what = f"largest Δlogit {case.difference:.2e} at token {case.position} (ε {case.epsilon:.2e})"
    if case.divergence is not None:
        one = case.divergence
        what = (
            f"token {one.position} is {one.got} instead of {one.expected}, gap {one.gap:.2e}, "
            f"later {one.later_gap:.2e}; {what}"
        )
    return Text.assemble((f"{case.verdict.value}: ", "bold #cf4520"), f"{where}: {what}")
