"""`recguide serve` as a process: how it ends, whatever ends it."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from typing import Self

import httpx
import pytest
from tests.serving.deploy.processes import free_port
from tests.serving.site import wait_until

SERVE = (sys.executable, "-c", "from recguide.cli import app; app()", "serve")
LONG = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "temperature": 0}


class Serving:
    """A running server, ready; `drain` is the grace of requests at its end.

    Files that it writes end after `largest_file` bytes, as on a full disk.
    """

    def __init__(
        self, folder, *options: str, drain: float = 20.0, largest_file: int = resource.RLIM_INFINITY
    ) -> None:
        self.process = subprocess.Popen(
            [
                *SERVE,
                str(folder),
                *("--json", "--port", "0", "--drain", str(drain), "--kv-cache-tokens", "4096"),
                *("--served-model-name", "tiny", *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file)),
        )
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.said = json.loads(line)
        self.url = self.said["url"].removesuffix("/v1")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, answers: list, **body) -> threading.Thread:
        """Asks in a thread; what came is put into `answers`."""

        def work():
            try:
                answers.append(httpx.post(f"{self.url}/v1/completions", json={**LONG, **body}, timeout=60))
            except httpx.HTTPError as error:
                answers.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def running(self) -> float:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("recguide:running_requests "))

    def engine_pid(self) -> int:
        """The child that runs the engine; another one only minds shared resources."""
        children = subprocess.run(
            ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(self.process.pid)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        (pid,) = [int(line.split()[0]) for line in children if "spawn_main" in line]
        return pid

    def end(self) -> int:
        return self.process.wait(timeout=30)

    def log(self) -> str:
        """All of it, once the server has ended."""
        return self.process.stderr.read()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_sigterm_lets_requests_finish_and_takes_no_new_ones(tiny_folder):
    with Serving(tiny_folder, "--max-running", "2") as server:
        engine, answers, late = server.engine_pid(), [], []
        thread = server.ask(answers, max_tokens=200)
        wait_until(lambda: server.running() == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        server.ask(late).join()
        assert late[0].status_code == 503
        assert late[0].json()["error"]["code"] == "draining"
        thread.join()
        assert answers[0].json()["usage"]["completion_tokens"] == 200
        assert server.end() == 0
        assert gone(engine)


@pytest.mark.slow
def test_what_does_not_finish_in_time_is_aborted(tiny_folder):
    with Serving(tiny_folder, drain=0.2) as server:
        answers: list = []
        thread = server.ask(answers, max_tokens=2000, n=4)
        wait_until(lambda: server.running() == 4)
        server.process.send_signal(signal.SIGTERM)
        thread.join()
        assert answers[0].status_code == 503
        assert server.end() == 0


@pytest.mark.slow
def test_an_engine_does_not_outlive_its_server(tiny_folder):
    with Serving(tiny_folder) as server:
        engine = server.engine_pid()
        server.process.kill()
        wait_until(lambda: gone(engine))
        server.end()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nowhere"], "nowhere"),
        (["{folder}", "--method", "magic"], "magic"),
        (["{folder}", "--host", "203.0.113.1"], "cannot listen"),
        (["{folder}", "--block-size", "99"], "block_size"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line_with_status_2(tiny_folder, options, message):
    arguments = [option.format(folder=tiny_folder) for option in options]
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "from recguide.cli import app; app()",
            "serve",
            *arguments,
            "--port",
            str(free_port()),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert message in result.stderr.strip().splitlines()[-1]


def test_the_serving_process_needs_no_torch():
    code = (
        "import sys\nimport recguide.serving.app, recguide.serving.server, recguide.engine.spawned\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
