"""The loop of an engine that others send orders to: take them between steps, step, report what came."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from recguide.core import Chunk, FinishReason, RecGuideError
from recguide.engine.engine import Engine
from recguide.engine.errors import EngineFault
from recguide.engine.reports import StepReport
from recguide.engine.request import Request
from recguide.engine.wire import (
    Abort,
    Brought,
    Failure,
    Fault,
    Notice,
    Order,
    Piece,
    Stop,
    Submit,
    failure_of,
)


class Mailbox(Protocol):
    """Where orders come from and notices go to."""

    def receive(self, *, wait: bool) -> list[Order]:
        """All orders that have come; with `wait` at least one, unless there will be none soon."""
        ...

    def send(self, notice: Notice) -> None: ...


class Worker:
    """Runs an engine for whoever writes to its mailbox.

    Args:
        engine: not shared with anyone.
        mailbox: brings orders and takes notices.
    """

    def __init__(self, engine: Engine, mailbox: Mailbox) -> None:
        self._engine = engine
        self._mailbox = mailbox
        self._groups: dict[int, list[Request]] = {}
        self._numbers: dict[Request, int] = {}
        self._pieces: list[Piece] = []
        self._reports: list[StepReport] = []
        self._stopped = False
        engine.observer = self._observe

    def run(self) -> None:
        """Until it is told to stop. If the engine fails, the mailbox is told before the error goes on."""
        try:
            while not self._stopped:
                for order in self._mailbox.receive(wait=not self._engine.busy):
                    self._obey(order)
                self._tell()
                if self._engine.busy:
                    self._step()
                    self._tell()
        except EngineFault as fault:
            self._mailbox.send(Fault(str(fault)))
            raise
        except Exception as error:
            self._mailbox.send(Fault(f"the engine failed: {type(error).__name__}: {error}"))
            raise

    def _obey(self, order: Order) -> None:
        match order:
            case Submit():
                self._submit(order)
            case Abort(number):
                self._drop(number)
            case Stop():
                self._stopped = True
                for number in list(self._groups):
                    self._drop(number)

    def _submit(self, order: Submit) -> None:
        try:
            epoch = time.time() - time.monotonic()
            deadline = None if order.deadline is None else order.deadline - epoch
            requests = self._engine.add(
                order.prompt, order.params, deadline=deadline, arrived=order.sent - epoch
            )
        except RecGuideError as error:
            self._pieces.append(Piece(order.number, failure=failure_of(error)))
            return
        self._groups[order.number] = requests
        self._numbers.update(dict.fromkeys(requests, order.number))
        self._pieces.append(Piece(order.number))

    def _step(self) -> None:
        emitted = self._engine.step()
        self._pieces += self._chunks(emitted)
        self._pieces += self._failures()

    def _tell(self) -> None:
        """One message for all that has come."""
        if self._pieces or self._reports:
            self._mailbox.send(Brought(tuple(self._pieces), tuple(self._reports)))
            self._pieces, self._reports = [], []

    def _observe(self, report: StepReport) -> None:
        self._reports.append(report)

    def _chunks(self, emitted: list[tuple[Request, Chunk]]) -> Iterator[Piece]:
        for request, chunk in emitted:
            request.inbox.clear()  # what it holds goes this way
            number = self._numbers.get(request)
            if number is None:
                continue
            yield Piece(number, chunk)
            if chunk.completion is not None:
                self._forget(request, number)

    def _failures(self) -> Iterator[Piece]:
        """Those that the engine gave up; with one choice goes its whole request."""
        failed = {
            number: request
            for request, number in self._numbers.items()
            if request.finish_reason is FinishReason.ABORT
        }
        for number, request in failed.items():
            error = request.error
            yield Piece(number, failure=_unknown() if error is None else failure_of(error))
            self._drop(number)

    def _drop(self, number: int) -> None:
        """Aborts what is left of a request; one that is gone already is left alone."""
        for request in self._groups.pop(number, ()):
            self._numbers.pop(request, None)
            self._engine.abort(request)

    def _forget(self, request: Request, number: int) -> None:
        del self._numbers[request]
        group = self._groups[number]
        group.remove(request)
        if not group:
            del self._groups[number]


def _unknown() -> Failure:
    return Failure("RecGuideError", "the request was aborted")
