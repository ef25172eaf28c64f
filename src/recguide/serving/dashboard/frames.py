"""What the engine did in half a second: the numbers that the dashboard draws."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from recguide.engine.reports import DRAFT, StepReport
from recguide.serving.tallies import RoundTally


@dataclass(slots=True)
class Window:
    """Adds steps up until a frame is made of them.

    What is a state (load, KV, price) is the last step's and stays when no step follows; what flows starts
    anew with every frame.
    """

    running: int = 0
    waiting: int = 0
    kv_used: float = 0.0
    kv_cached: float = 0.0
    price: float = 0.0
    rate: float = 0.0
    steps: int = 0
    busy_ms: float = 0.0
    query_tokens: int = 0
    emitted: int = 0
    preempted: int = 0
    forwards: int = 0
    decoded: int = 0
    acceptance: Counter[int] = field(default_factory=Counter[int])
    blocks: Counter[int] = field(default_factory=Counter[int])
    branches: Counter[str] = field(default_factory=Counter[str])
    drafts: Counter[str] = field(default_factory=Counter[str])

    def add(self, report: StepReport) -> None:
        self.running, self.waiting = report.running, report.waiting
        self.kv_used = report.pages_used / report.pages
        self.kv_cached = report.pages_cached / report.pages
        self.price, self.rate = report.price, report.rate
        self.steps += 1
        self.busy_ms += report.step_ms
        self.query_tokens += report.query_tokens
        self.emitted += report.emitted
        self.preempted += report.preempted
        self.forwards += report.draft + report.verify
        if report.rounds:
            self._add_rounds(RoundTally.of(report.rounds))

    def _add_rounds(self, tally: RoundTally) -> None:
        self.decoded += tally.emitted
        self.blocks.update(tally.blocks)
        self.acceptance.update(tally.acceptance)
        self.drafts.update(tally.drafts)
        for (_, outcome), count in tally.branches.items():
            self.branches[outcome] += count

    @property
    def unfinished(self) -> bool:
        """Whether requests run and no step has ended: a slow device may take longer for one than a frame."""
        return self.running > 0 and self.steps == 0

    def frame(self, at: float, seconds: float) -> dict[str, object]:
        """What `seconds` up to `at` (since the epoch) were, and begins anew.

        Rates are per second; a mean of nothing is None.
        """
        rounds = self.acceptance.total()
        made: dict[str, object] = {
            "at": round(at, 3),
            "tokens": _per(self.emitted, seconds),
            "running": self.running,
            "waiting": self.waiting,
            "acceptance": _mean(sum(a * n for a, n in self.acceptance.items()), rounds),
            "tpf": _mean(self.decoded, self.forwards),
            "reuse": _mean(rounds - self.drafts[DRAFT], rounds),
            "branches": {name: _per(n, seconds) for name, n in self.branches.items()},
            "blocks": {str(block): _per(n, seconds) for block, n in sorted(self.blocks.items())},
            "price": self.price if self.running else None,
            "rate": self.rate if self.running else None,
            "step_ms": _mean(self.busy_ms, self.steps),
            "query_tokens": _mean(self.query_tokens, self.steps),
            "kv_used": round(self.kv_used, 4),
            "kv_cached": round(self.kv_cached, 4),
            "preempted": self.preempted,
        }
        self._clear()
        return made

    def _clear(self) -> None:
        self.steps = self.query_tokens = self.emitted = self.preempted = self.forwards = self.decoded = 0
        self.busy_ms = 0.0
        for tally in (self.acceptance, self.blocks, self.branches, self.drafts):
            tally.clear()


def _per(count: float, seconds: float) -> float:
    return round(count / seconds, 2)


def _mean(total: float, count: int) -> float | None:
    return round(total / count, 3) if count else None
