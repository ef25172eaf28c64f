"""A whole load: endpoints asked in turns, after a warm-up that is not counted."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from itertools import product

from recguide.bench.load.client import Client, Errand
from recguide.bench.load.connections import ConnectionLostError, Connections, NoConnectionError
from recguide.bench.load.drive import Clock, ClosedLoop, Limit, Load, Send, Turn
from recguide.bench.load.endpoint import Asking, Endpoint, api_root, bearer, body
from recguide.bench.load.prompts import Prompt
from recguide.bench.load.record import Record
from recguide.core import RecGuideError
from recguide.models.progress import Progress

WARM_UP = -1
"""The turn that is not counted."""
MODELS_S = 30
"""How long an endpoint may take to list its models."""
_BEAT_S = 0.02


class EndpointError(RecGuideError):
    """An endpoint that cannot be asked at all."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of every endpoint.

    Attributes:
        load: who sends when.
        limit: of each endpoint's requests, all turns together.
        warm_up: requests to each endpoint that are not counted, at most 8 at a time.
        turns: stretches in which endpoints take turns (A B, B A, A B, …), so that both see the same minutes.
        seed: of prompts' order and arrivals.
    """

    load: Load
    limit: Limit
    prompts: Sequence[Prompt]
    asking: Asking
    warm_up: int
    turns: int
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an endpoint did.

    Attributes:
        records: by turn and number.
        lag_ms: how late the client's own clock ticks came, a sample every 20 ms: its part in the latencies.
    """

    endpoint: Endpoint
    records: tuple[Record, ...]
    lag_ms: tuple[float, ...]


async def run(endpoints: Sequence[Endpoint], plan: Plan, progress: Progress) -> list[Outcome]:
    """Loads all endpoints. Raises EndpointError where the warm-up gets no answer at all, and ParameterError
    for a prompt that an endpoint's API has no place for.
    """
    for endpoint, prompt in product(endpoints, plan.prompts):
        body(endpoint, plan.asking, prompt, 0)
    records: dict[str, list[Record]] = {endpoint.name: [] for endpoint in endpoints}
    lags: dict[str, list[float]] = {endpoint.name: [] for endpoint in endpoints}
    with closing(Connections()) as connections:
        for endpoint in endpoints:
            await _warm_up(connections, endpoint, plan)
        clock = _stopwatch()
        clients = {each.name: Client(connections, each, plan.asking, clock) for each in endpoints}
        for number in range(plan.turns):
            turn = Turn(number, plan.prompts, plan.seed, plan.limit.share(number, plan.turns))
            for endpoint in endpoints[:: -1 if number % 2 else 1]:
                send = _counting(clients[endpoint.name], endpoint, plan, records[endpoint.name], progress)
                async with _watching(lags[endpoint.name]):
                    await plan.load.run(turn, send, clock)
    return [
        Outcome(each, tuple(sorted(records[each.name], key=_place)), tuple(lags[each.name]))
        for each in endpoints
    ]


def _place(record: Record) -> tuple[int, int]:
    return record.turn, record.number


async def first_model(base_url: str, api_key: str | None) -> str:
    """The first model that an endpoint lists. Raises EndpointError."""
    url, said = f"{api_root(base_url)}/models", bytearray()
    try:
        with closing(Connections()) as connections:
            async with asyncio.timeout(MODELS_S):
                await connections.ask("GET", url, bearer(api_key), lambda _, data: said.extend(data))
        return str(json.loads(said)["data"][0]["id"])
    except (NoConnectionError, ConnectionLostError, TimeoutError) as error:
        raise EndpointError(
            f"{url} does not answer ({error}); is the server up? else pass --model"
        ) from error
    except (ValueError, LookupError, TypeError) as error:
        shown = said[:80].decode(errors="replace")
        raise EndpointError(f"{url} names no model ({shown}); is the server up? else pass --model") from error


def _stopwatch() -> Clock:
    """A clock that shows 0 now."""
    start_s = time.perf_counter()
    return lambda: time.perf_counter() - start_s


async def _warm_up(connections: Connections, endpoint: Endpoint, plan: Plan) -> None:
    if not plan.warm_up:
        return
    clock = _stopwatch()
    client = Client(connections, endpoint, plan.asking, clock)
    turn = Turn(WARM_UP, plan.prompts, plan.seed, Limit(plan.warm_up, None))
    records = await ClosedLoop(min(8, plan.warm_up)).run(turn, client.send, clock)
    if all(record.error for record in records):
        first = records[0]
        raise EndpointError(f"{endpoint.url}: no answer to the warm-up: {first.error}: {first.detail}")


def _counting(
    client: Client, endpoint: Endpoint, plan: Plan, records: list[Record], progress: Progress
) -> Send:
    """Sends, keeps the record and says how far it is."""

    async def send(errand: Errand) -> Record:
        record = await client.send(errand)
        records.append(record)
        progress(endpoint.name, len(records), plan.limit.requests or 0)
        return record

    return send


@asynccontextmanager
async def _watching(lags: list[float]) -> AsyncGenerator[None, None]:
    """Notes how late the event loop wakes: beyond that, latencies are not the client's."""

    async def beat() -> None:
        while True:
            due = time.perf_counter() + _BEAT_S
            await asyncio.sleep(_BEAT_S)
            lags.append(1000 * (time.perf_counter() - due))

    watch = asyncio.create_task(beat())
    try:
        yield
    finally:
        watch.cancel()
