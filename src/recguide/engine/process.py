"""The engine's own process: it loads the model, steps the engine and talks through one socket.

The interpreter lock of the process that serves is never the engine's, and a crash of either is seen by the
other: this process ends with its parent, and its parent sees this one end.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import parent_process
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import zmq

from recguide.core import RecGuideError
from recguide.engine.wire import Fault, Loading, Logged, Notice, Order, Ready, decode_order, encode

if TYPE_CHECKING:
    from recguide.engine.engine import Engine

FAILED, REFUSED = 1, 2
"""Exit statuses: it failed or lost its parent; or it never started, asked for what cannot be honoured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What an engine is made of, by name: nothing here needs torch to be said.

    Attributes:
        source: a folder, a Hugging Face id, or smollm2-135m.
        loading: keyword arguments of `models.loading.load`.
        engine: those of `EngineConfig`.
        assembly: module and function that make the engine of the loaded model and its configuration.
        acceptance: what stands beside figures of drafts that are not the model's own; "" where they are.
    """

    source: str
    loading: Mapping[str, Any] = field(default_factory=dict[str, Any])
    engine: Mapping[str, Any] = field(default_factory=dict[str, Any])
    assembly: str = "recguide.engine.assembly:assemble"
    acceptance: str = ""


class SocketMailbox:
    """A worker's end of the socket."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)  # neither side may ever wait for the other
        self._socket.connect(address)

    def receive(self, *, wait: bool) -> list[Order]:
        orders = [decode_order(self._socket.recv())] if wait else []
        with suppress(zmq.Again):
            while True:
                orders.append(decode_order(self._socket.recv(zmq.NOBLOCK)))
        return orders

    def send(self, notice: Notice) -> None:
        self._socket.send(encode(notice))

    def close(self) -> None:
        """Returns when the last notice is on its way."""
        self._socket.close(linger=1000)
        self._context.term()


class LogToMailbox(logging.Handler):
    """Sends what is logged to the parent, whose log it belongs in."""

    def __init__(self, mailbox: SocketMailbox) -> None:
        super().__init__()
        self._mailbox = mailbox

    def emit(self, record: logging.LogRecord) -> None:
        self._mailbox.send(Logged(record.name, record.levelno, self.format(record)))


def main(recipe: Recipe, address: str) -> None:
    """What the spawned process runs. It ends when told, with its parent, or on a fault."""
    _mind_the_parent()
    mailbox = SocketMailbox(address)
    logger = logging.getLogger("recguide")
    logger.addHandler(LogToMailbox(mailbox))
    logger.setLevel(logging.INFO)
    try:
        status = _run(recipe, mailbox)
    finally:
        mailbox.close()
    sys.exit(status)


def _run(recipe: Recipe, mailbox: SocketMailbox) -> int:
    from recguide.engine.collecting import keep_all
    from recguide.engine.worker import Worker  # only here, past what may be said without torch

    try:
        engine, ready = build(recipe, mailbox)
    except RecGuideError as error:
        mailbox.send(Fault(str(error), refusal=True))
        return REFUSED
    except Exception as error:
        mailbox.send(Fault(f"the engine did not start: {type(error).__name__}: {error}"))
        raise
    keep_all()
    mailbox.send(ready)
    try:
        Worker(engine, mailbox).run()
    finally:
        engine.close()
    return 0


def build(recipe: Recipe, mailbox: SocketMailbox) -> tuple[Engine, Ready]:
    """Loads the model and makes its engine, saying how far it is."""
    from recguide.engine.config import EngineConfig
    from recguide.engine.facts import facts_of
    from recguide.models.loading import load

    config = EngineConfig(**recipe.engine)  # before the model, which takes long
    model = load(
        recipe.source,
        **recipe.loading,
        progress=lambda what, done, total: mailbox.send(Loading(what, done, total)),
    )
    model.arrange()
    mailbox.send(Loading("making room for keys and values", 0, 0))
    engine: Engine = resolve_name(recipe.assembly)(model, config)
    if engine.grammars is not None:
        engine.grammars.warm()
    return engine, Ready(facts_of(model, engine, recipe.acceptance))


def _mind_the_parent() -> None:
    """Leaves signals to the parent, which drains first, and ends with it however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent = parent_process()
    if parent is None:
        return

    def follow() -> None:
        parent.join()
        os._exit(FAILED)  # whatever the engine is doing, nobody waits for it

    threading.Thread(target=follow, name="parent", daemon=True).start()
