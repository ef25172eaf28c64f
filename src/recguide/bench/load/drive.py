"""Who sends when. Open loop: by a schedule, whatever the answers do. Closed loop: so many at any time.

In an open loop a request's latency counts from the moment it was due, so that a stalled server (or client)
cannot hide the requests that it kept from being sent. In a closed loop a request is due when a seat is free.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Protocol

from recguide.bench.load.arrivals import Arrivals
from recguide.bench.load.client import Errand
from recguide.bench.load.prompts import Prompt, deal
from recguide.bench.load.record import Record
from recguide.core import ParameterError

Send = Callable[[Errand], Coroutine[None, None, Record]]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Limit:
    """When no more requests are sent; those under way are read to their end.

    Attributes:
        requests, duration_s: the first one reached counts; None for no such limit, but one there must be.
    """

    requests: int | None
    duration_s: float | None

    def __post_init__(self) -> None:
        if self.requests is None and self.duration_s is None:
            raise ParameterError("requests", "give a number of requests or a duration")
        if self.requests is not None and self.requests < 1:
            raise ParameterError("requests", f"must be at least 1 (got {self.requests})")
        if self.duration_s is not None and self.duration_s <= 0:
            raise ParameterError("duration", f"must be above 0 seconds (got {self.duration_s})")

    def share(self, turn: int, turns: int) -> Limit:
        """The part of one turn of several; requests that do not divide evenly go to the first turns."""
        requests = None if self.requests is None else (self.requests + turns - 1 - turn) // turns
        return Limit(requests, None if self.duration_s is None else self.duration_s / turns)


@dataclass(frozen=True, slots=True)
class Turn:
    """A stretch of load: which one, the prompts and the seed it deals them by, and its limit."""

    number: int
    prompts: Sequence[Prompt]
    seed: int
    limit: Limit

    def errands(self) -> Iterator[Callable[[float], Errand]]:
        """What to send, given when it is due; as many as the limit allows."""
        numbers = count() if self.limit.requests is None else range(self.limit.requests)
        seeds = random.Random(f"{self.seed}/{self.number}/seeds")
        for number, prompt in zip(numbers, deal(self.prompts, self.seed, self.number), strict=False):
            yield partial(Errand, self.number, number, prompt, seeds.getrandbits(31))


class Load(Protocol):
    """A way to send the requests of a turn."""

    async def run(self, turn: Turn, send: Send, clock: Clock) -> list[Record]:
        """Sends them all and waits for their answers."""
        ...


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests by a schedule."""

    arrivals: Arrivals

    async def run(self, turn: Turn, send: Send, clock: Clock) -> list[Record]:
        start_s = clock()
        async with asyncio.TaskGroup() as tasks:
            sent: list[asyncio.Task[Record]] = []
            for at_s, errand in zip(self.schedule(turn), turn.errands(), strict=False):
                await asyncio.sleep(start_s + at_s - clock())
                sent.append(tasks.create_task(send(errand(start_s + at_s))))
        return [task.result() for task in sent]

    def schedule(self, turn: Turn) -> Iterator[float]:
        """Seconds from the turn's start; the same for the same seed and turn."""
        times = self.arrivals.times(random.Random(f"{turn.seed}/{turn.number}/arrivals"))
        until = turn.limit.duration_s
        for at_s in times:
            if until is not None and at_s >= until:
                return
            yield at_s


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`concurrency` requests at any time: a new one when an answer is complete."""

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ParameterError("concurrency", f"must be at least 1 (got {self.concurrency})")

    async def run(self, turn: Turn, send: Send, clock: Clock) -> list[Record]:
        errands, records = turn.errands(), list[Record]()
        until = None if turn.limit.duration_s is None else clock() + turn.limit.duration_s

        async def seat() -> None:
            for errand in errands:  # shared: each seat takes the next one
                now_s = clock()
                if until is not None and now_s >= until:
                    return
                records.append(await send(errand(now_s)))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.concurrency):
                tasks.create_task(seat())
        return sorted(records, key=lambda record: record.number)
