"""The rounds of recent requests, a few of them at any load: whom the dashboard shows one by one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from recguide.engine.reports import RoundReport, StepReport

FOLLOWED = 24
"""Requests that are followed at the same time."""
ROUNDS = 400
"""Rounds that are kept of each, the newest."""

GONE_S = 10.0
"""A request without a round for so long was aborted, or waits; its place is free."""

RoundRow = tuple[float, str | None, int, int, int, str | None, bool]
"""(seconds since the epoch, drafted by, verified slots, A, tokens returned, covered or reused, finished)."""


@dataclass(slots=True)
class _Line:
    rounds: deque[RoundRow] = field(default_factory=lambda: deque[RoundRow](maxlen=ROUNDS))
    fresh: list[RoundRow] = field(default_factory=list[RoundRow])

    def over(self, at: float) -> bool:
        """Whether its place may be taken."""
        seen, *_, finished = self.rounds[-1]
        return finished or at - seen > GONE_S


class Timelines:
    """Follows requests from their first round on; a new one takes the place of the oldest that is over."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}

    def add(self, report: StepReport) -> None:
        full = False
        for one in report.rounds:
            line = self._lines.get(one.request)
            if line is None and not full:
                line = self._begun(one.request, report.at)
                full = line is None
            if line is not None:
                row = _row(report.at, one)
                line.rounds.append(row)
                line.fresh.append(row)

    def _begun(self, request: int, at: float) -> _Line | None:
        """Room for a request that nobody followed yet; none while all that are followed go on."""
        if len(self._lines) >= FOLLOWED:
            over = next((request for request, line in self._lines.items() if line.over(at)), None)
            if over is None:
                return None
            del self._lines[over]
        line = self._lines[request] = _Line()
        return line

    def fresh(self) -> dict[str, list[RoundRow]]:
        """Rounds since the last call, by request."""
        found = {str(request): line.fresh for request, line in self._lines.items() if line.fresh}
        for line in self._lines.values():
            line.fresh = []
        return found

    def all(self) -> dict[str, list[RoundRow]]:
        """All rounds kept, by request."""
        return {str(request): list(line.rounds) for request, line in self._lines.items()}


def _row(at: float, one: RoundReport) -> RoundRow:
    fate = "reused" if one.reused is not None else "covered" if one.covered is not None else None
    return (round(at, 3), one.drafted_by, one.verified, one.acceptance, one.emitted, fate, one.finished)
