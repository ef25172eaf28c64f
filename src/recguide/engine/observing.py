"""Tells whoever watches what each step was: facts that the host has anyway, so nothing waits for a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, time

from recguide.engine.commit import Advanced
from recguide.engine.flight import Flight
from recguide.engine.reports import RoundReport, StepReport
from recguide.engine.scheduler import Scheduler
from recguide.kv.pages import PagePool
from recguide.speculation.rows import Phase

Observer = Callable[[StepReport], None]

DRAFT = "draft"
"""What made a draft that no branch made."""


class Watch:
    """What a report compares a step with; idle without an observer.

    Args:
        scheduler, pool: the engine's.

    Attributes:
        observer: is told of every step, in the engine's thread, while the next forward runs.
    """

    def __init__(self, scheduler: Scheduler, pool: PagePool) -> None:
        self.observer: Observer | None = None
        self._scheduler = scheduler
        self._pool = pool
        self._since: float | None = None
        self._preemptions = 0

    def begin(self, observer: Observer | None) -> None:
        """From the next step on this observer is told."""
        self.observer, self._since = observer, None
        self._preemptions = self._scheduler.preemptions

    def restart(self) -> None:
        """Nothing was on its way: a step begins now."""
        if self.observer is not None:
            self._since = perf_counter()

    def tell(self, flight: Flight, done: Sequence[Advanced]) -> None:
        """Reports the step that ended; `done` is what became of its requests."""
        if self.observer is None:
            return
        since, self._since = self._since, perf_counter()
        step_ms = 0.0 if since is None else 1e3 * (self._since - since)
        preemptions, self._preemptions = self._preemptions, self._scheduler.preemptions
        prefill, draft, prefix_tokens = _totals(flight)
        self.observer(
            StepReport(
                at=time(),
                step_ms=step_ms,
                prefill=prefill,
                draft=draft,
                verify=len(flight.plan) - prefill - draft,
                query_tokens=flight.query_tokens,
                prefix_tokens=prefix_tokens,
                emitted=sum([advanced.kept for advanced in done]),
                running=len(self._scheduler.running),
                waiting=len(self._scheduler.waiting),
                pages_used=self._pool.pages - self._pool.free_pages,
                pages_cached=0,
                pages=self._pool.pages,
                preempted=self._preemptions - preemptions,
                price=0.0,
                rate=0.0,
                rounds=tuple([_round(advanced) for advanced in done if _verified(advanced)]),
            )
        )


def _totals(flight: Flight) -> tuple[int, int, int]:
    """Requests that prefill and that draft, and M, each prefix once."""
    prefill = draft = prefix_tokens = 0
    for scheduled in flight.plan:
        layout = scheduled.layout
        prefix_tokens += layout.rows[0].prefix
        if layout.phase is Phase.PREFILL:
            prefill += 1
        elif layout.phase is Phase.DRAFT:
            draft += 1
    return prefill, draft, prefix_tokens


def _verified(advanced: Advanced) -> bool:
    """Whether a verifier spoke; block diffusion has none."""
    return advanced.verdict.layout.phase is Phase.VERIFY and advanced.request.method.verifies


def _round(advanced: Advanced) -> RoundReport:
    request, verdict, layout = advanced.request, advanced.verdict, advanced.verdict.layout
    slots = len(layout.block)
    goes_on = request.finish_reason is None
    return RoundReport(
        request.arrival,
        slots,
        slots,
        verdict.acceptance,
        advanced.kept,
        None if slots == 1 else advanced.drafted_by or DRAFT,
        tuple([branch.kind for branch in layout.branches]),
        verdict.covered.kind if goes_on and verdict.covered is not None else None,
        verdict.reused.kind if goes_on and verdict.reused is not None else None,
        not goes_on,
    )
