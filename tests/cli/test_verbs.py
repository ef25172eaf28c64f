"""Help, errors, and what the command line must not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from recguide.cli.verbs import VERBS
from recguide.core import CheckpointError


def test_help_lists_every_verb_without_importing_torch():
    code = (
        "import sys\nfrom recguide.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert all(verb in result.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", list(VERBS))
def test_help_of_every_verb_has_an_example_and_json(cli, verb):
    result = cli(verb, "--help")
    assert result.exit_code == 0
    assert f"recguide {verb} " in result.stdout.split("Example:", 1)[1]
    assert "--json" in result.stdout


def test_the_terminal_breaks_the_lines_of_help(cli):
    assert "Policies look up the saved table." in cli("profile", "--help").stdout
    assert "a stall hides nothing. With --against" in cli("bench", "serve", "--help").stdout


def test_help_of_a_verb_needs_no_torch():
    code = (
        "import sys\nfrom recguide.cli import app\n"
        "try:\n    app(['generate', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_a_known_error_is_one_line_on_stderr_and_status_2(cli, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise CheckpointError("model.safetensors: tensor lm_head.weight is missing;\n  fetch it again")

    monkeypatch.setattr("recguide.cli.opening.load", refuse)
    result = cli("pull", "somewhere")
    assert result.exit_code == 2
    assert result.stdout == ""
    error = result.stderr.strip().splitlines()[-1]
    assert error == "error: model.safetensors: tensor lm_head.weight is missing; fetch it again"


def test_an_unexpected_error_is_not_hidden(cli, monkeypatch):
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("recguide.cli.opening.load", crash)
    assert isinstance(cli("pull", "somewhere").exception, ZeroDivisionError)


def test_ctrl_c_leaves_without_a_traceback(cli, monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("recguide.cli.opening.load", interrupt)
    result = cli("pull", "somewhere")
    assert result.exit_code in (1, 130)
    assert "Traceback" not in result.output


def test_an_unknown_verb_gets_a_suggestion(cli):
    result = cli("generat")
    assert result.exit_code == 2
    assert "generate" in result.stderr


def test_version(cli):
    assert cli("--version").stdout.startswith("recguide ")
