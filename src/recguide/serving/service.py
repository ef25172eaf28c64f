"""What all routes share: the engine, the tokenizer of its model, and who may ask for what."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fastapi import Request

from recguide.engine.client import AsyncEngine, EngineError
from recguide.engine.wire import Facts
from recguide.models.tokenizer import Tokenizer
from recguide.serving.dashboard.feed import Feed
from recguide.serving.errors import RETRY_AFTER_S, ApiError
from recguide.serving.following import BeginSpan, Follower
from recguide.serving.metrics import Metrics
from recguide.serving.otel import spans
from recguide.serving.replies import ModelCard, ModelList, now
from recguide.serving.settings import ServerSettings
from recguide.serving.tokens import Coder, NumberTokenizer, TextTokenizer


class Service:
    """An engine with its tokenizer.

    Args:
        tokenizer: None reads the one that the engine's model names, once it is loaded.

    Attributes:
        draining: whether the server is about to stop.
        active: requests that are being answered.
        created: when, in seconds since the epoch.
        follower: follows every request, for metrics, logs and spans.
        feed: shows every step to dashboards.
    """

    def __init__(
        self, engine: AsyncEngine, settings: ServerSettings, tokenizer: TextTokenizer | None = None
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.draining = False
        self.active = 0
        self.created = now()
        self.follower = Follower(Metrics(), _spans(settings))
        self.feed = Feed()
        self._given = tokenizer
        self._coder: Coder | None = None
        self._prepared = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns at once; requests are served when the model is loaded."""
        await self.engine.start()
        self._tasks = [
            asyncio.create_task(self._prepare(), name="tokenizer"),
            asyncio.create_task(self._observe(), name="step reports"),
            asyncio.create_task(self.feed.run(), name="dashboard"),
        ]

    async def until_ready(self) -> Facts:
        """Returns when requests are served; EngineError if they never will be."""
        facts = await self.engine.until_ready()
        await self._prepared.wait()
        return facts

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._coder is not None:
            self._coder.close()
        await self.engine.close()

    @contextmanager
    def busy(self) -> Generator[None, None, None]:
        """Counts one more request meanwhile."""
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    @property
    def ready(self) -> bool:
        return self.engine.ready and self._coder is not None and not self.draining

    @property
    def facts(self) -> Facts:
        """ApiError 503 while there are none."""
        self._check_ready()
        assert self.engine.facts is not None
        return self.engine.facts

    @property
    def coder(self) -> Coder:
        """ApiError 503 while there is none."""
        self._check_ready()
        assert self._coder is not None
        return self._coder

    @property
    def models(self) -> tuple[str, ...]:
        return self.settings.models or (self.facts.name,)

    def model(self, name: str | None) -> str:
        """The model's name for an answer; ApiError 404 for a model that is not served."""
        if name is not None and name not in self.models:
            raise ApiError(
                404,
                f"the model {name!r} is not served here; {', '.join(self.models)} is",
                param="model",
                code="model_not_found",
            )
        return name or self.models[0]

    def cards(self) -> ModelList:
        facts = self.facts
        return ModelList(
            [ModelCard(name, self.created, facts.name, facts.max_model_len) for name in self.models]
        )

    def _check_ready(self) -> None:
        if self.engine.fault is not None:
            raise ApiError(503, self.engine.fault, code="engine_failed")
        if self.engine.facts is None or self._coder is None:
            raise ApiError(
                503,
                f"the model is not loaded yet ({self.engine.loading.what})",
                code="not_ready",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )

    async def _prepare(self) -> None:
        try:
            facts = await self.engine.until_ready()
        except EngineError:
            return  # the engine's health says so
        tokenizer = self._given or await asyncio.to_thread(_tokenizer, facts)
        self._coder = Coder(tokenizer)
        self.follower.acceptance = facts.acceptance
        self._prepared.set()

    async def _observe(self) -> None:
        async for report in self.engine.reports():
            self.follower.metrics.observe(report)
            self.feed.add(report)


def _tokenizer(facts: Facts) -> TextTokenizer:
    return NumberTokenizer() if facts.tokenizer is None else Tokenizer.load(Path(facts.tokenizer))


def _spans(settings: ServerSettings) -> BeginSpan | None:
    if settings.otlp_endpoint is None:
        return None
    return spans(settings.otlp_endpoint, settings.name)


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service
