"""Runs the application under uvicorn: it listens, drains when told to stop, and says how it went.

The first SIGTERM or SIGINT drains: new requests get a 503, running ones may finish within a grace period and
are aborted after it. A second one aborts them at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from recguide.core import ParameterError
from recguide.engine.client import EngineError
from recguide.engine.wire import Facts
from recguide.serving.service import Service

_LOG = logging.getLogger(__name__)

ENGINE_FAILED = 1
"""Exit status of a server whose engine is gone."""
BACKLOG = 2048
LAST_WRITES_S = 2
"""How long answers that are made already may take to reach their clients."""
KEEP_ALIVE_S = 60
"""How long a connection may be idle: longer than clients pause between two requests."""
TICK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a server listens: a host and a port (0 is any), or a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None

    def bind(self) -> socket.socket:
        """Raises ParameterError if nobody can listen there."""
        try:
            return self._bind_path(self.uds) if self.uds is not None else self._bind_port()
        except (OSError, OverflowError) as error:
            raise ParameterError(
                "port" if self.uds is None else "uds", f"cannot listen at {self} ({error}); choose another"
            ) from error

    def _bind_port(self) -> socket.socket:
        family, *_ = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((self.host, self.port), family=family, backlog=BACKLOG)

    def bound(self, listener: socket.socket) -> Listening:
        """Where its socket listens: with the port that was free, if any was asked for."""
        return self if self.uds is not None else replace(self, port=listener.getsockname()[1])

    @staticmethod
    def _bind_path(path: Path) -> socket.socket:
        if path.is_socket():
            path.unlink()  # of a server that did not end well
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        return listener

    def __str__(self) -> str:
        if self.uds is not None:
            return f"unix:{self.uds}"
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


class Server(uvicorn.Server):
    """A uvicorn server that drains before it stops.

    Attributes:
        status: exit status.
    """

    def __init__(self, app: FastAPI, on_ready: Callable[[Facts], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=LAST_WRITES_S,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self.status = 0
        self._service: Service = app.state.service
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._begin(self._stop_on_fault())
        self._begin(self._announce())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by a signal. Uvicorn's own would stop listening at once and die by the signal at the end."""
        del frame
        if self._loop is None:
            self.should_exit = True
            return
        grace_s = 0.0 if self._service.draining else self._service.settings.drain_s
        _LOG.info("%s: %d requests may take %.0f s", signal.Signals(sig).name, self._service.active, grace_s)
        self._service.draining = True
        self._loop.call_soon_threadsafe(self._begin, self._drain(grace_s))

    async def _drain(self, grace_s: float) -> None:
        """Waits for what runs, as long as it may take."""
        try:
            async with asyncio.timeout(grace_s):
                while self._service.active:
                    await asyncio.sleep(TICK_S)
        except TimeoutError:
            _LOG.warning("%d requests are aborted", self._service.active)
        self.should_exit = True
        self._service.engine.fail("the server was stopped")

    async def _announce(self) -> None:
        with suppress(EngineError):  # another task minds it
            self._on_ready(await self._service.until_ready())

    async def _stop_on_fault(self) -> None:
        fault = await self._service.engine.until_fault()
        if not self.should_exit:
            _LOG.error("%s", fault)
            self.status = ENGINE_FAILED
            self.should_exit = True

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(work))


def serve(app: FastAPI, listening: Listening, on_ready: Callable[[Facts, Listening], None]) -> int:
    """Serves until told to stop, or until the engine is gone; returns the exit status.

    Args:
        on_ready: is told of the model and the address once requests are served.

    Raises ParameterError if nobody can listen there.
    """
    listener = listening.bind()
    at = listening.bound(listener)
    server = Server(app, lambda facts: on_ready(facts, at))
    _LOG.info("listening at %s; the model is loading, /ready tells when it serves", at)
    try:
        server.run([listener])
    finally:
        listener.close()
        if listening.uds is not None:
            listening.uds.unlink(missing_ok=True)
    return server.status
