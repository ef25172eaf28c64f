"""Who runs next: admission by KV need, decoding before prefill in every forward, preemption by recompute."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from operator import attrgetter
from time import monotonic
from typing import Protocol

from recguide.core import light
from recguide.engine.request import Request
from recguide.kv.pages import OutOfPages, PagePool
from recguide.kv.prefix_tree import PrefixTree
from recguide.speculation.rows import Layout, Phase


class Planner(Protocol):
    """Says what requests do in the next forward."""

    def begin(self, decoding: Sequence[Request], prefill: Sequence[tuple[Request, int]], room: int) -> None:
        """A forward is laid out.

        Args:
            decoding: those that decode in it, as far as there is room.
            prefill: those that prefill beside them, and the tokens of each if decoding takes few.
            room: tokens that decoding may take.
        """
        ...

    def __call__(self, request: Request, index: int, chunk: int) -> Layout | None:
        """A request's rows, given its index in the batch and prefill tokens at most.

        None if it is decoding and sits this forward out.
        """
        ...


PREFILL_SHARE = 4
"""Prefill gets at least this part (one in so many) of a forward's tokens, however many requests decode."""

OVERTAKERS = 16
"""Requests that may be admitted before an older one that has no room yet; then all wait for it."""

HEADROOM = (256, 2048)
"""Tokens beyond its prefill that a request has room for when it comes back after its first preemption, after
its second, and so on; after that it has room for all it may ever need, and is not preempted again."""

SCORED_TOKENS = 256
"""Tokens of prompts that a forward is asked about at most: each takes logits of the whole vocabulary."""

_arrival = attrgetter("arrival")
_PREFILLS = Phase.PREFILL
"""Looked up once: an enumeration answers slowly."""


@light
class Scheduled:
    request: Request
    layout: Layout


class Scheduler:
    """Keeps the waiting and the running requests, both the oldest first.

    Args:
        pool: the KV pages that all requests share.
        max_running: requests that decode together at most.
        max_batch_tokens: query tokens of a forward at most (a single request may exceed it).
        tree: where whole pages of committed tokens are shared; None shares nothing.

    Attributes:
        max_batch_tokens: as given.
        preemptions: how often a request has lost its KV to an older one.
        queued_s: how long each waited that was admitted since this list was last taken.
    """

    def __init__(
        self, pool: PagePool, *, max_running: int, max_batch_tokens: int, tree: PrefixTree | None = None
    ) -> None:
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preemptions = 0
        self.queued_s: list[float] = []
        self._pool = pool
        self._tree = tree
        self._max_running = max_running
        self.max_batch_tokens = max_batch_tokens
        self._turns: list[Request] = []
        """Who decodes first in the next forward: those that the last one had no room for, then its own."""
        self._prefill_first = False
        """A single decoding request took the last forward whole, so prefill has the next one."""
        self._blocked: Request | None = None
        """The oldest request that found no room, and how many have been admitted before it since."""
        self._overtakers = 0
        self._tried = (0, 0)
        """Pages there were, and requests that were asked, when it last found no room."""

    @property
    def free_places(self) -> int:
        """Requests that can be admitted as far as their number goes."""
        return self._max_running - len(self.running)

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def remove(self, request: Request, *, suspect: bool = False) -> None:
        """Takes a finished or aborted request out and frees its pages.

        What it has cached may be used again, unless it is suspect: its logits were NaN, and so its KV may be.
        """
        (self.running if request in self.running else self.waiting).remove(request)
        if not suspect:
            request.table.release(request.committed)
            return
        if self._tree is not None:
            self._tree.forget(request.committed)
        request.table.release()

    def clear(self) -> list[Request]:
        """Takes everyone out, without a trace of what they cached; returns them."""
        everyone = [*self.running, *self.waiting]
        self.running, self.waiting, self._turns = [], [], []
        for request in everyone:
            request.table.release()
        return everyone

    def share(self, request: Request) -> None:
        """Lets others use the pages of a request's prompt, as far as it is cached: after a preemption it may
        be again in several chunks. What it reads itself from now on should follow one another."""
        request.table.share(request.prompt[: request.cached])
        request.table.unite()

    def schedule(self, planner: Planner) -> list[Scheduled]:
        """The requests of the next forward: those that decode, then those that prefill.

        It always advances, so all end: the oldest keep their pages, and nobody waits for tokens for ever.
        """
        self._grow()
        self._admit()
        plan: list[Scheduled] = []
        prefilling = [request for request in self.running if request.cached < request.prefill_end]
        decoding = self.running
        if prefilling:
            decoding = [request for request in self.running if request.cached >= request.prefill_end]
        rest = self.max_batch_tokens
        if prefilling and self._prefill_first:
            decoding = []
        needs = [(request, request.prefill_end - request.cached) for request in prefilling]
        room = rest - prefill_share(needs, rest)
        planner.begin(decoding, list(chunks(needs, max(rest - room, rest - len(decoding)))), room)
        rest -= self._decode(decoding, room, plan, planner)
        self._prefill_first = bool(prefilling) and rest <= 0
        scored = 0
        for request, tokens in chunks(needs, rest):
            if request.is_scoring:
                tokens = min(tokens, SCORED_TOKENS - scored)
                if tokens < 1:
                    continue
                scored += tokens
            layout = planner(request, len(plan), tokens)
            assert layout is not None, "only who decodes may sit out"
            plan.append(Scheduled(request, layout))
        return plan

    def is_joined(self, running: int) -> bool:
        """Whether others run beside so many, newcomers whom there is room for among them."""
        self._admit()
        return len(self.running) > running

    def prefills_behind(self, plan: Sequence[Scheduled]) -> list[tuple[Request, int]] | None:
        """Who prefills behind a forward that runs, newcomers whom there is room for among them, and what each
        will have cached by then.

        None if anyone else runs who is not in that forward, or if the next one is the prefills' alone, or if
        some ask about their prompts: what comes next is for `schedule` to say then.
        """
        self._admit()
        behind = {
            one.request: one.request.cached + len(one.layout.rows[0].tokens)
            if one.layout.phase is _PREFILLS
            else one.request.prefill_end
            for one in plan
        }
        prefilling: list[tuple[Request, int]] = []
        for request in self.running:
            cached = behind.get(request, request.cached)
            if cached < request.prefill_end:
                if request.is_scoring or self._prefill_first:
                    return None
                prefilling.append((request, cached))
            elif request not in behind:
                return None
        return prefilling

    def reserve(self, plan: Sequence[Scheduled]) -> list[int] | None:
        """Makes room for a plan without taking it from anyone; None if there is too little.

        Returns the places in the plan of those that have new pages.
        """
        short = [at for at, scheduled in enumerate(plan) if not _has_room(scheduled.request)]
        try:
            for at in short:
                plan[at].request.table.extend(_room(plan[at].request))
        except OutOfPages:
            return None
        return short

    # --- tokens ---------------------------------------------------------------------------------------------

    def _decode(self, decoding: list[Request], room: int, plan: list[Scheduled], planner: Planner) -> int:
        """Adds what fits of the decoding requests into so many tokens; returns the tokens taken."""
        taken = 0
        passed_over: list[Request] = []
        start = len(plan)
        for request in self._in_turn(decoding):
            if plan and taken >= room:
                passed_over.append(request)
                continue
            layout = planner(request, len(plan), 0)
            if layout is None:
                continue
            tokens = layout.query_tokens
            if plan and taken + tokens > room:
                passed_over.append(request)
                continue
            plan.append(Scheduled(request, layout))
            taken += tokens
        going = [scheduled.request for scheduled in plan[start:]]
        self._turns = [*passed_over, *going] if passed_over else []
        return taken

    def _in_turn(self, decoding: list[Request]) -> list[Request]:
        """The oldest first, or, where not all fit into a forward, those that have waited longest."""
        if not self._turns:
            return decoding
        here, in_turn = set(decoding), set(self._turns)
        return [
            *(request for request in self._turns if request in here),
            *(request for request in decoding if request not in in_turn),
        ]

    # --- pages ----------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Pages for everyone's next round, the oldest first; the youngest give theirs up where pages lack."""
        for request in [request for request in self.running if not _has_room(request)]:
            length = _room(request)
            while length > request.table.capacity and request in self.running:
                try:
                    request.table.extend(length)
                except OutOfPages:
                    self._preempt(self._victim())
            request.table.unite()

    def _victim(self) -> Request:
        """The youngest that does not hold all it may ever need: who lacks pages is one of them."""
        return next(r for r in reversed(self.running) if r.stats.preemptions <= len(HEADROOM))

    def _preempt(self, request: Request) -> None:
        """Drops its KV; output, sampling seed and statistics stay, and the KV is computed again later."""
        self.running.remove(request)
        request.table.release(request.committed)
        request.rewind()
        request.stats.preemptions += 1
        self.preemptions += 1
        insort(self.waiting, request, key=_arrival)

    def _admit(self) -> None:
        """Admits in order of arrival whom there is room for; a few may pass one who has to wait."""
        if not self.waiting:
            self._blocked = None
            return
        if self._is_stuck():
            return
        prefilling = {id(request.prompt) for request in self.running if request.cached < request.prefill_end}
        blocked: Request | None = None
        at = 0
        while at < len(self.waiting) and len(self.running) < self._max_running:
            request = self.waiting[at]
            if self._waits_for_twin(request, prefilling):
                at += 1
            elif self._enter(request):
                del self.waiting[at]
                insort(self.running, request, key=_arrival)
                prefilling.add(id(request.prompt))
                self._overtakers += blocked is not None
            else:
                at += 1
                if blocked is None:
                    blocked = request
                    if blocked is not self._blocked:
                        self._overtakers = 0
            if blocked is not None and (self._overtakers >= OVERTAKERS or at >= OVERTAKERS):
                break
        self._blocked = blocked
        self._tried = (self._pool.available_pages, min(len(self.waiting), OVERTAKERS))

    def _is_stuck(self) -> bool:
        """Whether those who found no room in vain would ask again: no page has come free, and nobody came."""
        if self._blocked is None or self.waiting[:1] != [self._blocked]:
            return False
        pages, asked = self._tried
        return self._pool.available_pages <= pages and min(len(self.waiting), OVERTAKERS) == asked

    def _enter(self, request: Request) -> bool:
        """Gives a request what is known of its text and pages for the rest, or nothing if they lack."""
        known = request.known(0, request.prefill_end)
        # At least one token has to run where the prompt's end picks the first token, or is asked about.
        reusable = known[: request.reusable]
        cached = request.table.adopt(reusable)
        try:
            request.table.extend(_entry_room(request))
        except OutOfPages:
            request.table.release()
            if not self.running:
                raise
            return False
        request.cached = cached
        if request.stats.preemptions == 0:
            request.stats.prefix_hit_tokens = cached
            self.queued_s.append(max(0.0, monotonic() - request.arrived))
        return True

    def _waits_for_twin(self, request: Request, prefilling: set[int]) -> bool:
        """Whether the same prompt is being prefilled for another of n choices: worth the wait."""
        return (
            self._tree is not None
            and request.choice > 0
            and request.reusable >= self._pool.page_size
            and id(request.prompt) in prefilling
        )


Need = tuple[Request, int]
"""A request that prefills, and the tokens that it lacks."""


def prefill_share(needs: Sequence[Need], tokens: int) -> int:
    """Of so many tokens of a forward, those that decoding leaves to prefill."""
    wanted = sum([need for _, need in needs])
    return min(wanted, max(1, tokens // PREFILL_SHARE)) if wanted else 0


def chunks(needs: Sequence[Need], tokens: int) -> Iterator[tuple[Request, int]]:
    """Who prefills how many of so many tokens; `needs` are the oldest's first.

    Half of them are the oldest's, so that it always advances; the rest goes to those that need the least, so
    that nobody waits for a long prompt; what is left is the oldest's again.
    """
    if not needs or tokens <= 0:
        return
    need = dict(needs)
    oldest, *others = need
    rest = tokens - min(need[oldest], -(-tokens // 2))
    given: list[tuple[Request, int]] = []
    for request in sorted(others, key=need.__getitem__):
        if rest <= 0:
            break
        given.append((request, min(need[request], rest)))
        rest -= given[-1][1]
    yield oldest, min(need[oldest], tokens - sum([count for _, count in given]))
    yield from given


def _room(request: Request) -> int:
    """Tokens to hold pages for: two blocks beyond what is to be cached, but none past what can ever be."""
    return min(request.prefill_end + _reach(request), kv_tokens(request))


def _reach(request: Request) -> int:
    """Tokens of two blocks, or of the draft in hand: a branch may have made a longer one than was planned
    since."""
    twice, draft = 2 * request.block, request.draft
    return twice if draft is None else max(twice, len(draft.tokens))


def _has_room(request: Request) -> bool:
    """Whether a running request holds pages for its next round: nearly always, so it is asked first.

    One that prefills has held them since it was admitted.
    """
    return request.cached + _reach(request) <= request.table.capacity


def _entry_room(request: Request) -> int:
    """The same when a request is admitted: with more to spare the more often it was preempted."""
    times = request.stats.preemptions
    if times == 0:
        return _room(request)
    if times > len(HEADROOM):
        return kv_tokens(request)
    return min(request.prefill_end + max(2 * request.block, HEADROOM[times - 1]), kv_tokens(request))


def kv_tokens(request: Request) -> int:
    """The most tokens that the request can have in the cache.

    A verified block never reaches past the cap; block diffusion keeps its last block whole.
    """
    beyond = 0 if request.method.verifies else request.block
    return len(request.prompt) + request.params.max_tokens + beyond
