"""An engine in a process of its own, seen from the process that asks it: spawn it, talk to it, see it end."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import zmq
import zmq.asyncio

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
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._process: BaseProcess | None = None
        self._ended = asyncio.Event()

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
        asyncio.get_running_loop().add_reader(process.sentinel, self._end)

    def send(self, order: Order) -> None:
        self._socket.send(encode(order))  # done when it returns: its queue has no limit

    async def receive(self) -> Notice:
        message = asyncio.ensure_future(self._socket.recv())
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((message, ended), return_when=asyncio.FIRST_COMPLETED)
            if not message.done():
                await asyncio.wait((message,), timeout=LAST_WORDS_MS / 1000)
            if message.done():
                return decode_notice(message.result())
            raise LinkError(f"the engine process ended unexpectedly ({self._status()})")
        finally:
            message.cancel()
            ended.cancel()

    async def close(self, patience_s: float) -> None:
        process = self._process
        if process is not None:
            await asyncio.to_thread(process.join, patience_s)
            if process.is_alive():
                process.kill()
                await asyncio.to_thread(process.join)
            asyncio.get_running_loop().remove_reader(process.sentinel)
        self._socket.close(linger=0)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self) -> None:
        assert self._process is not None, "only a started process ends"
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._ended.set()

    def _status(self) -> str:
        assert self._process is not None
        self._process.join()
        code = self._process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit status {code}"


def spawn_engine(recipe: Recipe) -> AsyncEngine:
    """An engine that `start` spawns."""
    return AsyncEngine(ProcessLink(recipe))
