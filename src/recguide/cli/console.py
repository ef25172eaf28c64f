"""Where the command line speaks: text on stdout, everything about it on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from recguide.models.progress import Progress


def out() -> Console:
    return Console(soft_wrap=True, highlight=False)


def err() -> Console:
    return Console(stderr=True, highlight=False)


def fail(message: str) -> typer.Exit:
    """Says what went wrong in one line; raise what it returns: exit status 2."""
    line = " ".join(message.split())
    err().print(Text.assemble(("error: ", "bold red"), line), soft_wrap=True)
    return typer.Exit(2)


def note(message: str) -> None:
    err().print(Text(message, style="dim"), soft_wrap=True)


def write(text: str) -> None:
    """Text on stdout exactly as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_json(value: Mapping[str, object]) -> None:
    """The one JSON object of `--json`."""
    write(json.dumps(value, ensure_ascii=False) + "\n")


@contextmanager
def steps(message: str, *, remaining: bool = False) -> Generator[Progress, None, None]:
    """A progress line on stderr that is gone when the work is done; yields how to move it.

    With `remaining` it also says how long the rest will take.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        _Count(),
        TimeElapsedColumn(),
        *((TextColumn("left"), TimeRemainingColumn()) if remaining else ()),
    )
    with Bars(*columns, console=err(), transient=True) as bars:
        task = bars.add_task(message, total=None)

        def move(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total or None)

        yield move


@contextmanager
def counting(message: str) -> Generator[Callable[[int, int], None], None, None]:
    """The same for work that only says (done, total)."""
    with steps(message) as move:
        yield lambda done, total: move(message, done, total)


class _Count(ProgressColumn):
    """done/total where a total is known."""

    def render(self, task: Task) -> Text:
        known = task.total is not None
        return Text(
            f"{int(task.completed)}/{int(task.total or 0)}" if known else "", style="progress.download"
        )
