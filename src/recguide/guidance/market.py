"""What one more query token costs, and what things are worth at that price, in every cell.

A market depends on which requests there are, not on what they hold, and a step changes little about that. So
it is made while a forward runs, of the requests of that forward, and is the exact solution for them: nothing
is iterated on its own output. The next step's plans then only look things up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import log2
from typing import NamedTuple

import numpy as np

from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.beliefs import Beliefs
from recguide.guidance.clock import Clock
from recguide.guidance.courses import Course, Courses
from recguide.guidance.host import HostClock, Kind
from recguide.guidance.hull import Hulls
from recguide.guidance.menu import Menus
from recguide.guidance.merged import Merged, steps_of_few
from recguide.guidance.options import ROOM, Options
from recguide.guidance.outlook import Choice
from recguide.guidance.quote import FEW, Quote
from recguide.guidance.sweep import Base, Cut, Swept, best_of_few
from recguide.guidance.view import Branches, Plan, View, total

LASTING = 0.9
"""How far a request's stretch, easy or hard, outlasts the round that is planned: 1 for ever, 0 not at all.
In simulation 0.75 to 1 are alike, but 0.75 makes 1 % less for 14B at 32 requests, and 1 makes 1 to 2 % less
at 4; 0 makes 1 to 6 % less."""
LEVEL = 4
"""Requests up to which courses are compared by what is said of the moment; of more, by so many of theirs."""
_PER_OCTAVE = 4
"""Numbers of requests that are told apart there, between one and twice as many."""
FULL = 1e6
"""Query tokens that keep any device's arithmetic busy."""
NEVER, TINY = 2.0, 1e-12
"""A probability of reuse that no branch has, and one that is not told apart from 0."""


@dataclass(frozen=True, eq=False)
class Market:
    """What it says of cells is worked out when it is asked: of all, as arrays, or of one (`quote`).

    Attributes:
        price, rate: μ, ρ.
        floor: what a query token costs where it is cheapest in a step; what brings less is not looked at.
        ratio: what a query token costs more for each token of its prefix, relative to one without any.
        menus, options: what is chosen among.
        token: [cells] what a token emitted now counts.
        course: in a plain one no draft is worth more than none; with menus of fewer choices no branch is.
        even: the block that everyone drafts in an even one, else 0.
    """

    price: float
    rate: float
    floor: float
    ratio: float
    menus: Menus
    options: Options
    token: Floats
    course: Course = Course.FREE
    even: int = 0
    _quotes: dict[int, Quote] = field(default_factory=dict[int, "Quote"], init=False, repr=False)

    @property
    def plain(self) -> bool:
        return self.course is Course.PLAIN

    def weight(self, prefix: Floats) -> Floats:
        """What a query token over a prefix costs, relative to one without."""
        return 1 + self.ratio * prefix

    def plan(self, block: Ints, verified: Ints, branches: Branches | None = None) -> Plan:
        """Of a step that goes by it."""
        opens = Branches.none() if branches is None else branches
        return Plan(block, verified, opens, self.price, self.rate, self.course, self.even)

    # --- of all cells ---------------------------------------------------------------------------------------

    @cached_property
    def worth(self) -> Floats:
        """[cells, blocks] of a draft in hand, against none."""
        if self.plain:
            return np.zeros((len(self.token), len(self.options.blocks)))
        return self.menus.worth(self.price, self.token)

    @cached_property
    def least(self) -> Floats:
        """[cells] probability of reuse below which no branch pays."""
        if not self._branches:
            return np.full(len(self.token), NEVER)
        best = (self.worth / self.options.blocks).max(1)
        return np.maximum(self.floor / np.maximum(best, TINY), TINY)

    @property
    def head(self) -> Floats:
        """[cells] probability that a continuation beside an AR step is right; 0 if none pays."""
        return self.menus.head

    @cached_property
    def begin(self) -> Hulls:
        """[cells] the hulls of what begins without a draft in hand, if no cap is near."""
        return self.options.hulls(self.token, self.head, self.worth, np.full(len(self.token), ROOM))

    @cached_property
    def enough(self) -> Floats:
        """[cells] tokens that a request must still be able to emit for `begin` to hold: a draft is worth no
        more than them."""
        return np.maximum(ROOM, self.worth.max(1) / self.token)

    @cached_property
    def block(self) -> Ints:
        """[cells] slots of the draft that is worth most beyond its price; 0 if none is worth a plain step."""
        net = self.worth - self.price * self.options.blocks
        best = net.argmax(1)
        pays = net.max(1) > self.token - self.price
        return np.where(pays, self.options.blocks.take(best), 0)

    def ready(self, *, many: bool) -> Market:
        """The same, with what takes long worked out, as far as `many` or a few will ask for it. Who plans
        ahead works out everyone's own, or is in a hurry."""
        _ = self.worth
        if many and self.course is Course.FREE:
            _ = self.begin, self.enough, self.least
        elif many and self.course is Course.AHEAD:
            _ = self.block
        return self

    # --- of one ---------------------------------------------------------------------------------------------

    def quote(self, cell: int) -> Quote:
        found = self._quotes.get(cell)
        if found is None:
            found = self._quotes[cell] = self._quoted(cell)
        return found

    def _quoted(self, cell: int) -> Quote:
        worth = self.worth[cell].tolist()
        best = max([each / block for each, block in zip(worth, self.options.sizes, strict=True)])
        least = max(self.floor / max(best, TINY), TINY) if self._branches else NEVER
        token, head = float(self.token[cell]), float(self.head[cell])
        return Quote(token, worth, head, least, self.price, self.options)

    @property
    def _branches(self) -> bool:
        return not self.plain and self.menus.choice is Choice.ALL


class _Offer(NamedTuple):
    """The best plan of a course.

    Attributes:
        menus: what it is chosen among.
        cut: N, Y and T.
        waits: the host's time in T.
        block: that everyone drafts; 0 where they differ.
    """

    course: Course
    menus: Menus
    cut: Cut
    waits: float
    block: int = 0

    @property
    def rate(self) -> float:
        return self.cut.gain / self.cut.ms


class MarketMaker:
    """Args: beliefs: what drafts are worth, as of the moment; clock: the cost table's; host: its time;
    courses: what was made of what was said."""

    def __init__(
        self,
        beliefs: Beliefs,
        clock: Clock,
        host: HostClock | None = None,
        courses: Courses | None = None,
    ) -> None:
        self._beliefs, self._clock = beliefs, clock
        self._host = HostClock() if host is None else host
        self._courses = Courses() if courses is None else courses
        self._merged: dict[Choice, Merged] = {}
        self._said: dict[tuple[int, Course, int], tuple[float, int, tuple[float, ...]]] = {}
        """Of each course, for about as many requests, what was said of it lately, times plain steps; how
        often anything was, and by what times."""

    @property
    def _ratio(self) -> float:
        """Where arithmetic is full, a query token costs μ_N + μ_X·prefix."""
        full = self._clock.slope_ms(FULL)
        return self._clock.pair_ms / full if full > 0 else 0.0

    @property
    def menus(self) -> Menus:
        """Those that markets are made of by now."""
        return self._beliefs.menus

    def made(self, view: View, cell: Ints) -> Market:
        """The cut with the most Y(N)/T(N, M, X), over the merged hulls of all requests' menus.

        T has the host's time. That of steps without branches, and more so if they are planned ahead, and of
        plain steps, is another one, so the best of each course is compared with the best of all: each by what
        steps of its kind have made of such a word.
        """
        host, requests = self._host, len(view)
        free_ms, bare_ms = self._waits(requests), host.bare_ms(requests)
        offers = [_Offer(Course.FREE, self.menus, self._best(view, cell, self.menus, free_ms), free_ms)]
        if free_ms > bare_ms:
            fewer = self._beliefs.menus_of(Choice.NOTHING if host.runs_ahead else Choice.BARE)
            offers.append(_Offer(_course(fewer), fewer, self._best(view, cell, fewer, bare_ms), bare_ms))
            if host.runs_ahead:
                offers += self._even(view, cell, bare_ms)
        plain, plain_share = self._plain_rate(view), self._courses.share(requests, Course.PLAIN)
        makes = [self._makes(view, offer, plain) for offer in offers]
        made = max(makes)
        best = offers[makes.index(made)]
        share = self._courses.share(requests, best.course, best.block)
        # Else the cut makes no less: first slots alone are one of those that it was chosen among.
        may_lose = best.block or best.waits > host.ms(requests, Kind.PLAIN) or share < max(1.0, plain_share)
        if may_lose and plain_share >= made:
            return self._plain(view, plain)
        clock, cut, menus, rate = self._clock, best.cut, best.menus, best.rate
        price = _price(cut, rate * clock.slope_ms(cut.tokens))
        floor = min(price, rate * clock.slope_ms(float(view.tokens + len(view)))) / 2
        token, options = token_of(menus, cell, price), self._beliefs.options
        market = Market(price, rate, floor, self._ratio, menus, options, token, best.course, best.block)
        return market.ready(many=len(view) > FEW)

    def _makes(self, view: View, offer: _Offer, plain: float) -> float:
        """Times what plain steps make by the moment's word: what was said of it lately, by what steps of that
        course made of such a word.

        Of many requests what is said changes from step to step by chance alone, and whoever follows that goes
        where luck was. What was said by other times is forgotten, and beside a prefill it is another one.
        """
        requests, found = len(view), offer.rate / plain
        if not view.tokens:
            key = round(_PER_OCTAVE * log2(requests)), offer.course, offer.block
            by = self._clock.moved, *self._host.of_kinds(requests)
            said, times, before = self._said.get(key, (0.0, 0, by))
            times = times + 1 if before == by else 1
            found = said + (found - said) * max(min(1.0, LEVEL / requests), 1 / times)
            self._said[key] = found, times, by
        return self._courses.share(requests, offer.course, offer.block) * found

    def _even(self, view: View, cell: Ints, waits: float) -> list[_Offer]:
        """Each block for all. Then N is no mean over steps: half of the requests draft, the others verify. So
        T is exact, and steps may fill a graph's bucket time after time, where others go beyond it now and
        then. What blocks make of stretches that they themselves have changed only running them tells, so
        each is a course of its own."""
        menus, blocks = self._beliefs.menus_of(Choice.NOTHING), np.array(self._beliefs.options.sizes)
        read = float(total(view.prefix))
        tokens = view.tokens + len(view) * blocks
        ms = self._clock.ms(tokens, view.prefix_tokens + read, view.pairs + blocks * read) + waits
        gain = menus.whole.take(cell, 1).sum(1) / 2
        facts = (tokens.tolist(), gain.tolist(), ms.tolist(), blocks.tolist())
        return [
            _Offer(Course.EVEN, menus, Cut(float(n), y, t, float("inf"), 0.0), waits, block)
            for n, y, t, block in zip(*facts, strict=True)
            if n <= view.most
        ]

    def _waits(self, requests: int) -> float:
        """The host's mean time of steps some of which have branches, whose margins are waited for."""
        host, branching = self._host, _branching(requests)
        # Behind verifications alone, none of whose branches is reused, drafts are planned ahead all the same.
        begins = host.bare_ms(requests) if requests == 1 else host.ms(requests, Kind.DRAFTS)
        forks = host.ms(requests, Kind.DRAFTS) + host.fork_ms(requests)
        return (1 - branching) * begins + branching * forks + host.return_ms(requests)

    def _best(self, view: View, cell: Ints, menus: Menus, waits: float) -> Cut:
        clock, read = self._clock, float(view.prefix_tokens + total(view.prefix))

        def mean(n: Floats, x: Floats) -> Floats:
            return clock.mean_ms(n, read, x) + waits

        def mean_at(n: float, x: float) -> float:
            return clock.mean_at(n, read, x) + waits

        if len(view) <= FEW:
            steps = steps_of_few(menus, cell.tolist(), view.prefix.tolist(), self._ratio)
            return best_of_few(base_of(view), steps, mean, mean_at)
        return self._plans(view, cell, menus).best(mean)

    def _plain_rate(self, view: View) -> float:
        base = base_of(view)
        ms = self._clock.of_view(view, int(base.tokens), base.pairs)
        return base.gain / (ms + self._host.ms(len(view), Kind.PLAIN))

    def _plain(self, view: View, rate: float) -> Market:
        price = rate * self._clock.slope_ms(float(view.tokens + len(view)))
        token, plain = np.ones(self.menus.n.shape[1]), Course.PLAIN
        market = Market(price, rate, price / 2, self._ratio, self.menus, self._beliefs.options, token, plain)
        return market.ready(many=len(view) > FEW)

    def _plans(self, view: View, cell: Ints, menus: Menus) -> Swept:
        """The hulls of all requests' menus, merged."""
        merged = self._merged.get(menus.choice)
        if merged is None or merged.menus is not menus:
            merged = self._merged[menus.choice] = Merged(menus)
        prefix = view.prefix.astype(np.float64)
        return merged.sweep(base_of(view), cell, prefix, 1 + self._ratio * prefix)


def token_of(menus: Menus, cell: Ints, price: float) -> Floats:
    """[cells] what an emitted token counts; its mean over the tokens of these requests is about 1.

    A request has to get through its hard stretches too, and is seated for as long as they take: with all
    seats taken, more tokens a second means less time per token, which is a rent per forward, the same for
    all, and the price of its query tokens. So tokens count what they cost, as far as a stretch lasts.
    That is eq. 3's common ρ.
    """
    if len(cell) <= FEW:
        rent, scale = _rent_of_few(menus, cell, price)
        return (scale * menus.cost(price, rent).min(0)) ** LASTING
    requests = np.bincount(cell, minlength=menus.n.shape[1])
    rent = float(menus.net(price) @ requests) / len(cell)
    costs, cells = menus.cost(price, rent), np.arange(len(requests))
    best = costs.argmin(0)
    cost, made = costs[best, cells], menus.y[best, cells] * requests
    return (cost * (made.sum() / (cost @ made))) ** LASTING


def _rent_of_few(menus: Menus, cell: Ints, price: float) -> tuple[float, float]:
    """That rent, and what a token that costs 1 would count if stretches lasted for ever, by the hulls of
    these cells alone."""
    hulls = [menus.vertices(each) for each in cell.tolist()]
    rent = sum([max([y - price * n for n, y in hull]) for hull in hulls]) / len(hulls)
    best = [min([((rent + price * n) / y, y) for n, y in hull]) for hull in hulls]
    return rent, sum([y for _, y in best]) / sum([cost * y for cost, y in best])


def _course(menus: Menus) -> Course:
    return Course.AHEAD if menus.choice is Choice.NOTHING else Course.FREE


def _branching(requests: int) -> float:
    """Share of steps that some branch is in, where two of a request's three forwards are verifications."""
    return 1 - 3.0**-requests


def base_of(view: View) -> Base:
    """Every request's first slot, which always emits a token or begins a draft."""
    read = float(view.pairs + total(view.prefix))
    return Base(float(view.tokens + len(view)), read, float(len(view)))


def _price(cut: Cut, smooth: float) -> float:
    """μ: where T is smooth it is ρ·T_N; at a kink it lies between its neighbours' Δy/Δn."""
    return min(max(smooth, cut.following), cut.last)
