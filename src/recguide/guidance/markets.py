"""Which market a step goes by: the one made while the last forward ran, unless that was of other requests."""

from __future__ import annotations

from math import log
from typing import NamedTuple

from recguide.guidance.arrays import Ints
from recguide.guidance.clock import Clock
from recguide.guidance.courses import Course, Courses
from recguide.guidance.host import HostClock, Kind
from recguide.guidance.market import Market, MarketMaker
from recguide.guidance.menu import Menus
from recguide.guidance.view import View, total

OTHER = 0.25
"""Share by which first slots, and rows that nobody chooses, differ between steps of other requests."""
_ALIKE = 0.01
"""Plain steps whose T differs by no more than that read as much."""
_REMEMBERED = 256
SELDOM_OTHERS = 4
"""Requests up to which the same cells come together again and again."""

_KINDS, _COURSES = tuple(Kind), (Course.AHEAD, Course.FREE)
"""Looked up once: enumerations answer slowly."""

_Few = tuple[tuple[int, ...], int, int, tuple[float, ...]]


class _Prepared(NamedTuple):
    market: Market
    tokens: int


class Markets:
    """Args: maker: of markets; clock: the cost table's; host: its time; courses: what is made of their word.

    A few requests in the same cells, over about as many cached tokens, have the same market: theirs are kept
    until beliefs have changed, and so are seldom a step old.
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
        self._menus: Menus | None = None

    def now(self, view: View, cell: Ints) -> Market:
        """For a step of these requests. What was prepared is for one step; without it a market is made."""
        prepared, self._prepared = self._prepared, None
        if prepared is None or abs(_first(view) - prepared.tokens) > OTHER * prepared.tokens:
            return self._of(view, cell)
        if len(view) > SELDOM_OTHERS:
            return prepared.market
        return self._known.get(self._few(view, cell), prepared.market)

    def prepare(self, view: View, cell: Ints) -> Market:
        """For the step after that of these requests."""
        self._prepared = _Prepared(self._of(view, cell), _first(view))
        return self._prepared.market

    def _of(self, view: View, cell: Ints) -> Market:
        if len(view) > SELDOM_OTHERS:
            return self._maker.made(view, cell)
        if self._menus is not self._maker.menus or len(self._known) >= _REMEMBERED:
            self._menus = self._maker.menus
            self._known.clear()
        few = self._few(view, cell)
        if few not in self._known:
            self._known[few] = self._maker.made(view, cell)
        return self._known[few]

    def _few(self, view: View, cell: Ints) -> _Few:
        clock, requests, tokens = self._clock, len(view), _first(view)
        read, pairs = view.prefix_tokens + total(view.prefix), clock.pair_ms * view.pairs
        ms, host_ms, share = (
            clock.at(tokens) + clock.prefix_ms * read + pairs,
            self._host.ms,
            self._courses.share,
        )
        waits = (
            *[host_ms(requests, kind) for kind in _KINDS],
            *[share(requests, course) for course in _COURSES],
        )
        return tuple(sorted(cell.tolist())), tokens, round(log(ms) / _ALIKE), waits


def _first(view: View) -> int:
    return view.tokens + len(view)
