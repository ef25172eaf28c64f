"""Servers as processes, and what tests need that start some: ports, and who descends from whom."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

RECGUIDE = (sys.executable, "-c", "from recguide.cli import app; app()")
"""The command line of the tests' own interpreter."""
TINY = ("--served-model-name", "tiny", "--kv-cache-tokens", "4096")
"""Options for a tiny model."""


QUIET = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
"""A thread a process, and nothing is told to anybody."""


def start(*command: str, **options) -> subprocess.Popen[str]:
    """A process whose output is text."""
    return subprocess.Popen(command, env={**os.environ, **QUIET}, text=True, **options)


class Serving:
    """`recguide serve`, ready.

    Args:
        options: an option that is given twice means what it says last.
        drain: seconds of grace for requests at its end.
        largest_file: bytes after which files that it writes end, as on a full disk.

    Attributes:
        said: what it printed when it was ready.
        url: without /v1.
    """

    def __init__(
        self, model, *options: str, drain: float = 20.0, largest_file: int = resource.RLIM_INFINITY
    ) -> None:
        self.process = start(
            *RECGUIDE, "serve", str(model), "--json", "--port=0", f"--drain={drain}", *options,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file)),
        )  # fmt: skip
        self._log: list[str] = []
        self._reader = threading.Thread(target=lambda: self._log.extend(self.process.stderr))
        self._reader.start()
        line = self.process.stdout.readline()
        assert line, self.log()
        self.said = json.loads(line)
        self.url = self.said["url"].removesuffix("/v1")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()

    def engine_pid(self) -> int:
        """The child that runs the engine; another one only minds shared resources."""
        (pid,) = named(self.process.pid, "spawn_main")
        return pid

    def stop(self) -> int:
        """As an operator would; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self) -> int:
        """Its exit status, once it has ended by itself."""
        return self.process.wait(timeout=60)

    def log(self) -> str:
        """All of it, once the server has ended."""
        self._reader.join()
        return "".join(self._log)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def descendants(pid: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (parent := _parent(folder)) is not None:
            children.setdefault(parent, []).append(int(folder.name))
    found = list(children.get(pid, ()))
    for child in found:
        yield child
        found.extend(children.get(child, ()))


def named(pid: int, words: str) -> set[int]:
    """Descendants whose command line has these words."""
    return {child for child in descendants(pid) if words in _command(child)}


def _parent(folder: Path) -> int | None:
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None  # it ended meanwhile


def _command(pid: int) -> str:
    try:
        return (
            (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""
