"""`recguide serve` with the demo model as a process, and programs of other environments that ask it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MODEL = "smollm2-135m"
SERVE = (sys.executable, "-c", "from recguide.cli import app; app()", "serve", MODEL)


def program(name: str, variable: str) -> str:
    """Path of a program; the test module is skipped where there is none.

    Args:
        variable: environment variable that may name it.
    """
    found = shutil.which(os.environ.get(variable) or name)
    if found is None:
        pytest.skip(f"needs {name}: `make test-clients`, or its path in {variable}", allow_module_level=True)
    return found


def run(command: list[str], folder: Path, **environment: str) -> str:
    """What a program printed in that working directory; fails with it if the program does."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


@contextmanager
def serving(log: Path) -> Iterator[str]:
    """The URL of a server that is ready, without /v1."""
    options = ("--device=cpu", "--dtype=float32", "--port=0", "--drain=2", "--json")
    with log.open("w") as told:
        process = subprocess.Popen([*SERVE, *options], stdout=subprocess.PIPE, stderr=told, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield json.loads(line)["url"].removesuffix("/v1")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
    assert process.returncode == 0, log.read_text()
