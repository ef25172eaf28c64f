"""`recguide doctor`: what is wrong, before you wonder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from recguide.cli.console import out, print_json, steps
from recguide.cli.options import Json, LoadOptions, Model, fills, loading

if TYPE_CHECKING:
    from recguide.bench.doctor import Finding

SIGNS = {"ok": ("✓", "#16863a"), "warning": ("!", "bold #a94fc4"), "problem": ("✗", "bold #cf4520")}


@fills(load=loading)
def doctor(model: Model, *, json_output: Json = False, load: LoadOptions) -> None:
    """Say what is wrong: mask token, adapter, template, precision, memory, versions, acceptance.

    Exit status 1 if there is a problem; warnings are none.

    Example: [bold]recguide doctor smollm2-135m[/bold]
    """
    findings = _findings(model, load)
    healthy = all(finding.level != "problem" for finding in findings)
    if json_output:
        print_json({"model": model, "healthy": healthy, "findings": [_object(one) for one in findings]})
    else:
        _show(findings)
    if not healthy:
        raise typer.Exit(1)


def _findings(model: str, load: LoadOptions) -> list[Finding]:
    """A model that does not load is a finding, not an error."""
    from recguide.bench import doctor
    from recguide.bench.prompts import ACCEPTANCE
    from recguide.cli.opening import open_llm, tokens_of
    from recguide.core import RecGuideError

    try:
        llm = open_llm(model, load)
    except RecGuideError as error:
        return [doctor.versions(), doctor.Finding("model", doctor.Level.PROBLEM, str(error))]
    prompts = [tokens_of(llm.model, prompt, None, {}) for prompt in ACCEPTANCE]
    with steps("checking") as progress:
        return doctor.examine(llm, prompts, progress)


def _object(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check,
        "level": finding.level.value,
        "message": finding.message,
        "remedy": finding.remedy,
    }


def _show(findings: Sequence[Finding]) -> None:
    screen = out()
    for finding in findings:
        sign, style = SIGNS[finding.level]
        screen.print(Text.assemble((f"{sign} {finding.check:<11}", style), finding.message))
        if finding.remedy is not None:
            screen.print(Text(f"{'':13}→ {finding.remedy}"))
