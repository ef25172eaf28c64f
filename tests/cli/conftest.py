"""The verbs on a toy model: `cli(...)` runs the command line and returns what it said."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.toy import toy_model
from typer.testing import CliRunner, Result

from recguide.cli import app

Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Arguments and stdin of `recguide`; every model that it loads is the toy."""
    monkeypatch.setattr("recguide.cli.opening.load", lambda *_, **__: toy_model())
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    return run
