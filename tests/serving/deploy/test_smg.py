"""Two servers behind smg, the model gateway of SGLang: balanced by prefix, and one may die."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from tests.serving.deploy.processes import free_port, until
from tests.tiny import write_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SMG = shutil.which("smg") or shutil.which("smg", path=str(Path(sys.executable).parent))
if SMG is None:
    pytest.skip("needs the package 'smg'", allow_module_level=True)


@contextmanager
def running(command):
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def server(folder, port):
    command = [sys.executable, "-c", "from recguide.cli import app; app()", "serve", folder]
    return running([*command, "--device=cpu", f"--port={port}", "--served-model-name=tiny", "--drain=2"])


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
    ports = [free_port() for _ in range(3)]
    one, other, gate = (f"http://127.0.0.1:{port}" for port in ports)
    with ExitStack() as stack:
        servers = [stack.enter_context(server(folder, port)) for port in ports[:2]]
        until(lambda: answers(f"{one}/ready") and answers(f"{other}/ready"))
        options = ("--policy", "cache_aware", "--prometheus-port", str(free_port()))
        command = [SMG, "launch", "--worker-urls", one, other, "--host", "127.0.0.1", "--port", str(ports[2])]
        stack.enter_context(running([*command, *options, "--health-check-interval-secs", "1"]))
        until(lambda: answers(f"{gate}/v1/models") and answers(f"{gate}/health"))
        prompts = [f"number {n}" for n in range(6)]
        expected = [streamed(one, prompt) for prompt in prompts]
        assert [streamed(gate, prompt) for prompt in prompts] == expected
        servers[0].kill()
        assert [streamed(gate, prompt) for prompt in prompts] == expected
