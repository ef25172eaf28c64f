"""The model that programs of other environments ask for, and how those are run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = "smollm2-135m"


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
