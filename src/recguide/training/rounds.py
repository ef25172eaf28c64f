"""Decoding rounds replayed over known texts: which rounds a method would run, and which branches would fit.

The text does not depend on the method, so it need not be decoded again: what a round emits follows from
comparing its draft with the text. Corrections and continuations are those of the overlap rule (paper §5.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from recguide.speculation.methods.recguide import CORRECTIONS, DELTA
from recguide.training.corpus import Corpus
from recguide.training.drafted import Drafted, Places

Reader = Callable[[Places], Drafted]
"""Drafts at places of the texts."""


class Prepared(StrEnum):
    """Which branch of a round is meant: corrections by the order of their risky slots."""

    FIRST = "correction 1"
    SECOND = "correction 2"
    CONTINUATION = "continuation"


CORRECTED: tuple[Prepared, ...] = (Prepared.FIRST, Prepared.SECOND)


@dataclass(frozen=True, slots=True)
class Round:
    """One replayed round that had a draft.

    Attributes:
        row: index of its draft among those at every position, or among the continuations.
        continued: whether its draft came from a continuation branch; otherwise its row is the same whether
            it was drafted anew or by a correction branch.
        kept: A, cut at the text's end.
        cut: whether the text ended before the first mismatch, so that A might have been larger.
        opened: branches that ran beside the verification.
        covered: the branch at the outcome's slot; None for none, and in a text's last round.
        reused: the branch whose draft the next round has.
    """

    row: int
    continued: bool
    kept: int
    cut: bool
    opened: tuple[Prepared, ...] = ()
    covered: Prepared | None = None
    reused: Prepared | None = None


@dataclass(slots=True)
class Replayed:
    """A text's rounds; `steps` counts AR steps, which are all that fits when one token is left."""

    rounds: list[Round]
    steps: int = 0

    @property
    def forwards(self) -> int:
        """Verifications and AR steps, and a draft forward for every round whose draft no branch made."""
        reused = sum(r.reused is not None for r in self.rounds)
        return 2 * len(self.rounds) - reused + self.steps


def everywhere(corpus: Corpus, block: int, cap: int) -> Places:
    """A draft row at every response position where decoding could have one.

    No row is longer than the tokens that may still be emitted of `cap`.
    """
    text = np.repeat(np.arange(len(corpus)), np.maximum(corpus.response_lengths - 1, 0))
    inside = np.arange(len(text)) - np.searchsorted(text, text)
    length = np.minimum(block, cap - 1 - inside)
    keep = length >= 2
    start = corpus.prompt_lengths[text].astype(np.int64) + inside
    return Places(text[keep], start[keep], length[keep], continuation=False)


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a round needs of each draft, as lists: reading arrays element by element is slow."""

    length: list[int]
    matched: list[int]
    risky: list[list[int]]
    risks: list[int]
    candidates: list[list[int]]
    first: list[int]

    @classmethod
    def of(cls, drafted: Drafted) -> _Rows:
        length = drafted.places.length
        slots = np.arange(drafted.hits.shape[1])
        inside = (slots >= 1) & (slots < length[:, None])
        matched = np.cumprod(drafted.hits[:, 1:], axis=1, dtype=np.int64).sum(1)
        risky = inside & (drafted.p1 - drafted.p2 < DELTA)
        order = np.argsort(~risky, axis=1, kind="stable")[:, :CORRECTIONS]
        return cls(
            length.tolist(),
            matched.tolist(),
            order.tolist(),
            risky.sum(1).tolist(),
            np.take_along_axis(drafted.candidates, order, 1).tolist(),
            drafted.tokens[:, 0].tolist(),
        )


class Replay:
    """Rounds over the texts of `corpus`, at most `cap` new tokens each, in blocks of `block` slots.

    `drafted` are the drafts of `everywhere`; `read` is asked for continuations, and only for those whose
    block passed.
    """

    def __init__(self, corpus: Corpus, drafted: Drafted, block: int, cap: int, read: Reader) -> None:
        self._corpus = corpus
        self._block = block
        self._cap = cap
        self._read = read
        self._fresh = _Rows.of(drafted)
        places = zip(drafted.places.text.tolist(), drafted.places.start.tolist(), strict=True)
        self._row_at = {place: row for row, place in enumerate(places)}

    def linear(self) -> list[Replayed]:
        """Rounds of the method "linear", for each text."""
        found: list[Replayed] = []
        for text in range(len(self._corpus)):
            done = Replayed([])
            n, last = self._bounds(text)
            while n < last:
                row = self._row_at.get((text, n))
                if row is None:
                    done.steps, n = done.steps + 1, n + 1
                    continue
                acceptance = self._fresh.matched[row] + 1
                kept = min(acceptance, last - n)
                done.rounds.append(Round(row, continued=False, kept=kept, cut=kept < acceptance))
                n += kept
            found.append(done)
        return found

    def overlapped(self) -> tuple[list[Replayed], Drafted | None]:
        """Rounds of the method "recguide", for each text, and the continuations that they asked for."""
        walks = [_Walk(text, *self._bounds(text)) for text in range(len(self._corpus))]
        asked: list[tuple[int, int]] = []
        rows: list[Drafted] = []
        continued = _Rows([], [], [], [], [], [])
        waiting = walks
        while waiting:
            wanted = [place for walk in waiting if (place := self._walk(walk, continued)) is not None]
            if not wanted:
                break
            drafted = self._read(self._continuations(wanted))
            rows.append(drafted)
            for mine, new in zip(_lists(continued), _lists(_Rows.of(drafted)), strict=True):
                mine.extend(new)
            waiting = [walks[text] for text, _ in wanted]
            for walk, row in zip(waiting, range(len(asked), len(asked) + len(wanted)), strict=True):
                walk.offered = row
            asked += wanted
        return [walk.done for walk in walks], joined(rows) if rows else None

    def _bounds(self, text: int) -> tuple[int, int]:
        """Position of the first seed, and of the text's last token."""
        corpus = self._corpus
        return int(corpus.prompt_lengths[text]), int(corpus.lengths[text]) - 1

    def _continuations(self, wanted: Sequence[tuple[int, int]]) -> Places:
        text, start = np.array(wanted, dtype=np.int64).T
        return Places(text, start, np.array([self._room(*place) for place in wanted]), continuation=True)

    def _room(self, text: int, n: int) -> int:
        """Slots of a draft whose slot 0 stands at position n."""
        return min(self._block, self._cap - 1 - (n - int(self._corpus.prompt_lengths[text])))

    def _walk(self, walk: _Walk, continued: _Rows) -> tuple[int, int] | None:
        """Rounds until the text ends (None) or a continuation is needed: the place of its slot 0."""
        while walk.n < walk.last:
            if walk.offered is None:
                if walk.row is None:
                    walk.row = self._row_at.get((walk.text, walk.n))
                if walk.row is None:
                    walk.done.steps, walk.n = walk.done.steps + 1, walk.n + 1
                    continue
                rows = continued if walk.continued else self._fresh
                place = self._round(walk, rows)
                if place is not None:
                    return place
            else:
                self._take(walk, continued)
        return None

    def _round(self, walk: _Walk, rows: _Rows) -> tuple[int, int] | None:
        """One round; the place of the continuation on which its successor depends, if it does."""
        row = walk.row
        assert row is not None
        length, acceptance = rows.length[row], rows.matched[row] + 1
        kept = min(acceptance, walk.last - walk.n)
        ends = walk.n + kept == walk.last
        opened = self._branches(walk, rows, row)
        covered = None if ends else next((kind for kind, slot in opened if slot == acceptance), None)
        reused = None
        if covered is not None and covered is not Prepared.CONTINUATION:
            candidate = rows.candidates[row][CORRECTED.index(covered)]
            reused = covered if candidate == self._token(walk.text, walk.n + acceptance) else None
        walk.done.rounds.append(
            Round(
                row,
                walk.continued,
                kept,
                kept < acceptance,
                tuple(kind for kind, _ in opened),
                covered,
                reused,
            )
        )
        walk.n, walk.row, walk.continued = walk.n + kept, None, False
        assert length >= acceptance
        return (walk.text, walk.n) if covered is Prepared.CONTINUATION else None

    def _branches(self, walk: _Walk, rows: _Rows, row: int) -> list[tuple[Prepared, int]]:
        """The branches of a round and their slots; those too close to the cap are left out."""
        risks = rows.risks[row]
        kinds = CORRECTED[:risks]
        opened = list(zip(kinds, rows.risky[row], strict=False))
        if risks <= CORRECTIONS:
            opened.append((Prepared.CONTINUATION, rows.length[row]))
        return [(kind, slot) for kind, slot in opened if self._room(walk.text, walk.n + slot) >= 2]

    def _take(self, walk: _Walk, continued: _Rows) -> None:
        """Uses the continuation that was asked for, if it predicted the bonus."""
        row, walk.offered = walk.offered, None
        assert row is not None
        if continued.first[row] == self._token(walk.text, walk.n):
            before = walk.done.rounds[-1]
            walk.done.rounds[-1] = replace(before, reused=Prepared.CONTINUATION)
            walk.row, walk.continued = row, True

    def _token(self, text: int, position: int) -> int:
        return int(self._corpus.tokens[self._corpus.offsets[text] + position])


@dataclass(slots=True)
class _Walk:
    """Where the replay of a text stands: its seed's position, and the draft in hand if a branch made it."""

    text: int
    n: int
    last: int
    done: Replayed = field(default_factory=lambda: Replayed([]))
    row: int | None = None
    continued: bool = False
    offered: int | None = None


def _lists(rows: _Rows) -> tuple[list[Any], ...]:
    return (rows.length, rows.matched, rows.risky, rows.risks, rows.candidates, rows.first)


def joined(parts: Sequence[Drafted]) -> Drafted:
    """Drafts of several calls, one after another."""
    places = [part.places for part in parts]
    return Drafted(
        Places(
            *(np.concatenate([getattr(p, name) for p in places]) for name in ("text", "start", "length")),
            continuation=places[0].continuation,
        ),
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("tokens", "p1", "p2", "candidates", "hits", "rank", "raw_rank")
        ),
    )
