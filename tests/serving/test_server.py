"""`recguide serve` as a process: how it ends, whatever ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import httpx
import pytest
from tests.serving.processes import RECGUIDE, TINY, Serving, free_port, gone
from tests.serving.site import wait_until

LONG = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "temperature": 0}


def ask(server, answers: list, **body) -> threading.Thread:
    """Asks in a thread; what came is put into `answers`."""

    def work():
        try:
            answers.append(httpx.post(f"{server.url}/v1/completions", json={**LONG, **body}, timeout=60))
        except httpx.HTTPError as error:
            answers.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def running(server) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("recguide:running_requests "))


def test_sigterm_lets_requests_finish_and_takes_no_new_ones(tiny_folder):
    with Serving(tiny_folder, *TINY, "--max-running", "2") as server:
        engine, answers, late = server.engine_pid(), [], []
        thread = ask(server, answers, max_tokens=200)
        wait_until(lambda: running(server) == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        ask(server, late).join()
        assert late[0].status_code == 503
        assert late[0].json()["error"]["code"] == "draining"
        thread.join()
        assert answers[0].json()["usage"]["completion_tokens"] == 200
        assert server.end() == 0
        assert gone(engine)


@pytest.mark.slow
def test_what_does_not_finish_in_time_is_aborted(tiny_folder):
    with Serving(tiny_folder, *TINY, drain=0.2) as server:
        answers: list = []
        thread = ask(server, answers, max_tokens=2000, n=4)
        wait_until(lambda: running(server) == 4)
        server.process.send_signal(signal.SIGTERM)
        thread.join()
        assert answers[0].status_code == 503
        assert server.end() == 0


@pytest.mark.slow
def test_an_engine_does_not_outlive_its_server(tiny_folder):
    with Serving(tiny_folder, *TINY) as server:
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
        [*RECGUIDE, "serve", *arguments, "--port", str(free_port())],
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
