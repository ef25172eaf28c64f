"""A server under test: the real application over a tiny model or a scripted one, in this process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.testclient import TestClient
from tests import fake
from tests.toy import ByteTokenizer

from recguide.core import ParameterError
from recguide.engine.engine import Engine
from recguide.engine.facts import facts_of
from recguide.engine.local import LocalEngine
from recguide.engine.memory import MemoryPlan
from recguide.engine.wire import Facts
from recguide.llm import LLM
from recguide.serving.app import create_app
from recguide.serving.server import Listening, Server
from recguide.serving.settings import ServerSettings

MODEL = "tiny"


class FakeTokenizer(ByteTokenizer):
    """The byte tokenizer of scripted models, with the whole interface."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:  # noqa: ARG002
        return fake.encode(text)

    def decode(self, ids, skip_special_tokens: bool = True) -> str:  # noqa: ARG002
        return fake.decode(ids)

    def chat(self, messages, **kwargs: object) -> list[int]:
        if any("content" not in turn for turn in messages):
            raise ParameterError("messages", "a turn needs a content")
        return super().chat(messages, **kwargs)

    def token(self, token_id: int) -> str:
        return chr(token_id) if 33 <= token_id < 127 else f"<{token_id}>"


def app_of(llm: LLM, **settings):
    """The application over a model's engine, which no other running one may have."""
    facts = replace_facts(facts_of(llm.model, llm.engine), name=MODEL)
    return create_app(LocalEngine(llm.engine, facts), ServerSettings(**settings), llm.tokenizer)


def fake_app(engine: Engine, tokenizer: ByteTokenizer | None = None, **settings):
    """The application over a scripted model."""
    local = LocalEngine(engine, fake_facts(engine))
    return create_app(local, ServerSettings(**settings), tokenizer or FakeTokenizer())


def fake_facts(engine: Engine) -> Facts:
    return Facts(
        name=MODEL,
        fingerprint="fake",
        tokenizer=None,
        device="cpu",
        dtype="float32",
        max_model_len=min(engine.limit, engine.memory.kv_tokens),
        vocabulary_size=fake.VOCABULARY.size,
        eos=fake.VOCABULARY.eos,
        think=fake.VOCABULARY.think,
        method="recguide",
        block_size=16,
        drafts=True,
        max_running=64,
        memory=MemoryPlan(0, 0, 0, 0, 0),
    )


def replace_facts(facts: Facts, **changes) -> Facts:
    import msgspec

    return msgspec.structs.replace(facts, **changes)


@contextmanager
def client_of(app) -> Iterator[TestClient]:
    """A client that sees whole bodies, with the application started and ready."""
    with TestClient(app, raise_server_exceptions=False) as client:
        wait_until(lambda: app.state.service.ready)
        yield client


@contextmanager
def server_of(app) -> Iterator[str]:
    """The URL of the application behind a real socket."""
    listener = Listening(port=0).bind()
    server = Server(app, lambda _: None)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started and app.state.service.ready)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()


def wait_until(condition, seconds: float = 20.0) -> None:
    """Waits for what another thread or process brings about; the longer it takes, the less often it looks."""
    end, pause = time.monotonic() + seconds, 0.01
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(pause)
        pause = min(0.3, 1.2 * pause)


def events(body: str) -> list[dict]:
    """The objects of an event stream, which has to end with [DONE]."""
    blocks = body.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""], body[-200:]
    lines = blocks[:-2]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


class Told:
    """What a stream said of each choice, checked on the way (the state machine of an OpenAI stream)."""

    def __init__(self, objects: list[dict], *, chat: bool) -> None:
        self.text: dict[int, str] = {}
        self.finish: dict[int, str] = {}
        self.deltas: dict[int, list[str]] = {}
        self.token_ids: dict[int, list[int]] = {}
        self.logprobs: dict[int, int] = {}
        self.reasoning: dict[int, str] = {}
        self.calls: dict[int, list[dict]] = {}
        self.usage = None
        self.metrics = None
        roles: set[int] = set()
        assert len({item["id"] for item in objects}) == 1
        for item in objects:
            assert self.usage is None, "nothing follows usage"
            if not item["choices"]:
                self.usage, self.metrics = item["usage"], item["metrics"]
            for choice in item["choices"]:
                index = choice["index"]
                assert index not in self.finish, "nothing follows a finish reason"
                if chat:
                    assert ("role" in choice["delta"]) is (index not in roles)
                    roles.add(index)
                said = choice["delta"].get("content", "") if chat else choice["text"]
                if chat:
                    self._hear(index, choice["delta"])
                self.deltas.setdefault(index, []).append(said)
                self.text[index] = self.text.get(index, "") + said
                self.token_ids.setdefault(index, []).extend(choice.get("token_ids", []))
                if choice["logprobs"] is not None:
                    found = choice["logprobs"]["content" if chat else "tokens"]
                    self.logprobs[index] = self.logprobs.get(index, 0) + len(found)
                if choice["finish_reason"] is not None:
                    self.finish[index] = choice["finish_reason"]
        assert set(self.finish) == set(self.text), "every choice has one finish reason"

    def _hear(self, index: int, delta: dict) -> None:
        if "reasoning_content" in delta:
            self.reasoning[index] = self.reasoning.get(index, "") + delta["reasoning_content"]
        for call in delta.get("tool_calls", []):
            calls = self.calls.setdefault(index, [])
            assert call.pop("index") == len(calls)
            calls.append(call)
