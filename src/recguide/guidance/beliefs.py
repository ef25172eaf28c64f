"""What is believed of drafts: a value table, corrected by what traffic has said since."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import exp
from operator import itemgetter

import numpy as np

from recguide.core import MAX_BLOCK
from recguide.guidance.arrays import Bools, Floats, Ints
from recguide.guidance.history import signal_named
from recguide.guidance.learner import Learner
from recguide.guidance.margins import MarginBins
from recguide.guidance.menu import Menus
from recguide.guidance.options import Options
from recguide.guidance.outlook import Choice, Outlooks, chance, log_odds
from recguide.guidance.quote import FEW
from recguide.guidance.value import ValueTable, strata
from recguide.guidance.view import Outcome, Plan, View

_LEAST = 1e-6
"""No probability of being right is nearer to 0 or 1."""
STALE, SETTLED, WRONG = 0.2, 32, 0.5
"""Log odds by which what was learned may have moved before menus are made anew, and how many rounds of all
requests lie between; unless it has moved by WRONG."""


@dataclass(frozen=True, slots=True)
class InHand:
    """What the drafts in hand say of themselves, [D, W] each: D of the view's requests, slots 0..W−1.

    Attributes:
        rows: [D] which requests.
        failing: probability that the slot is wrong, given that those before it are right; 0 at slot 0.
        alive: that it is emitted if it is verified; 1 at slot 0, 0 beyond the draft or the cap.
        place: bin of its margin.
    """

    rows: Ints
    failing: Floats
    alive: Floats
    place: Ints


class Beliefs:
    """Args: table: value and branch probabilities, from calibration or `value.prior`.

    Attributes:
        menus: of every cell, as of the last `refresh`.
        options: what a request without a draft may begin with.
    """

    def __init__(self, table: ValueTable) -> None:
        self.table = table
        self._outlooks = Outlooks(table)
        self._odds = {block: log_odds(table.curves(block)) for block in table.blocks}
        likely = _likely(self._odds, table.cells)
        self._likely = likely.reshape(-1, likely.shape[2])
        self._ratio = np.exp(table.evidence.log_ratio)
        # The same as lists, for one request at a time.
        right = list(zip(*table.evidence.candidates, strict=True))
        self._lists = likely.tolist(), self._ratio.tolist(), right
        self._bins = MarginBins(table.evidence.edges)
        self._candidates = np.array(table.evidence.candidates).T.copy()  # [bins, ranks]
        self.options = Options.of(table.blocks)
        self._learner = Learner(table.blocks)
        self._sizes, self._blocks = table.blocks, np.array(table.blocks)
        # NaN sorts behind infinity: into the bin of an unknown s.
        self._edges = np.append(np.array(table.edges, np.float64), np.inf)
        self._signal = signal_named(table.signal)
        self._stratum = _strata(len(self._edges) + 1)
        self._cell_lists: tuple[list[float], list[int]] = self._edges.tolist(), self._stratum.ravel().tolist()
        self._made_at = self._shifts()
        self._age, self._stale = 0, False
        self.menus = self._fresh_menus()
        self._fewer: dict[Choice, Menus] = {}

    def menus_of(self, choice: Choice) -> Menus:
        """Those with less to choose, of the same time."""
        if choice not in self._fewer:
            self._fewer[choice] = Menus.of(self.menus.block, self.menus.head, choice)
        return self._fewer[choice]

    def cell(self, view: View) -> Ints:
        """[R] as ValueTable.cell, by look-up."""
        return self.cells(self.bins(view.signals), view.previous, view.full)

    def bins(self, signals: Floats) -> Ints:
        """[R] of the signal that cells are told apart by, of [R, 3]."""
        return self._edges.searchsorted(signals[:, self._signal], side="right")

    def cells(self, bins: Ints, previous: Ints, full: Bools | bool) -> Ints:
        """[R] of requests in these bins."""
        return self._stratum.take(2 * previous + full) + bins

    def cell_of(self, signals: Sequence[float], previous: int, full: bool) -> int:
        """Of one request."""
        edges, stratum = self._cell_lists
        return stratum[2 * previous + full] + bisect_right(edges, signals[self._signal])

    def in_hand(self, view: View, cell: Ints) -> InHand:
        rows = view.draft.nonzero()[0]
        draft = view.draft.take(rows)
        width = int(draft.max(initial=1))
        place = self._bins.of(view.margins.take(rows, axis=0)[:, :width])
        odds = self._odds_of_failing(draft, cell.take(rows), place)
        passing = odds + 1
        np.reciprocal(passing, out=passing)
        odds *= passing  # which is the probability of failing now
        last = np.minimum(draft, view.remaining.take(rows))
        passing *= np.arange(width) < last[:, None]
        return InHand(rows, odds, np.multiply.accumulate(passing, axis=1), place)

    def passing(self, verifying: Ints, cell: Ints, margins: Floats) -> Floats:
        """[R] probability that blocks of so many slots pass, drafted in these cells with these margins."""
        width = int(verifying.max())
        place = self._bins.of(margins[:, :width])
        odds = self._odds_of_failing(verifying, cell, place)
        odds *= np.arange(width) < verifying[:, None]
        odds += 1
        np.reciprocal(odds, out=odds)  # a product of odds may be too large
        return np.multiply.reduce(odds, axis=1)

    def _odds_of_failing(self, draft: Ints, cell: Ints, place: Ints) -> Floats:
        """[D, W] of drafts of so many slots, with margins in these bins [D, W]."""
        at = np.minimum(self._blocks.searchsorted(draft), len(self._blocks) - 1)
        # `take` is quicker than an index.
        odds = self._likely.take(at * self.table.cells + cell, axis=0)[:, : place.shape[1]]
        odds *= np.array(self._given_odds()).take(at)[:, None]
        odds *= self._ratio.take(place)
        return odds

    def slots(
        self, draft: int, cell: int, margins: Sequence[float]
    ) -> list[tuple[float, float, tuple[float, ...]]]:
        """(failing, alive, right) for every slot of one draft: as `in_hand`, and `candidates`.

        Args:
            draft: slots.
            margins: of the slots to look at, its first.
        """
        at = self._at(draft)
        given, edges = exp(self._learner.given.of(self._sizes[at])), self.table.evidence.edges
        likely = self._lists[0][at][cell]
        ratio, right = self._lists[1:]
        found, alive = [(0.0, 1.0, right[0])], 1.0
        for slot in range(1, len(margins)):
            place = bisect_right(edges, margins[slot])
            odds = likely[slot] * given * ratio[place]
            passing = 1 / (1 + odds)
            alive *= passing
            found.append((odds * passing, alive, right[place]))
        return found

    @property
    def continuation(self) -> float:
        """Probability that a continuation's slot 0 is right, given that the block passed."""
        right = min(max(self.table.evidence.continuation, _LEAST), 1 - _LEAST)
        odds = (1 - right) / right * exp(self._learner.continuation.value)
        return 1 / (1 + odds)

    def candidates(self, ranks: int, place: Ints) -> Floats:
        """[.., ranks] probability that a wrong slot's candidate of each rank is the verifier's token; 0 if
        unknown."""
        found = self._candidates.take(place, axis=0)[..., :ranks]
        lacking = ranks - found.shape[-1]
        return np.concatenate([found, np.zeros((*place.shape, lacking))], axis=-1) if lacking else found

    def observe(self, view: View, plan: Plan, outcome: Outcome) -> None:
        cell = self.cell(view)
        if view.drafted:
            learn = self._learn_few if len(view) <= FEW else self._learn_slots
            learn(view, cell, plan, outcome)
        self._learn_heads(view, cell, outcome)
        self._age += 1
        moved = max(abs(now - then) for now, then in zip(self._shifts(), self._made_at, strict=True))
        self._stale = moved > (STALE if self._age >= SETTLED else WRONG)

    @property
    def is_settled(self) -> bool:
        """Whether menus have held for a while."""
        return self._age >= SETTLED

    def refresh(self) -> None:
        """Makes menus anew if they are stale. That takes its time, so it is for when a forward runs, and what
        has to be made first is made one at a time."""
        if not self._stale:
            return
        shifts = self._shifts()
        if not self._outlooks.make_one(dict(zip(self._sizes, shifts, strict=False))):
            self._made_at, self._age, self._stale = shifts, 0, False
            self.menus = self._fresh_menus()
            self._fewer.clear()

    def _learn_slots(self, view: View, cell: Ints, plan: Plan, outcome: Outcome) -> None:
        hand = self.in_hand(view, cell)
        draft = view.draft[hand.rows]
        acceptance, verified = outcome.acceptance[hand.rows, None], plan.verified[hand.rows, None]
        slots = np.arange(hand.failing.shape[1])
        seen = (slots >= 1) & (slots < verified)
        failed = np.where(seen, slots == acceptance, hand.failing)  # what was not verified is imputed
        passed = np.cumprod(np.where(slots < draft[:, None], 1 - failed, 0.0), axis=1)
        reached = np.concatenate([np.zeros((len(draft), 1)), passed[:, :-1]], axis=1)
        reached *= (slots < draft[:, None]) & (outcome.acceptance[hand.rows, None] > 0)
        for block, mine in self._by_block(draft):
            before = np.zeros((len(mine), len(slots)))
            odds = self._odds[block][cell[hand.rows[mine]], : len(slots)] + self._learner.before.of(block)
            before[:, : odds.shape[1]] = chance(odds)
            weight = reached[mine]
            self._learner.before.add(block, *_evidence(weight, failed[mine], before))
            self._learner.given.add(block, *_evidence(weight * seen[mine], failed[mine], hand.failing[mine]))

    def _learn_few(self, view: View, cell: Ints, plan: Plan, outcome: Outcome) -> None:
        """`_learn_slots`, slot by slot: those behind one that is known to be wrong say nothing."""
        columns = view.draft.tolist(), cell.tolist(), plan.verified.tolist(), outcome.acceptance.tolist()
        hand: list[tuple[int, list[float], list[float], int, int]] = []
        for row, (draft, place, verified, acceptance) in enumerate(zip(*columns, strict=True)):
            if draft and acceptance:
                at, width = self._at(draft), draft if acceptance >= verified else acceptance + 1
                failing = [slot[0] for slot in self.slots(draft, place, view.margins[row, :width].tolist())]
                hand.append((at, failing, self._lists[0][at][place], verified, acceptance))
        hand.sort(key=itemgetter(0))
        for at, mine in groupby(hand, itemgetter(0)):
            block, surprise, information, said, known = self._sizes[at], 0.0, 0.0, 0.0, 0.0
            odds = exp(self._learner.before.of(block))
            for _, failing, likely, verified, acceptance in mine:
                reached = 1.0
                for slot in range(1, len(failing)):
                    given, before = failing[slot], 1 - 1 / (1 + odds * likely[slot])
                    failed = given  # what was not verified is imputed
                    if slot < verified:
                        failed = float(slot == acceptance)
                        said += failed - given
                        known += given * (1 - given)
                    surprise += reached * (failed - before)
                    information += reached * before * (1 - before)
                    reached *= 1 - failed
            self._learner.before.add(block, surprise, information)
            self._learner.given.add(block, said, known)

    def _learn_heads(self, view: View, cell: Ints, outcome: Outcome) -> None:
        heads = outcome.head.tolist()
        if max(heads) < 0:
            return
        beside = self.menus.head.take(cell).tolist()
        surprise, information = [0.0, 0.0], [0.0, 0.0]  # beside blocks, and beside AR steps
        for head, draft, right in zip(heads, view.draft.tolist(), beside, strict=True):
            if head >= 0:
                wrong = 1 - (self.continuation if draft else right)
                surprise[not draft] += (head == 0) - wrong
                information[not draft] += wrong * (1 - wrong)
        self._learner.continuation.add(surprise[0], information[0])
        self._learner.step.add(surprise[1], information[1])

    def _at(self, draft: int) -> int:
        """Place of the block of the table that speaks of drafts of so many slots."""
        return min(bisect_left(self._sizes, draft), len(self._sizes) - 1)

    def _by_block(self, draft: Ints) -> list[tuple[int, Ints]]:
        """Rows by the block of the table that speaks of their drafts."""
        at = np.minimum(np.searchsorted(self._blocks, draft), len(self._blocks) - 1)
        rows = ((block, np.flatnonzero(at == place)) for place, block in enumerate(self._sizes))
        return [(block, mine) for block, mine in rows if len(mine)]

    def _shifts(self) -> list[float]:
        learner = self._learner
        blocks = [learner.before.of(block) for block in self._sizes]
        return [*blocks, learner.continuation.value, learner.step.value]

    def _given_odds(self) -> list[float]:
        """[blocks] by how much drafts fail more than the table says, given their margins."""
        return [exp(self._learner.given.of(block)) for block in self._sizes]

    def _fresh_menus(self) -> Menus:
        learner, smallest = self._learner, self._sizes[0]
        outlooks = {block: self._outlooks.at(block, learner.before.of(block)) for block in self._sizes}
        first = 1 - chance(self._odds[smallest][:, 1] + learner.before.of(smallest))
        return Menus.of(outlooks, _shifted(first**self.table.evidence.step, learner.step.value))


def _strata(bins: int) -> Ints:
    """[MAX_BLOCK + 1, 2] the first cell of each stratum, by the block verified last and whether it passed."""
    previous = np.repeat(np.arange(MAX_BLOCK + 1)[:, None], 2, axis=1)
    full = np.broadcast_to(np.array([False, True]), previous.shape)
    return strata(previous, full) * bins


def _likely(odds: Mapping[int, Floats], cells: int) -> Floats:
    """[blocks, cells, slots] odds, not their logarithm, that a slot fails; 0 at slot 0 and beyond."""
    found = np.zeros((len(odds), cells, max(odds)))
    for place, (block, logs) in enumerate(odds.items()):
        found[place, :, :block] = np.exp(logs)
    return found


def _shifted(right: Floats, shift: float) -> Floats:
    """Probabilities of being right after the log odds of being wrong have risen."""
    right = np.clip(right, _LEAST, 1 - _LEAST)
    return 1 - chance(np.log((1 - right) / right) + shift)


def _evidence(weight: Floats, failed: Floats, chance: Floats) -> tuple[float, float]:
    """Σ (failed − p) and Σ p·(1 − p), weighted."""
    return float((weight * (failed - chance)).sum()), float((weight * chance * (1 - chance)).sum())
