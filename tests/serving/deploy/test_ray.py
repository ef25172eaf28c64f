"""`recguide deploy` with real Ray, on a CPU: two replicas of a tiny model, asked, killed and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest
from tests.serving.deploy.test_merging import samples
from tests.serving.processes import RECGUIDE, free_port, named, start
from tests.serving.site import wait_until
from tests.tiny import write_checkpoint

from recguide import LLM, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
pytest.importorskip("ray.serve", reason="needs the extra 'ray'")

KEY = "secret"
PATIENCE_S = 120.0
LONG = "Once upon a time there was a lighthouse keeper who counted waves. " * 12


@dataclass(frozen=True, slots=True)
class Deployment:
    url: str
    folder: str
    process: subprocess.Popen[str]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120, headers={"Authorization": f"Bearer {KEY}"})

    def replicas(self) -> set[int]:
        return named(self.process.pid, "ServeReplica:recguide:replica")

    def stream(self, prompt: str, max_tokens: int) -> tuple[str, str | None]:
        """(text, code of the error that ended it)."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        body |= {"stream": True, "ignore_eos": True}
        texts, code = [], None
        with self.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    code = event["error"]["code"] if "error" in event else code
                    texts += [choice["text"] for choice in event.get("choices", ())]
        return "".join(texts), code

    def metric(self, name: str) -> dict[str, float]:
        """Replica → its value."""
        with self.client() as client:
            text = client.get("/metrics").text
        return {replica: value for (replica, _), value in samples(text, name).items()}

    def served(self) -> dict[str, float]:
        """Replica → requests that it has answered to their end."""
        return self.metric("recguide:e2e_request_latency_seconds_count")


def deploying(folder: str, *options: str, stderr: int | None = None) -> subprocess.Popen[str]:
    return start(*RECGUIDE, "deploy", folder, *options, stdout=subprocess.PIPE, stderr=stderr)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    folder = str(write_checkpoint(tmp_path_factory.mktemp("tiny"), "nemotron_labs_diffusion"))
    port = free_port()
    options = (
        "--replicas=2 --cpus-per-replica=0.2 --gpus-per-replica=0 --device=cpu --kv-cache-tokens=8192 "
        f"--max-running=8 --served-model-name=tiny --api-key={KEY} --drain=60 --port={port} --json"
    )
    process = deploying(folder, *options.split())
    try:
        assert process.stdout is not None
        ready = json.loads(next(line for line in process.stdout if line.startswith("{")))
        assert ready["replicas"] == {"RUNNING": 2}
        yield Deployment(f"http://127.0.0.1:{port}", folder, process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


def test_streams_are_those_of_the_model_and_keys_hold(deployment):
    llm = LLM(deployment.folder, device="cpu")
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    prompts = [f"number {n}" for n in range(4)]
    expected = [generation.text for generation in llm.generate(prompts, params)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda prompt: deployment.stream(prompt, 40), prompts))
    assert found == [(text, None) for text in expected]
    for path in ("/v1/models", "/metrics", "/dashboard/events"):
        assert httpx.get(deployment.url + path, timeout=60).status_code == 401
    with deployment.client() as client:
        refused = client.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokns": 1})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "max_tokns"


def test_prompts_that_begin_alike_meet_and_others_spread(deployment):
    before = deployment.served()
    for n in range(6):
        deployment.stream(f"{LONG} And then {n}", 4)
    after = deployment.served()
    assert sorted(after[name] - before[name] for name in after) == [0, 6]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: deployment.stream(f"{n} {LONG}", 60), range(8)))
    spread = deployment.served()
    assert min(spread[name] - after[name] for name in spread) >= 2


def test_a_client_that_goes_ends_its_request(deployment):
    body = {"model": "tiny", "prompt": LONG, "max_tokens": 1100, "stream": True, "ignore_eos": True}
    with deployment.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert sum(deployment.metric("recguide:requests_in_flight").values()) == 1
    wait_until(lambda: not sum(deployment.metric("recguide:requests_in_flight").values()), 5)


def test_the_dashboard_shows_all_replicas(deployment):
    with deployment.client() as client, client.stream("GET", "/dashboard/events") as answer:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: deployment.stream(f"{n} {LONG}", 30), range(8)))
        told = (json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if "data: " in line)
        engines: set[int] = set()
        for event in told:
            engines |= {int(request) // 1_000_000 for request in event["rounds"]}
            if len(engines) == 2:
                break
    with deployment.client() as client:
        assert client.get("/").text.startswith("<!doctype html>")


def test_a_replica_that_is_killed_takes_only_its_own_streams_with_it(deployment):
    # Each replica has the beginning of one of them.
    prompts = [f"{n} {LONG}" for n in range(6)]
    whole = [deployment.stream(prompt, 250)[0] for prompt in prompts]
    with ThreadPoolExecutor(12) as threads:
        streams = [threads.submit(deployment.stream, prompt, 250) for prompt in prompts]
        time.sleep(0.5)
        victim = deployment.replicas().pop()
        os.kill(victim, signal.SIGKILL)
        late = [threads.submit(deployment.stream, prompt, 250) for prompt in prompts]
        cut = [stream.result() for stream in streams]
        again = [stream.result() for stream in late]
    assert again == [(text, None) for text in whole]
    assert {code for _, code in cut} <= {None, "replica_failed"}
    for (text, code), expected in zip(cut, whole, strict=True):
        assert text == expected if code is None else expected.startswith(text)
    wait_until(lambda: len(deployment.replicas()) == 2 and victim not in deployment.replicas(), PATIENCE_S)
    wait_until(lambda: len(deployment.served()) == 2, PATIENCE_S)


def test_a_replica_whose_engine_dies_is_replaced(deployment):
    victim = deployment.replicas().pop()
    (engine,) = named(victim, "multiprocessing.spawn")
    os.kill(engine, signal.SIGKILL)
    with ThreadPoolExecutor(4) as threads:
        streams = list(threads.map(lambda n: deployment.stream(f"{n} {LONG}", 10), range(8)))
    assert [code for _, code in streams] == [None] * 8
    wait_until(lambda: len(deployment.replicas()) == 2 and victim not in deployment.replicas(), PATIENCE_S)
    wait_until(lambda: len(deployment.served()) == 2, PATIENCE_S)


def test_the_end_lets_streams_finish(deployment):
    """The last one: it stops the deployment."""
    expected, _ = deployment.stream("the end", 300)
    with ThreadPoolExecutor(1) as threads:
        stream = threads.submit(deployment.stream, "the end", 300)
        time.sleep(0.5)
        deployment.process.send_signal(signal.SIGTERM)
        assert stream.result() == (expected, None)
    assert deployment.process.wait(60) == 0
    assert not deployment.replicas()


def test_a_model_that_is_not_there_is_named(tmp_path):
    options = ("--cpus-per-replica=0.2", "--gpus-per-replica=0", f"--port={free_port()}")
    process = deploying(str(tmp_path / "nowhere"), *options, stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 2
    assert said.splitlines()[-1].startswith("error: the deployment failed: ")
    assert "is no folder" in said.splitlines()[-1]
