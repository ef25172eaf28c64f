"""What a step was, for who watches the engine: metrics, dashboard, traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DRAFT = "draft"
"""What made a draft that no branch made."""


class RoundReport(NamedTuple):
    """A verified block, or an AR step; one a request and step, so it is a tuple, which is cheap.

    Attributes:
        request: its order of arrival.
        drafted, verified: slots of the draft, and of the causal row; 1, 1 for an AR step.
        acceptance: A before any cut.
        emitted: tokens returned, after all cuts.
        drafted_by: DRAFT, or the kind of the branch that made the draft; None for an AR step.
        branches: the kinds of the branches that ran beside it.
        covered, reused: the kind of the branch in the outcome's place, and of the one whose draft is used;
            None where nothing follows that could use it.
        finished: whether the request ended with it.
    """

    request: int
    drafted: int
    verified: int
    acceptance: int
    emitted: int
    drafted_by: str | None
    branches: tuple[str, ...]
    covered: str | None
    reused: str | None
    finished: bool


@dataclass(frozen=True, slots=True)
class StepReport:
    """One forward and what followed from it.

    Attributes:
        at: seconds since the epoch.
        step_ms: from the end of the step before it, or from its launch after an idle engine, to its own end.
        prefill, draft, verify: requests in each phase.
        query_tokens, prefix_tokens: N and M.
        emitted: tokens returned.
        running, waiting: requests afterwards.
        pages_used, pages_cached, pages: KV pages held by requests, kept for their prefix alone, and in all.
        preempted: requests that lost their KV in this step.
        price, rate: μ and ρ of the plan, 0 without a policy that prices.
        queued_s: how long each request waited that was admitted since the last report; one that comes back
            after a preemption has been.
        rounds: what was verified.
    """

    at: float
    step_ms: float
    prefill: int
    draft: int
    verify: int
    query_tokens: int
    prefix_tokens: int
    emitted: int
    running: int
    waiting: int
    pages_used: int
    pages_cached: int
    pages: int
    preempted: int
    price: float
    rate: float
    queued_s: tuple[float, ...]
    rounds: tuple[RoundReport, ...]
