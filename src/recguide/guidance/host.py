"""The host's time: how long a device waits for it before a step, by what kind of step it is.

Plain steps run ahead of the host, and so do drafts and verifications that are planned before the outcome of
the forward before is known: hardly any of its time shows. All others wait for it, those with branches a
little longer. A cost table knows nothing of that. So it is timed while steps run, and what is found are
discrete costs of leaving plain decoding, of knowing more, and of branches: the same however much is drafted.
What else a step takes longer than its table says is not among them: that grows with what is drafted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from statistics import median

from recguide.guidance.courses import Course, bucket_of
from recguide.guidance.lately import WINDOW, Lately
from recguide.guidance.view import Plan, View, is_plain

LEAST = 4
"""Plain steps, and probes', before anything is said, but of all others WINDOW: the first ones meet caches
that are cold, and whoever is deterred by them tries no more for long."""
MOVED = 0.05
"""Share of a step by which what was learned must have moved before another number is said."""


REMEMBERED = 64.0
"""Steps of which it is remembered how many there were for each way back."""
STAYS = 4.0
"""Steps that are taken for one way back at first, as if so many had been seen of it."""


class Kind(IntEnum):
    """Of a step, as the host sees it."""

    PLAIN = 0
    DRAFTS = 1
    BRANCHES = 2
    AHEAD = 3
    """Drafts and verifications that were planned while the forward before ran."""
    PROBE = 4
    """Drafts that some try among plain steps, and their verification: the host has not done so for long."""


_PLANNED = Kind.PLAIN, Kind.DRAFTS, Kind.BRANCHES, Kind.AHEAD
"""Looked up once: enumerations answer slowly."""
_TRIED = Kind.DRAFTS, Kind.BRANCHES, Kind.AHEAD
"""Kinds that a policy may be deterred from; plain steps and probes come again in any case."""


def kind_of(view: View, plan: Plan) -> Kind:
    if len(plan.branches.request):
        return Kind.BRANCHES
    if is_plain(view, plan):
        return Kind.PLAIN
    if plan.course is Course.PLAIN and (view.drafted or plan.block.any()):
        return Kind.PROBE
    return Kind.AHEAD if view.blind else Kind.DRAFTS


@dataclass(frozen=True, slots=True)
class Host:
    """Milliseconds that a device waits before a step, as (per step, per request).

    Attributes:
        plain: of a plain step behind another one of the same requests.
        other: of any other without branches; `branches` of those with, `ahead` of those that were planned
            while the forward before ran; None for the same.
        probe: of drafts among plain steps; None for what others like them take.
        newcomer: what a step takes longer for each text that begins in it: its prefill, and who joins.
    """

    plain: tuple[float, float] = (0.0, 0.0)
    other: tuple[float, float] = (0.0, 0.0)
    branches: tuple[float, float] | None = None
    ahead: tuple[float, float] | None = None
    probe: tuple[float, float] | None = None
    newcomer: float = 0.0

    def ms(self, requests: int, kind: Kind) -> float:
        ahead = self.ahead or self.other
        kinds = self.plain, self.other, self.branches or self.other, ahead, self.probe or ahead
        step, each = kinds[kind]
        return step + each * requests


class HostClock:
    """What was learned of the host's time; 0 until then. Numbers of requests are told apart by powers of two.

    Args:
        in_ms: forwards' times are milliseconds of this machine. Those of an assumed table are in some unit,
            in which forwards take what the table says.

    Attributes:
        runs_ahead: whether steps with drafts may be planned while the forward before runs.
    """

    def __init__(self, *, in_ms: bool = True) -> None:
        self.runs_ahead = False
        self._since_late = WINDOW
        self._unit = 1.0 if in_ms else None
        self._ratios: deque[float] | None = None if in_ms else deque(maxlen=WINDOW)
        self._kinds: tuple[dict[int, Lately], ...] = tuple([{} for _ in Kind])
        self._stays: dict[int, _Stays] = {}
        self._found: dict[tuple[int, Kind], Lately | None] = {}
        """Where it was looked since windows said something else."""

    def add(
        self,
        requests: int,
        forward_ms: float,
        step_ms: float,
        waited_ms: float,
        kind: Kind,
        *,
        late: bool = False,
        steps: int = 1,
    ) -> None:
        """A step took `step_ms` from the landing before it to its own, its forward by the table so much, and
        for `waited_ms` the device had nothing to do; if the host was `late`, as long as its forward should
        have been over, too. It is the last of so many `steps` alike, of which the others are not told."""
        self._since_late = 0 if late else self._since_late + steps
        if late and self._unit is not None:
            waited_ms = max(waited_ms, step_ms - self._unit * forward_ms)
        elif self._ratios is not None:
            self._ratios.append((step_ms - waited_ms) / forward_ms)
            self._unit = median(self._ratios) if len(self._ratios) >= LEAST else None
        if self._unit is not None:
            windows, bucket = self._kinds[kind], bucket_of(requests)
            self._forget(bucket, kind, steps)
            window = windows.get(bucket)
            if window is None:
                window = windows[bucket] = Lately(_least(kind))
            if window.add(waited_ms / self._unit, MOVED * step_ms / self._unit):
                self._found.clear()

    def ms(self, requests: int, kind: Kind) -> float:
        """Of a step of so many requests, or of the nearest number that was met. Drafts without branches and
        with are as quick as each other until both were tried, and probes as others like them."""
        window = self._window(requests, kind)
        return 0.0 if window is None else window.value

    def of_kinds(self, requests: int) -> tuple[float, ...]:
        """The same of every kind that is planned by."""
        return tuple([self.ms(requests, kind) for kind in _PLANNED])

    def knows(self, requests: int, kind: Kind) -> bool:
        """Whether steps of that kind, or of one that stands for it, have said enough."""
        return self._window(requests, kind) is not None

    def _window(self, requests: int, kind: Kind) -> Lately | None:
        key = requests, kind
        if key not in self._found:
            others = {Kind.BRANCHES: Kind.DRAFTS, Kind.DRAFTS: Kind.BRANCHES, Kind.PROBE: self._bare}
            found = self._nearest(requests, kind)
            if found is None and kind in others:
                found = self._nearest(requests, others[kind])
            self._found[key] = found
        return self._found[key]

    def _nearest(self, requests: int, kind: Kind) -> Lately | None:
        """Of about as many requests; what was forgotten is not taken from others."""
        bucket = bucket_of(requests)
        mine = self._kinds[kind].get(bucket)
        if mine is not None and (mine.is_known or mine.was_forgotten):
            return mine if mine.is_known else None
        known = {other: window for other, window in self._kinds[kind].items() if window.is_known}
        return known[min(known, key=lambda other: abs(other - bucket))] if known else None

    def may_run_ahead(self, runs_ahead: bool) -> None:
        if runs_ahead != self.runs_ahead:
            self.runs_ahead = runs_ahead
            self._found.clear()

    @property
    def hurried(self) -> bool:
        """Whether a device has waited lately for what the host does while a forward runs, as far as steps are
        told."""
        return self._since_late < WINDOW

    def in_units(self, ms: float) -> float | None:
        """Milliseconds as the table counts; None if it is not known yet how that does."""
        return None if self._unit is None else ms / self._unit

    def stayed(self, requests: int, *, returns: bool) -> None:
        """A step waited to know more; or it was planned to run ahead again, and waited because the one before
        it did: it `returns`."""
        self._stays.setdefault(bucket_of(requests), _Stays()).add(returns=returns)

    def return_ms(self, requests: int) -> float:
        """What each step that waits to know more costs later: where others run ahead, the first one of them
        behind such steps waits as well."""
        stays = self._stays.get(bucket_of(requests))
        return self.way_back_ms(requests) * (1 / STAYS if stays is None else stays.returning)

    def way_back_ms(self, requests: int) -> float:
        """What that first one waits longer than those behind it."""
        longer = self.ms(requests, Kind.DRAFTS) - self.ms(requests, Kind.AHEAD)
        return max(0.0, longer) if self.runs_ahead else 0.0

    def bare_ms(self, requests: int) -> float:
        """Of a step with drafts for which no branch is ever opened."""
        return self.ms(requests, self._bare)

    @property
    def _bare(self) -> Kind:
        return Kind.AHEAD if self.runs_ahead else Kind.DRAFTS

    def probe_ms(self, requests: int) -> float:
        """What a step takes longer because some probe in it."""
        return max(0.0, self.ms(requests, Kind.PROBE) - self.ms(requests, Kind.PLAIN))

    def detour_ms(self, requests: int) -> float:
        """What a step takes longer because it is not plain steps alone."""
        return max(0.0, self.bare_ms(requests) - self.ms(requests, Kind.PLAIN))

    def fork_ms(self, requests: int) -> float:
        """What a step takes longer again because it has branches."""
        return max(0.0, self.ms(requests, Kind.BRANCHES) - self.ms(requests, Kind.DRAFTS))

    def _forget(self, bucket: int, met: Kind, steps: int) -> None:
        """So many steps of a kind passed."""
        for kind in _TRIED:
            window = self._kinds[kind].get(bucket)
            if window is not None and kind is not met and window.pass_over(steps):
                self._found.clear()


class _Stays:
    """How many steps wait to know more for each way back to such as do not.

    Attributes: returning: the ways back of such a step.
    """

    def __init__(self) -> None:
        self._steps, self._returns = STAYS, 1.0

    def add(self, *, returns: bool) -> None:
        if returns:
            self._returns += 1
        else:
            kept = 1 - 1 / REMEMBERED
            self._steps, self._returns = kept * self._steps + 1, kept * self._returns

    @property
    def returning(self) -> float:
        return min(1.0, self._returns / self._steps)


def _least(kind: Kind) -> int:
    return WINDOW if kind in _TRIED else LEAST
