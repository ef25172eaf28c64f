"""Random requests, and clients that send them to a server: patient ones, late ones, and those who leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from recguide.core import MAX_SEED, SamplingParams, Structure

MODEL = "tiny"
ROUTE = "/v1/completions"
BEGINNINGS = ("", "You are a careful assistant. Answer in one short sentence, please. " * 2)
WORDS = ("a", "the", "ab", "fox", "0", " ", "é", "樹", "\n", "Once upon a time", "<think>", "zzzzzz")
FORMS = (
    ({"regex": "[a-c]{1,9}"}, Structure("regex", "[a-c]{1,9}")),
    ({"regex": "(yes|no)+"}, Structure("regex", "(yes|no)+")),
    ({"json": {"enum": [1, 22, "no"]}}, Structure("json_schema", '{"enum": [1, 22, "no"]}')),
)
POLICIES = ("price", "paper", "fixed", "fixed-4", "fixed-16", "ar")
BLOCKS = (1, 2, 3, 5, 8, 16, 32)
LETTERS = range(104 + 97, 104 + 123)
"""Token ids of a to z in the tiny tokenizer."""


@dataclass(frozen=True)
class Case:
    """A request and how its client behaves.

    Attributes:
        number: which of the soak's requests; it and the soak's seed give all the rest.
        body: as sent.
        params: what it means, but for the method.
        events: after how many events its client leaves; None stays. A client that reads no stream leaves so
            many hundredths of a second after it asked.
    """

    number: int
    body: dict[str, Any]
    params: SamplingParams
    events: int | None

    @property
    def prompt(self) -> str | list[int]:
        return self.body["prompt"]

    @property
    def hurried(self) -> bool:
        return "timeout" in self.body


@dataclass
class Outcome:
    """What a client saw; text, token ids and finish reason of each choice."""

    case: Case
    text: dict[int, str] = field(default_factory=dict)
    ids: dict[int, list[int]] = field(default_factory=dict)
    finish: dict[int, str] = field(default_factory=dict)
    end: str = "left"

    def take(self, choices: Sequence[dict[str, Any]]) -> None:
        for choice in choices:
            index = choice["index"]
            self.text[index] = self.text.get(index, "") + choice["text"]
            self.ids.setdefault(index, []).extend(choice["token_ids"])
            if choice["finish_reason"] is not None:
                assert index not in self.finish, "one finish reason each"
                self.finish[index] = choice["finish_reason"]


def case_of(seed: int, number: int) -> Case:
    rng = Random(f"{seed}/{number}")
    params, body = _parameters(rng)
    body |= {
        "model": MODEL,
        "prompt": _prompt(rng),
        "return_token_ids": True,
        "stream": rng.random() < 0.6,
        "speculation": _speculation(rng),
        **_sent(params),
    }
    if rng.random() < 0.04:
        body["timeout"] = rng.choice([0.001, 0.02, 0.1])
    leaves = rng.randrange(6) if rng.random() < 0.12 else None
    return Case(number, body, SamplingParams(**params), leaves)


def _prompt(rng: Random) -> str | list[int]:
    text = rng.choice(BEGINNINGS) + "".join(rng.choices(WORDS, k=rng.randint(1, 6)))
    return text if rng.random() < 0.7 else [104 + byte for byte in text.encode()]


def _parameters(rng: Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sampling parameters, and what the body says beside them."""
    params: dict[str, Any] = {"max_tokens": rng.choice([1, 2, 3, 5, 8, 12, 16]), "temperature": 0.0}
    if rng.random() < 0.6:
        params |= {"temperature": rng.choice([0.3, 0.8, 1.0, 1.6]), "seed": rng.randrange(MAX_SEED)}
    likely = rng.sample(LETTERS, rng.choice([1, 2, 4]))
    if rng.random() < 0.5:  # so that drafts are right
        params["logit_bias"] = {token: rng.choice([4.0, 9.0]) for token in likely}
    for name, values in OPTIONS.items():
        if rng.random() < 0.15:
            params[name] = rng.choice(values)
    if rng.random() < 0.25:
        params["stop"] = [chr(token - 104) * rng.choice([1, 2]) for token in likely[:2]]
    if rng.random() < 0.15:
        params["stop_token_ids"] = likely[:1]
    body: dict[str, Any] = {}
    if rng.random() < 0.04:
        body["structured_outputs"], params["structure"] = rng.choice(FORMS)
        params.pop("ignore_eos", None)
        params.pop("min_tokens", None)
    if "min_tokens" in params:
        params["min_tokens"] = min(params["min_tokens"], params["max_tokens"])
    return params, body


OPTIONS: dict[str, tuple[Any, ...]] = {
    "top_p": (0.5, 0.95),
    "top_k": (1, 3, 40),
    "min_p": (0.02, 0.3),
    "repetition_penalty": (0.8, 1.4),
    "frequency_penalty": (-1.0, 0.7),
    "presence_penalty": (0.5, 2.0),
    "min_tokens": (1, 4, 9),
    "ignore_eos": (True,),
    "n": (2, 3),
    "logprobs": (0, 2),
}


def _sent(params: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters as a body says them."""
    sent = {name: value for name, value in params.items() if name != "structure"}
    if "logit_bias" in sent:
        sent["logit_bias"] = {str(token): bias for token, bias in sent["logit_bias"].items()}
    return sent


def _speculation(rng: Random) -> dict[str, Any] | bool | None:
    """A method with a block size, a policy with or without a cap, or neither."""
    wanted = rng.choice(["nothing", "off", "block", "block", "policy", "policy", "cap"])
    if wanted == "block":
        method = rng.choice(["linear", "tidar", "recguide"])
        return {"method": method, "block_size": rng.choice(BLOCKS)}
    if wanted == "policy":
        return {"policy": rng.choice(POLICIES), "max_block_size": rng.choice([None, *BLOCKS])}
    return {"nothing": None, "off": False, "cap": {"max_block_size": rng.choice(BLOCKS)}}[wanted]


class Clients:
    """So many clients at a time, on the event loop of the application that they ask.

    Args:
        app: running.
    """

    def __init__(self, app: ASGIApp, at_once: int = 24) -> None:
        self._app = app
        self._places = asyncio.Semaphore(at_once)

    async def ask(self, cases: Sequence[Case]) -> list[Outcome]:
        return list(await asyncio.gather(*(self._one(case) for case in cases)))

    async def _one(self, case: Case) -> Outcome:
        async with self._places:
            exchange = _Exchange(case)
            await self._app(exchange.scope, exchange.receive, exchange.send)
        return exchange.outcome


class _Exchange:
    """One request and its answer, as an application takes and gives them."""

    def __init__(self, case: Case) -> None:
        self.outcome = Outcome(case)
        self._sent = False
        self._gone = asyncio.Event()
        self._events = 0
        self._status = 0
        self._body = b""
        self._leaves(0)

    @property
    def scope(self) -> Scope:
        return {
            "type": "http",
            "method": "POST",
            "path": ROUTE,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "state": {},
        }

    async def receive(self) -> Message:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": json.dumps(self.outcome.case.body).encode()}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif self._status == 200 and self.outcome.case.body["stream"]:
            for line in message["body"].decode().split("\n\n"):
                self._hear(line)
        else:
            self._body += message["body"]
            if not message.get("more_body"):
                self._end(self._status, self._body)

    def _hear(self, line: str) -> None:
        """One event of a stream, or the nothing after the last of a message."""
        if not line or self._leaves(1):
            return
        assert self.outcome.end in ("left", "late"), "nothing follows the end"
        if line == "data: [DONE]":
            self.outcome.end = "done" if self.outcome.end == "left" else "late"
            return
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            self._end(504 if event["error"]["code"] == "timeout" else 500, line.encode())
        else:
            self.outcome.take(event["choices"])

    def _leaves(self, events: int) -> bool:
        """Whether the client has gone, now that it has heard so many more events."""
        case = self.outcome.case
        if case.events is None:
            return False
        if not case.body["stream"]:
            asyncio.get_running_loop().call_later(case.events / 100, self._gone.set)
        elif self._events == case.events:
            self._gone.set()
        self._events += events
        return self._gone.is_set()

    def _end(self, status: int, answer: bytes) -> None:
        """Only who is in a hurry may get no answer."""
        if status == 504 and self.outcome.case.hurried:
            self.outcome.end = "late"
            return
        assert status == 200, (self.outcome.case, status, answer)
        self.outcome.end = "done"
        self.outcome.take(json.loads(answer)["choices"])
