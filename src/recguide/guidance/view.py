"""The vocabulary of policies: what one sees of the requests of a step, what it plans, what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from enum import IntEnum

import numpy as np

from recguide.core import CANDIDATES, light
from recguide.guidance.arrays import Bools, Floats, Ints
from recguide.guidance.courses import Course
from recguide.guidance.history import History

_MANY = 24
"""Numbers from which on arrays add up quicker."""


class Head(IntEnum):
    """What a branch's slot 0 is; from 1 on, the rank of the candidate that a correction tries."""

    CONTINUATION = 0


@light
class View:
    """The requests that decode in this step, R of them.

    Attributes:
        draft: [R] slots of the draft in hand, 0 without one.
        margins: [R, W] M_i of the draft in hand; slot 0 and what lies beyond the draft are not read.
        signals: [R, 3] as in history.SIGNALS.
        previous, full, idle: [R] as in History.
        prefix: [R] cached tokens.
        remaining: [R] tokens that may still be emitted, at least 1.
        candidates: how many candidates each drafted slot comes with.
        tokens, prefix_tokens, pairs: N, M and X of rows that nobody chooses here, such as prefill.
        most: query tokens of a forward at most.
        runs_ahead: where a step has no branches, what follows it may be planned while it runs.
        blind: the forward before this step still runs. Of requests whose drafts it makes there are no margins
            yet. Of those whose drafts it verifies there are, but the signals lack a round, and `prefix` and
            `remaining` are as if half of the block passed.
        verifying: [R] slots of those blocks, 0 of others, and of those beside which branches run that are
            taken not to be reused: they count as failed.
    """

    draft: Ints
    margins: Floats
    signals: Floats
    previous: Ints
    full: Bools
    idle: Ints
    prefix: Ints
    remaining: Ints
    candidates: int = CANDIDATES
    tokens: int = 0
    prefix_tokens: int = 0
    pairs: int = 0
    most: int = 1 << 30
    runs_ahead: bool = False
    blind: bool = False
    verifying: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.draft)

    @property
    def drafted(self) -> bool:
        """Whether there is any draft in hand."""
        return bool(np.count_nonzero(self.draft))  # a fifth of what `any` takes

    @classmethod
    def of(
        cls,
        histories: Sequence[History],
        margins: Sequence[Sequence[float]],
        prefix: Sequence[int],
        remaining: Sequence[int],
    ) -> View:
        """Of requests on the host; `margins` of a request without a draft in hand are ()."""
        width = max([1, *(len(row) for row in margins)])
        padded = [(*row, *(0.0,) * (width - len(row))) for row in margins]
        return cls(
            draft=np.array([len(row) for row in margins], np.int64),
            margins=np.array(padded, np.float64).reshape(len(margins), width),
            signals=np.array([history.signals for history in histories], np.float64).reshape(-1, 3),
            previous=np.array([history.previous for history in histories], np.int64),
            full=np.array([history.full for history in histories], np.bool_),
            idle=np.array([history.idle for history in histories], np.int64),
            prefix=np.array(prefix, np.int64),
            remaining=np.array(remaining, np.int64),
        )

    def only(self, chosen: Ints) -> View:
        """Some of the requests."""
        rows = {
            name: getattr(self, name)[chosen]
            for name in ("draft", "margins", "signals", "previous", "full", "idle", "prefix", "remaining")
        }
        if self.blind:
            rows["verifying"] = self.verifying[chosen]
        return replace(self, **rows)


@light
class Branches:
    """[K] each, sorted by request: a prospective next draft beside a verification.

    Attributes:
        request: which of the view's requests.
        slot: of the verified block; a continuation's is the block's length.
        head: Head.CONTINUATION, or the rank of the candidate that a correction tries, from 1 on.
        block: slots.
    """

    request: Ints
    slot: Ints
    head: Ints
    block: Ints

    @classmethod
    def none(cls) -> Branches:
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, empty, empty)

    def only(self, chosen: Bools) -> Branches:
        """Some of the branches, [K] bool."""
        return Branches(self.request[chosen], self.slot[chosen], self.head[chosen], self.block[chosen])

    def of(self, chosen: Ints, requests: int) -> Branches:
        """Those of some of the view's requests, numbered anew."""
        number = np.full(requests, -1, np.int64)
        number[chosen] = np.arange(len(chosen))
        mine = number[self.request] >= 0
        return Branches(number[self.request[mine]], self.slot[mine], self.head[mine], self.block[mine])


@light
class Plan:
    """What each request does in this step.

    Attributes:
        block: [R] slots of the draft that starts, 0 for none.
        verified: [R] slots of the causal row: 1 is an AR step, 0 goes with a draft.
        branches: beside the causal rows.
        price: μ, tokens that one more query token costs; `rate`: ρ, tokens per millisecond; both 0 where
            a policy has no use for them.
        course: what was chosen among; `even`: the block that everyone drafts in an even one, else 0.
    """

    block: Ints
    verified: Ints
    branches: Branches
    price: float = 0.0
    rate: float = 0.0
    course: Course = Course.FREE
    even: int = 0

    @property
    def query_tokens(self) -> Ints:
        """[R]"""
        own = self.block + self.verified
        return own + np.bincount(self.branches.request, self.branches.block, len(own)).astype(np.int64)

    @property
    def all_tokens(self) -> int:
        """Of all requests."""
        return total(self.block) + total(self.verified) + total(self.branches.block)

    def only(self, chosen: Ints) -> Plan:
        branches = self.branches.of(chosen, len(self.block))
        return replace(self, block=self.block[chosen], verified=self.verified[chosen], branches=branches)


@light
class Outcome:
    """What came of a plan, [R] each.

    Attributes:
        acceptance: A before any cut; 0 where nothing was verified.
        rank: of the verifier's token among the candidates at the first mismatch, from 1 on; 0 if it is not
            among those known, or there was none.
        head: 1 if a continuation ran, the block passed, and its slot 0 was right; 0 if it was wrong; −1
            if there is nothing to say.
    """

    acceptance: Ints
    rank: Ints
    head: Ints


def total(counts: Ints) -> int:
    """Their sum; of a few it is found in plain numbers, in a fifth of the time."""
    return int(counts.sum()) if len(counts) > _MANY else sum(counts.tolist())


LIKELY = 3
"""Branches in a step up to which none of them may be reused: that of more hardly ever comes true."""


def behind(view: View, plan: Plan) -> View:
    """What is known of the step behind that of a plan before its outcome, if none of its branches is reused.

    Then a block beside which some ran is likely to have failed.
    """
    steps = (plan.verified > 0) & (view.draft == 0)
    moved = (plan.verified + 1) // 2
    forked = np.bincount(plan.branches.request, minlength=len(view)) > 0
    return replace(
        view,
        draft=plan.block,
        previous=np.where(steps, 1, np.where(forked, plan.verified, view.previous)),
        full=view.full & ~steps & ~forked,
        idle=view.idle + steps,
        prefix=view.prefix + moved,
        remaining=np.maximum(1, view.remaining - moved),
        blind=True,
        verifying=np.where(steps | forked, 0, plan.verified),
    )


def is_plain(view: View, plan: Plan) -> bool:
    """Whether a step is plain steps alone."""
    return not view.tokens and stays_plain(view, plan)


def stays_plain(view: View, plan: Plan) -> bool:
    """Whether whoever is planned for takes a plain step: those run ahead of the host, and newcomers' prompts
    beside them do too."""
    return not (len(plan.branches.request) or view.drafted or np.count_nonzero(plan.block))
