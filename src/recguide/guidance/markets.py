"""Which market a step goes by: the one of the last forward, made while that ran or a little before, unless
it was of other requests."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import NamedTuple

from recguide.guidance.arrays import Ints
from recguide.guidance.clock import Clock
from recguide.guidance.courses import Courses
from recguide.guidance.host import HostClock
from recguide.guidance.market import Market, MarketMaker
from recguide.guidance.menu import Menus
from recguide.guidance.view import View

OTHER = 0.25
"""Share by which first slots, and rows that nobody chooses, differ between steps of other requests."""
_ALIKE = 0.01
"""Plain steps whose T differs by no more than that read as much."""
_REMEMBERED = 256
SELDOM_OTHERS = 4
"""Requests up to which the same cells come together again and again."""
SERVES, SERVES_HURRIED = 4, 16
"""Steps of more requests that one market serves for, and where a device waits for the host: these change
little together. In simulation 1 to 16 are alike at 8 to 128 requests, and at 16 making one takes the host a
fifth of a step. At 2 to 4, 4 makes half a percent less than 1: that is for hosts in a hurry."""

_Times = tuple[float, ...]
_Few = tuple[tuple[int, ...], int, int, _Times]


class _Prepared(NamedTuple):
    market: Market
    tokens: int


@dataclass(slots=True)
class _OfMany:
    """A market of more than a few requests, what it goes by beside them, and how many steps it has served."""

    market: Market
    tokens: int
    menus: Menus
    times: _Times
    steps: int = 0


class Markets:
    """Args: maker: of markets; clock: the cost table's; host: its time; courses: what is made of their word.

    A few requests in the same cells, over about as many cached tokens, have the same market: theirs are kept
    until beliefs have changed, and so are seldom a step old. That of many, or of some whose host is hurried,
    serves for some steps.
    """

    def __init__(
        self,
        maker: MarketMaker,
        clock: Clock,
        host: HostClock | None = None,
        courses: Courses | None = None,
    ) -> None:
        self._maker, self._clock = maker, clock
        self._host = HostClock() if host is None else host
        self._courses = Courses() if courses is None else courses
        self._prepared: _Prepared | None = None
        self._known: dict[_Few, Market] = {}
        self._many: _OfMany | None = None
        self._menus: Menus | None = None

    def now(self, view: View, cell: Ints) -> Market:
        """For a step of these requests. What was prepared is for one step; without it another is made, or an
        older one still serves."""
        prepared, self._prepared = self._prepared, None
        if prepared is None or _are_others(view, prepared.tokens):
            return self._of(view, cell)
        if self._serves(len(view)) > 1:
            return prepared.market
        return self._known.get(self._few(view, cell), prepared.market)

    def prepare(self, view: View, cell: Ints) -> Market:
        """For the step after that of these requests."""
        self._prepared = _Prepared(self._of(view, cell), _first(view))
        return self._prepared.market

    def _of(self, view: View, cell: Ints) -> Market:
        if self._serves(len(view)) > 1:
            return self._of_many(view, cell)
        self._many = None
        if self._menus is not self._maker.menus or len(self._known) >= _REMEMBERED:
            self._menus = self._maker.menus
            self._known.clear()
        few = self._few(view, cell)
        if few not in self._known:
            self._known[few] = self._maker.made(view, cell)
        return self._known[few]

    def _serves(self, requests: int) -> int:
        """Steps that one market does."""
        hurried = requests > 1 and self._host.hurried
        if requests > SELDOM_OTHERS:
            return SERVES_HURRIED if hurried else SERVES
        return SERVES if hurried else 1

    def _of_many(self, view: View, cell: Ints) -> Market:
        menus, times, many = self._maker.menus, self._times(len(view)), self._many
        if (
            many is None
            or many.steps >= self._serves(len(view))
            or many.menus is not menus
            or many.times != times
            or _are_others(view, many.tokens)
        ):
            many = self._many = _OfMany(self._maker.made(view, cell), _first(view), menus, times)
        many.steps += 1
        return many.market

    def _few(self, view: View, cell: Ints) -> _Few:
        tokens = _first(view)
        ms = self._clock.of_view(view, tokens, view.pairs)
        return tuple(sorted(cell.tolist())), tokens, round(log(ms) / _ALIKE), self._times(len(view))

    def _times(self, requests: int) -> _Times:
        """What is known of forwards' and the host's time, and of what was made of markets' words."""
        host = self._host
        return self._clock.moved, self._courses.moved, host.runs_ahead, *host.of_kinds(requests)


def _are_others(view: View, tokens: int) -> bool:
    """Whether these requests are others by a good part than some of so many first slots."""
    return abs(_first(view) - tokens) > OTHER * tokens


def _first(view: View) -> int:
    return view.tokens + len(view)
