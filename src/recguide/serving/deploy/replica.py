"""One engine and its application inside a Ray Serve replica."""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
# Ray is an extra; without it, what it gives is not known.
from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from ray import serve

from recguide.engine.client import EngineError
from recguide.engine.process import Recipe
from recguide.engine.reports import StepReport
from recguide.engine.spawned import spawn_engine
from recguide.serving.app import create_app
from recguide.serving.deploy.calls import Call, Head, Part, answer, begun_well
from recguide.serving.logs import LogFormat, configure_logs
from recguide.serving.service import Service
from recguide.serving.settings import ServerSettings

_LOG = logging.getLogger(__name__)

LAST_WORDS_S = 0.5
"""How long answers that have just failed may take to say so."""
_KEPT = 2_000
"""Step reports that wait to be fetched at most."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Step reports of a replica; `end` is what to ask for next time."""

    replica: str
    end: int
    reports: tuple[StepReport, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A whole answer of one replica."""

    replica: str
    head: Head
    body: bytes


class Replica:
    """Serves one engine. It is there once its model is loaded, and ends with its engine.

    Ray Serve asks for its health a few times before it believes that it is bad; a process that ends is
    believed at once, and gets no more requests.
    """

    async def __init__(self, recipe: Recipe, settings: ServerSettings, log_format: LogFormat) -> None:
        configure_logs(log_format)
        self._name = serve.get_replica_context().replica_id.unique_id
        self._app = create_app(spawn_engine(recipe), settings)
        self._service: Service = self._app.state.service
        self._reports: deque[StepReport] = deque(maxlen=_KEPT)
        self._end = 0
        self._stack = AsyncExitStack()
        await self._stack.enter_async_context(self._app.router.lifespan_context(self._app))
        try:
            await self._service.until_ready()
        except EngineError:
            await self._stack.aclose()
            raise
        for work in (self._watch(), self._end_with_engine()):
            self._stack.callback(asyncio.create_task(work).cancel)

    async def call(self, call: Call) -> AsyncGenerator[Part, None]:
        """Answers a request; EngineError if there is no engine to begin with it."""
        self._check()
        async for part in begun_well(answer(self._app, call), self._check):
            yield part

    async def page(self, call: Call) -> Page:
        """Answers a request of every replica."""
        head, *body = [part async for part in answer(self._app, call)]
        assert isinstance(head, Head), "an answer begins with its head"
        return Page(self._name, head, b"".join(part for part in body if isinstance(part, bytes)))

    async def steps(self, since: dict[str, int]) -> Steps:
        """Step reports from the one that `since` names for this replica; from now on if it names none."""
        new = min(self._end - since.get(self._name, self._end), len(self._reports))
        reports = tuple(self._reports)
        return Steps(self._name, self._end, reports[len(reports) - new :])

    async def check_health(self) -> None:
        """Ray Serve asks; whoever raises is replaced."""
        self._check()

    def _check(self) -> None:
        if self._service.engine.fault is not None:
            raise EngineError(self._service.engine.fault)

    async def __del__(self) -> None:
        """Ray Serve awaits it once the last request is answered, or has had its time."""
        await self._stack.aclose()

    async def _end_with_engine(self) -> None:
        fault = await self._service.engine.until_fault()
        _LOG.error("%s", fault)
        await asyncio.sleep(LAST_WORDS_S)
        os._exit(1)

    async def _watch(self) -> None:
        async for report in self._service.engine.reports():
            self._reports.append(report)
            self._end += 1
