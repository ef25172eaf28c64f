"""An engine in a process of its own, seen from the process that asks it: spawn it, talk to it, see it end."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import deque
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import zmq

from recguide.engine.client import AsyncEngine, LinkError
from recguide.engine.process import Recipe, main
from recguide.engine.wire import Notice, Order, decode_notice, encode

LAST_WORDS_MS = 200
"""How long notices that a process sent before its end may still be on their way."""


class ProcessLink:
    """Owns the process and the socket, which lies in a folder that only this user may enter."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._folder = Path(tempfile.mkdtemp(prefix="recguide-"))
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._process: BaseProcess | None = None
        self._orders: deque[bytes] = deque()
        self._notices: asyncio.Queue[Notice | None] = asyncio.Queue()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        address = f"ipc://{self._folder}/engine"
        self._socket.set_hwm(0)  # neither side may ever wait for the other
        self._socket.bind(address)
        process = get_context("spawn").Process(
            target=main, args=(self._recipe, address), name="recguide-engine"
        )
        await asyncio.to_thread(process.start)
        self._process = process
        loop = asyncio.get_running_loop()
        loop.add_reader(process.sentinel, self._end)
        loop.add_reader(self._socket.fileno(), self._exchange)

    def send(self, order: Order) -> None:
        self._orders.append(encode(order))
        self._exchange()

    def _exchange(self) -> None:
        """Sends and takes all that can be: the descriptor says no more than that something has changed since
        the socket was last used, in either direction."""
        with suppress(zmq.Again):  # its queue has no limit, but before it has connected there is none
            while self._orders:
                self._socket.send(self._orders[0], zmq.NOBLOCK)
                self._orders.popleft()
        with suppress(zmq.Again):
            while True:
                self._notices.put_nowait(decode_notice(self._socket.recv(zmq.NOBLOCK)))

    async def receive(self) -> Notice:
        notice = await self._notices.get()
        if notice is None:
            raise LinkError(f"the engine process ended unexpectedly ({self._status()})")
        return notice

    async def close(self, patience_s: float) -> None:
        process = self._process
        if process is not None:
            await asyncio.to_thread(process.join, patience_s)
            if process.is_alive():
                process.kill()
                await asyncio.to_thread(process.join)
            asyncio.get_running_loop().remove_reader(process.sentinel)
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close(linger=0)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self) -> None:
        assert self._process is not None, "only a started process ends"
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._process.sentinel)
        loop.call_later(LAST_WORDS_MS / 1000, self._notices.put_nowait, None)

    def _status(self) -> str:
        assert self._process is not None
        self._process.join()
        code = self._process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit status {code}"


def spawn_engine(recipe: Recipe) -> AsyncEngine:
    """An engine that `start` spawns."""
    return AsyncEngine(ProcessLink(recipe))
