"""Tells whoever watches what each step was: facts that the host has anyway, so nothing waits for a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, time

from recguide.engine.commit import Advanced
from recguide.engine.flight import Flight
from recguide.engine.planning import Planned
from recguide.engine.reports import DRAFT, RoundReport, StepReport
from recguide.engine.scheduler import Scheduler
from recguide.kv.pages import PagePool
from recguide.speculation.rows import Phase

Observer = Callable[[StepReport], None]

_PREFILLS, _DRAFTS, _VERIFIES = Phase.PREFILL, Phase.DRAFT, Phase.VERIFY
"""Looked up once: an enumeration answers slowly, and this is asked for every request in every step."""


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

    def tell(self, flight: Flight, done: Sequence[Advanced], planned: Planned) -> None:
        """Reports the step that ended: `planned` so, and `done` is what became of its requests."""
        queued_s, self._scheduler.queued_s = self._scheduler.queued_s, []
        if self.observer is None:
            return
        since, self._since = self._since, perf_counter()
        step_ms = 0.0 if since is None else 1e3 * (self._since - since)
        preemptions, self._preemptions = self._preemptions, self._scheduler.preemptions
        prefill, draft = _totals(flight)
        self.observer(
            StepReport(
                at=time(),
                step_ms=step_ms,
                prefill=prefill,
                draft=draft,
                verify=len(flight.plan) - prefill - draft,
                query_tokens=flight.query_tokens,
                prefix_tokens=flight.prefix_tokens,
                emitted=sum([advanced.kept for advanced in done]),
                running=len(self._scheduler.running),
                waiting=len(self._scheduler.waiting),
                pages_used=self._pool.used_pages,
                pages_cached=self._pool.cached_pages,
                pages=self._pool.pages,
                preempted=self._preemptions - preemptions,
                price=planned.price,
                rate=planned.rate,
                queued_s=tuple(queued_s),
                rounds=_rounds(done),
            )
        )


def _totals(flight: Flight) -> tuple[int, int]:
    """Requests that prefill and that draft."""
    prefill = draft = 0
    for scheduled in flight.plan:
        layout = scheduled.layout
        if layout.phase is _PREFILLS:
            prefill += 1
        elif layout.phase is _DRAFTS:
            draft += 1
    return prefill, draft


def _rounds(done: Sequence[Advanced]) -> tuple[RoundReport, ...]:
    """What verifiers said; block diffusion has none. One loop without calls: it runs in every step."""
    rounds: list[RoundReport] = []
    for advanced in done:
        request, verdict = advanced.request, advanced.verdict
        layout = verdict.layout
        if layout.phase is not _VERIFIES or not request.method.verifies:
            continue
        slots, branches = len(layout.block), layout.branches
        finished = request.finish_reason is not None
        covered, reused = (None, None) if finished else (verdict.covered, verdict.reused)
        rounds.append(
            RoundReport(
                request.arrival,
                slots if layout.draft is None else len(layout.draft.tokens),
                slots,
                verdict.acceptance,
                advanced.kept,
                None if layout.draft is None else advanced.drafted_by or DRAFT,
                tuple([branch.kind for branch in branches]) if branches else (),
                None if covered is None else covered.kind,
                None if reused is None else reused.kind,
                finished,
            )
        )
    return tuple(rounds)
