"""Step reports of several engines as those of one: who watches one engine can watch them all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from recguide.engine.reports import StepReport

_EACH = 1_000_000
"""Request 7 of the third engine is called 2000007."""


class Fleet:
    """Adds up what engines hold at a time; what their steps did stays theirs."""

    def __init__(self) -> None:
        self._last: dict[str, StepReport] = {}
        self._numbers: dict[str, int] = {}

    def step(self, engine: str, report: StepReport) -> StepReport:
        """A step of one engine, with the requests, pages and rate of all; its price is weighted by load."""
        self._last[engine] = report
        number = self._numbers.setdefault(engine, len(self._numbers))
        states = self._last.values()
        running = sum(state.running for state in states)
        weighted = sum(state.price * state.running for state in states)
        return replace(
            report,
            running=running,
            waiting=sum(state.waiting for state in states),
            pages_used=sum(state.pages_used for state in states),
            pages_cached=sum(state.pages_cached for state in states),
            pages=sum(state.pages for state in states),
            price=weighted / running if running else 0.0,
            rate=sum(state.rate for state in states),
            rounds=tuple(one._replace(request=one.request + number * _EACH) for one in report.rounds),
        )

    def keep(self, engines: Iterable[str]) -> None:
        """Forgets all engines but these, which are gone."""
        known = set(engines)
        self._last = {engine: state for engine, state in self._last.items() if engine in known}
