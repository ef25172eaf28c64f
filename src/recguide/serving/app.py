"""The server as an ASGI application: routes, errors and the gate before them, over an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from recguide.engine.client import AsyncEngine
from recguide.serving import about, chat, completions
from recguide.serving.dashboard import routes as dashboard
from recguide.serving.documents import describe
from recguide.serving.errors import add_handlers
from recguide.serving.gate import OPEN_PATHS, REQUEST_ID, Gate
from recguide.serving.metrics_route import metrics_route
from recguide.serving.service import Service
from recguide.serving.settings import ServerSettings
from recguide.serving.tokens import TextTokenizer
from recguide.serving.vllm_names import both


def create_app(
    engine: AsyncEngine, settings: ServerSettings | None = None, tokenizer: TextTokenizer | None = None
) -> FastAPI:
    """An application that starts the engine with itself, and closes it.

    It listens at once and serves as soon as the engine is ready. `app.state.service` is what routes share.

    Args:
        engine: not started yet.
        tokenizer: None reads the one that the engine's model names.
    """
    settings = settings or ServerSettings()
    service = Service(engine, settings, tokenizer)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    # Its pages about the API would load scripts from elsewhere.
    app = FastAPI(
        title="RecGuide", version=version("recguide"), lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.service = service
    for router in (completions.router, chat.router, about.router):
        app.include_router(router)
    registry = service.follower.metrics.registry
    app.include_router(
        metrics_route(both(registry, settings.name) if settings.vllm_metric_names else registry),
        tags=["server"],
    )
    if settings.dashboard:
        app.include_router(dashboard.router)
    add_handlers(app)
    app.add_middleware(Gate, service=service, open_paths=OPEN_PATHS | dashboard.OPEN_PATHS)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID],
        )
    app.openapi = lambda: describe(app)
    return app
