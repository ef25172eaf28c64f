"""Who comes while as many wait as may is told when to come back, and the others notice nothing."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests import fake
from tests.serving.site import client_of, fake_app, wait_until

from recguide.core import RecGuideError
from recguide.engine.client import _error
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.errors import QueueFull, deadline_passed
from recguide.engine.wire import failure_of

PROMPT = "Say it: "
ANSWER = "the quick brown fox jumps over the lazy dog, and then it naps in the warm sun."


class Gated(fake.FakeBackbone):
    """Runs nothing until its gate is opened."""

    def __init__(self, *scripts):
        super().__init__(*scripts)
        self.gate = threading.Event()

    def forward(self, batch, attend):
        assert self.gate.wait(20)
        return super().forward(batch, attend)


def test_the_status_is_429_and_says_when_to_come_back():
    backbone = Gated(fake.Script(tuple(fake.encode(PROMPT)), tuple(fake.encode(ANSWER))))
    engine = Engine(backbone, fake.decode, EngineConfig(max_running=1, max_waiting=0, method="ar"))
    app = fake_app(engine)
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "temperature": 0}

    def ask():
        return client.post("/v1/completions", json=body)

    with client_of(app) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask)
        wait_until(lambda: engine.busy)
        second = pool.submit(ask)
        wait_until(lambda: app.state.service.engine.pending == 2)
        backbone.gate.set()
        refused = second.result()
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        assert first.result().json()["choices"][0]["text"] == ANSWER[:40]
        assert ask().status_code == 200
    assert engine.runner.pool.used_pages == 0


@pytest.mark.parametrize(
    "error", [QueueFull("queue: full", 2.5), deadline_passed(3, queued=False), RecGuideError("other")]
)
def test_errors_keep_their_meaning_between_processes(error):
    told = _error(failure_of(error))
    assert str(told) == str(error)
    assert getattr(told, "retry_after_s", None) == getattr(error, "retry_after_s", None)


def test_an_engine_is_told_times_in_its_own_clock():
    """Seconds since the epoch here, of a clock that nobody sets there."""
    backbone = Gated(fake.Script(tuple(fake.encode(PROMPT)), tuple(fake.encode(ANSWER))))
    engine = Engine(backbone, fake.decode, EngineConfig(method="ar"))
    seen = []
    add = engine.add
    engine.add = lambda prompt, params, **times: (
        seen.append((time.monotonic(), times)) or add(prompt, params, **times)
    )
    backbone.gate.set()
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "timeout": 30}
    with client_of(fake_app(engine)) as client:
        assert client.post("/v1/completions", json=body).status_code == 200
    ((now, times),) = seen
    assert 25 < times["deadline"] - now <= 30.1
    assert 0 <= now - times["arrived"] < 5
