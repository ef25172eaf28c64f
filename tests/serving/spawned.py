"""A server as users run it: `recguide serve` in a process of its own, over a tiny checkpoint."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OPTIONS = ("--device=cpu", "--dtype=float64", "--port=0", "--served-model-name=tiny", "--json")


class Spawned:
    """The running server.

    Attributes:
        url: where it listens.
    """

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, self.log
        self.url: str = json.loads(said)["url"].removesuffix("/v1")

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def engine_pid(self) -> int:
        """The child that runs the engine; another one only minds shared resources."""
        (pid,) = [pid for pid in children(self.process.pid) if "spawn_main" in command(pid)]
        return pid

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)


def children(parent: int) -> list[int]:
    """Of all its threads."""
    threads = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for thread in threads for pid in thread.read_text().split()]


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


@contextmanager
def serving(folder: Path, log: Path, *options: str, largest_file: int | None = None) -> Iterator[Spawned]:
    """A server that is ready; killed at the end if it still runs.

    Args:
        largest_file: bytes after which every file it writes is as on a full disk; the log is none of them.
    """

    def limit() -> None:
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "recguide", "serve", str(folder), *OPTIONS, *options],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            preexec_fn=limit,
        )
        try:
            yield Spawned(process, log)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
