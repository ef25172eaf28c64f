"""One request, sent and timed. Whatever goes wrong becomes a record with the kind of the failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass

from recguide.bench.load.answer import Answer, StreamedError
from recguide.bench.load.connections import (
    ConnectionLostError,
    Connections,
    Head,
    NoConnectionError,
)
from recguide.bench.load.endpoint import Asking, Endpoint, body
from recguide.bench.load.events import EventParser, MalformedStreamError
from recguide.bench.load.prompts import Prompt
from recguide.bench.load.record import Record


@dataclass(frozen=True, slots=True)
class Errand:
    """A request to send.

    Attributes:
        turn, number: which one.
        prompt: what it asks.
        seed: as sampling seed and as mark, its own.
        scheduled_s: when it is due, seconds since the load's start.
    """

    turn: int
    number: int
    prompt: Prompt
    seed: int
    scheduled_s: float


@dataclass(frozen=True, slots=True)
class Failure:
    """kind: short and countable, such as "http 500"; detail: what was said."""

    kind: str
    detail: str


class Client:
    """Sends requests to one endpoint.

    Args:
        clock: seconds since the load's start.
    """

    def __init__(
        self, connections: Connections, endpoint: Endpoint, asking: Asking, clock: Callable[[], float]
    ) -> None:
        self._connections, self._endpoint, self._asking, self._clock = connections, endpoint, asking, clock

    async def send(self, errand: Errand) -> Record:
        """Sends it now and reads the answer to its end, or for `timeout_s`."""
        answer, sent_s = Answer(), self._clock()
        failure = await self._attempt(errand, answer)
        return Record(
            turn=errand.turn,
            number=errand.number,
            prompt=errand.prompt.number,
            scheduled_s=errand.scheduled_s,
            sent_s=sent_s,
            ended_s=self._clock(),
            arrivals=tuple(answer.arrivals),
            text=answer.text,
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.count("prompt_tokens"),
            cached_tokens=answer.count("cached_tokens"),
            output_tokens=answer.count("completion_tokens"),
            error=failure.kind if failure else None,
            detail=failure.detail if failure else "",
            speculation=answer.speculation,
        )

    async def _attempt(self, errand: Errand, answer: Answer) -> Failure | None:
        try:
            async with asyncio.timeout(self._endpoint.timeout_s):
                return await self._stream(errand, answer)
        except TimeoutError:
            return Failure("timeout", f"no whole answer in {self._endpoint.timeout_s:g} s")
        except NoConnectionError as error:
            return Failure("no connection", str(error))
        except ConnectionLostError as error:
            return Failure("connection lost", str(error))
        except MalformedStreamError as error:
            return Failure("malformed stream", str(error))
        except StreamedError as error:
            return Failure("error in stream", str(error))

    async def _stream(self, errand: Errand, answer: Answer) -> Failure | None:
        endpoint, clock = self._endpoint, self._clock
        fields = body(endpoint, self._asking, errand.prompt, errand.seed)
        parser, refused = EventParser(), bytearray()

        def read(head: Head, data: bytes) -> None:
            if _is_stream(head):
                at_s = clock()
                for event in parser.feed(data):
                    answer.take(event, at_s)
            else:
                refused.extend(data)

        head = await self._connections.ask(
            "POST",
            endpoint.url,
            {"Content-Type": "application/json", **endpoint.headers},
            read,
            json.dumps(fields).encode(),
        )
        if head.status != 200:
            return Failure(f"http {head.status}", _message(refused.decode(errors="replace")))
        if not _is_stream(head):
            return Failure("no stream", f"content-type {head.content_type or 'is missing'}")
        parser.close()
        return None if answer.done and answer.finish_reason else _unfinished(answer)


def _is_stream(head: Head) -> bool:
    return head.status == 200 and head.content_type.startswith("text/event-stream")


def _unfinished(answer: Answer) -> Failure:
    missing = "[DONE]" if not answer.done else "a finish reason"
    return Failure("unfinished stream", f"the stream ended without {missing}")


def _message(said: str) -> str:
    """The message of an error answer, else the beginning of what was said."""
    try:
        return str(json.loads(said)["error"]["message"])[:300]
    except (ValueError, KeyError, TypeError, RecursionError):
        return said[:300]
