"""An engine in a thread of this process, with the same loop and messages as one in its own process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from recguide.engine.client import AsyncEngine, LinkError
from recguide.engine.engine import Engine
from recguide.engine.wire import Facts, Notice, Order, Ready, decode_notice, decode_order, encode
from recguide.engine.worker import Worker


class ThreadLink:
    """Encodes and decodes as between processes, so that nothing passes here that would not pass there.

    Args:
        engine: stepped by this link's thread alone.
    """

    def __init__(self, engine: Engine, facts: Facts) -> None:
        self._engine = engine
        self._facts = facts
        self._orders: SimpleQueue[bytes] = SimpleQueue()
        self._notices: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="recguide-engine", daemon=True)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def send(self, order: Order) -> None:
        self._orders.put(encode(order))

    async def receive(self) -> Notice:
        data = await self._notices.get()
        if data is None:
            raise LinkError("the engine ended unexpectedly")
        return decode_notice(data)

    async def close(self, patience_s: float) -> None:
        await asyncio.to_thread(self._thread.join, patience_s or None)

    def _run(self) -> None:
        mailbox = _ThreadMailbox(self._orders, self._hand_over)
        mailbox.send(Ready(self._facts))
        try:
            Worker(self._engine, mailbox).run()
        finally:
            self._hand_over(None)

    def _hand_over(self, data: bytes | None) -> None:
        assert self._loop is not None, "the thread runs after `start`"
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._notices.put_nowait, data)


class _ThreadMailbox:
    def __init__(self, orders: SimpleQueue[bytes], hand_over: Callable[[bytes], None]) -> None:
        self._orders = orders
        self._hand_over = hand_over

    def receive(self, *, wait: bool) -> list[Order]:
        orders = [decode_order(self._orders.get())] if wait else []
        while True:
            try:
                orders.append(decode_order(self._orders.get_nowait()))
            except Empty:
                return orders

    def send(self, notice: Notice) -> None:
        self._hand_over(encode(notice))


class LocalEngine(AsyncEngine):
    """For tests, and for programs that have an engine at hand."""

    def __init__(self, engine: Engine, facts: Facts) -> None:
        super().__init__(ThreadLink(engine, facts))
