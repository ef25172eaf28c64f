"""Two servers behind smg, the model gateway of SGLang: balanced by prefix, and one may die."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from tests.serving.processes import Serving, free_port, start
from tests.serving.site import wait_until
from tests.tiny import write_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SMG = shutil.which("smg") or shutil.which("smg", path=str(Path(sys.executable).parent))
if SMG is None:
    pytest.skip("needs the package 'smg'", allow_module_level=True)


@contextmanager
def gateway(*urls):
    """The address of smg before these servers."""
    port = free_port()
    process = start(
        SMG, "launch", "--worker-urls", *urls, "--host=127.0.0.1", f"--port={port}", "--policy=cache_aware",
        f"--prometheus-port={free_port()}", "--health-check-interval-secs=1",
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: answers(f"{url}/v1/models") and answers(f"{url}/health"), 120)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def answers(url):
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def streamed(url, prompt):
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 30, "temperature": 0, "stream": True}
    texts = []
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                texts += [choice["text"] for choice in json.loads(line[6:])["choices"]]
    assert texts
    return "".join(texts)


def test_a_gateway_serves_from_two_servers_and_then_from_one(tmp_path):
    folder = str(write_checkpoint(tmp_path, "nemotron_labs_diffusion"))
    options = ("--device=cpu", "--served-model-name=tiny")
    with ExitStack() as stack:
        servers = [stack.enter_context(Serving(folder, *options, drain=2.0)) for _ in range(2)]
        gate = stack.enter_context(gateway(*(server.url for server in servers)))
        prompts = [f"number {n}" for n in range(6)]
        expected = [streamed(servers[0].url, prompt) for prompt in prompts]
        assert [streamed(gate, prompt) for prompt in prompts] == expected
        servers[0].process.kill()
        assert [streamed(gate, prompt) for prompt in prompts] == expected
