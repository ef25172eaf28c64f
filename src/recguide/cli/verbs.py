"""The verbs and how one is found: `recguide --help` imports none of them, and nothing that imports torch."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from recguide.cli.console import fail

VERBS = {
    "generate": "Continue one prompt or many.",
    "chat": "Talk to a model.",
    "serve": "Serve a model to OpenAI's clients.",
    "pull": "Fetch a model and check it.",
    "verify": "Prove that a method's text equals plain decoding's.",
    "doctor": "Say what is wrong with a model before you wonder.",
    "profile": "Measure what a forward costs on this device.",
    "calibrate": "Measure what drafts of every block are worth.",
    "simulate": "Try budgets at any load, before a GPU is asked.",
    "deploy": "Run replicas of a server on Ray Serve, here or on a cluster.",
    "bench": "Send load to any OpenAI endpoint, or to two.",
    "trace": "Draw a request of a recorded run, round by round.",
    "adapt": "Train a draft adapter, so that a model learns to draft.",
}
"""Each is a function of that name, or a group of verbs, in the module of that name beside this one."""


class Verbs(TyperGroup):
    """A group of stubs, each replaced by the command of its module when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401
        name, stub, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in VERBS else stub, rest

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        try:
            return super().invoke(ctx)
        except Exception as error:
            core = sys.modules.get("recguide.core")  # not loaded, it has raised nothing
            if core is None or not isinstance(error, core.RecGuideError):
                raise
            raise fail(str(error)) from error


def load(verb: str) -> TyperCommand | TyperGroup:
    """The command of one verb, made of its module's function or group."""
    found = getattr(import_module(f"recguide.cli.{verb}"), verb)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
        alone.command(verb)(found)
        found = alone
    command = get_command(found)
    assert isinstance(command, TyperCommand | TyperGroup), "typer makes its own kinds of command"
    _let_flow(command)
    return command


def _let_flow(command: Any) -> None:  # noqa: ANN401
    """Lets the terminal break a help text's lines, which are broken for the source."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for one in getattr(command, "commands", {}).values():
        _let_flow(one)


def _stub() -> None:
    """Stands for a verb in the list of verbs."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"recguide {version('recguide')}")
        raise typer.Exit


def _main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Self-speculative decoding: one backbone drafts and verifies for itself.

    Start with: [bold]recguide generate smollm2-135m "Why is the sky blue?" --compare[/bold]
    """
    del show_version  # its callback has run


def _app() -> typer.Typer:
    group = typer.Typer(
        cls=Verbs, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False
    )
    group.callback()(_main)
    for verb, summary in VERBS.items():
        group.command(verb, help=summary)(_stub)
    return group


app = _app()
