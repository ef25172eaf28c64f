"""Who runs next: admission by KV need, one token budget for all phases, preemption by recompute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from recguide.engine.request import Request
from recguide.kv.pages import OutOfPages, PagePool
from recguide.speculation.rows import Layout

Planner = Callable[[Request, int, int], Layout]
"""(request, its index in the batch, prefill tokens at most) → its rows."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    request: Request
    layout: Layout


class Scheduler:
    """Keeps the waiting and the running requests.

    Args:
        pool: the KV pages that all requests share.
        max_running: requests that decode together at most.
        max_batch_tokens: query tokens of a forward at most (a single request may exceed it).

    Attributes:
        preemptions: how often a request has lost its KV.
    """

    def __init__(self, pool: PagePool, *, max_running: int, max_batch_tokens: int) -> None:
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0
        self._pool = pool
        self._max_running = max_running
        self._max_batch_tokens = max_batch_tokens

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Takes a finished or aborted request out and frees its pages."""
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.table.release()

    def schedule(self, planner: Planner) -> list[Scheduled]:
        """The requests of the next forward, the oldest first: it always advances, so all end."""
        self._admit()
        plan: list[Scheduled] = []
        preempted: set[Request] = set()
        budget = self._max_batch_tokens
        for request in sorted(self.running, key=attrgetter("arrival")):
            if request in preempted:  # for an earlier one in this loop
                continue
            if plan and budget <= 0:
                break
            layout = planner(request, len(plan), max(1, budget))
            if plan and layout.query_tokens > budget:
                continue
            if self._reserve(request, layout, plan, preempted):
                plan.append(Scheduled(request, layout))
                budget -= layout.query_tokens
        return plan

    def is_all(self, plan: Sequence[Scheduled]) -> bool:
        """Whether the plan has every running request, and no other can join them."""
        full = len(self.running) >= self._max_running
        return len(plan) == len(self.running) and (full or not self.waiting)

    def reserve(self, plan: Sequence[Scheduled]) -> bool:
        """Makes room for a plan without taking it from anyone; false if there is too little."""
        try:
            for scheduled in plan:
                scheduled.request.table.extend(_needed(scheduled.request, scheduled.layout))
        except OutOfPages:
            return False
        return True

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._max_running:
            request = self.waiting[0]
            try:
                # One block more than prefill needs: or its first verification would already lack pages, and
                # the request would be computed only to be preempted.
                request.table.extend(_reserved(request, request.prefill_end + request.block))
            except OutOfPages:
                if self.running:
                    return
                raise
            self.running.append(self.waiting.popleft())

    def _reserve(
        self, request: Request, layout: Layout, plan: list[Scheduled], preempted: set[Request]
    ) -> bool:
        """Makes room for the rows and the block after them; false if the request has to wait."""
        length = _needed(request, layout)
        while True:
            try:
                request.table.extend(length)
            except OutOfPages:
                planned = {scheduled.request for scheduled in plan}
                victims = [other for other in self.running if other not in planned]
                victim = max(victims, key=lambda other: other.arrival)
                if victim is request and len(self.running) == 1:
                    raise
                self._preempt(victim)
                preempted.add(victim)
                if victim is request:
                    return False
            else:
                return True

    def _preempt(self, request: Request) -> None:
        """Drops its KV; output, sampling seed and statistics stay, and the KV is computed again later."""
        self.preemptions += 1
        self.running.remove(request)
        request.table.release()
        request.cached = 0
        request.draft = None
        self.waiting.appendleft(request)


def _needed(request: Request, layout: Layout) -> int:
    """Tokens to hold pages for when a layout runs."""
    first = layout.rows[0]
    return _reserved(request, first.prefix + (len(first.tokens) if first.causal else 0))


def _reserved(request: Request, length: int) -> int:
    """Tokens to hold pages for: two blocks beyond `length`, but none past what the request can ever cache."""
    return min(length + 2 * request.block, kv_tokens(request))


def kv_tokens(request: Request) -> int:
    """The most tokens that the request can have in the cache.

    A verified block never reaches past the cap; block diffusion keeps its last block whole.
    """
    beyond = 0 if request.method.verifies else request.block
    return len(request.prompt) + request.params.max_tokens + beyond
