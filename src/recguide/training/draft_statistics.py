"""What replayed rounds say of an adapter, as rows of a result file: plain numbers, counts beside shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recguide.training.corpus import Corpus
from recguide.training.drafted import Drafted
from recguide.training.rounds import Prepared, Replayed

Row = dict[str, Any]
BINS = 10
RANKS: Mapping[str, tuple[int, int]] = {
    "1": (1, 1),
    "2": (2, 2),
    "3": (3, 3),
    "4-8": (4, 8),
    ">8": (9, 2**31 - 1),
}


@dataclass(frozen=True, slots=True)
class Reached:
    """Drafts of the rounds of some texts, of which only slots that no mismatch precedes count: [R, B] each.

    A slot behind the text's end counts as not reached.
    """

    drafted: Drafted
    rows: NDArray[np.int64]
    matched: NDArray[np.bool_]
    missed: NDArray[np.bool_]

    @classmethod
    def of(cls, corpus: Corpus, drafted: Drafted, replayed: Sequence[Replayed]) -> Reached:
        """`replayed` have drafts of `drafted` alone."""
        rows = np.array([r.row for text in replayed for r in text.rounds], dtype=np.int64)
        places = drafted.places
        hits = drafted.hits[rows]
        slots = np.arange(hits.shape[1])
        left = corpus.lengths[places.text[rows]] - places.start[rows]
        inside = (slots >= 1) & (slots < np.minimum(places.length[rows], left)[:, None])
        right = np.cumprod(hits | (slots == 0), axis=1, dtype=np.bool_)
        before = np.concatenate((right[:, :1], right[:, :-1]), axis=1)
        return cls(drafted, rows, inside & right, inside & before & ~right)

    def acceptance_of_slots(self) -> Row:
        """How often each slot was reached, and how often it was right then."""
        reached = (self.matched | self.missed).sum(0)[1:]
        matched = self.matched.sum(0)[1:]
        rates = [
            round(m / r, 4) if r else None for m, r in zip(matched.tolist(), reached.tolist(), strict=True)
        ]
        return {"reached": reached.tolist(), "matched": matched.tolist(), "rate": rates}

    def ranks(self) -> Row:
        """Rank of the verifier's token in the draft at mismatches, by z + T·G and without the noise.

        With noise it is never 1: the draft's pick is. A correction branch is right if it is 2 (or 3, where
        an end-of-sequence token is 2).
        """
        rows = self.rows[self.missed.any(1)]
        return {
            "mismatches": len(rows),
            "rank": _binned(self.drafted.rank[rows]),
            "rank_without_noise": _binned(self.drafted.raw_rank[rows]),
        }

    def margins(self) -> Row:
        """Margins of matched and of mismatched slots, counted in tenths of [0, 1]."""
        margin = (self.drafted.p1 - self.drafted.p2)[self.rows]
        return {"accepted": _tenths(margin[self.matched]), "mismatched": _tenths(margin[self.missed])}

    def calibration(self) -> Row:
        """Reached slots by p1, in tenths: how many, their mean p1, and how many were right."""
        p1 = self.drafted.p1[self.rows]
        every, right = p1[self.matched | self.missed], p1[self.matched]
        counts, sums = _tenths(every), np.bincount(_tenth(every), weights=every, minlength=BINS).tolist()
        return {
            "slots": counts,
            "p1": [round(s / c, 4) if c else None for s, c in zip(sums, counts, strict=True)],
            "matched": _tenths(right),
            "brier": round(float((every**2).sum() - 2 * right.sum() + len(right)) / max(len(every), 1), 4),
        }


def _tenth(values: NDArray[np.float32]) -> NDArray[np.int64]:
    return np.clip((values * BINS).astype(np.int64), 0, BINS - 1)


def _tenths(values: NDArray[np.float32]) -> list[int]:
    return np.bincount(_tenth(values), minlength=BINS).tolist()


def _binned(ranks: NDArray[np.int32]) -> dict[str, int]:
    return {name: int(((ranks >= low) & (ranks <= high)).sum()) for name, (low, high) in RANKS.items()}


def acceptance(replayed: Sequence[Replayed], block: int) -> Row:
    """Rounds, their mean A (also without rounds that the text's end cut), and how many had A = 1..block."""
    whole = [r.kept for text in replayed for r in text.rounds if not r.cut]
    kept = np.array([r.kept for text in replayed for r in text.rounds], dtype=np.int64)
    return {
        "rounds": len(kept),
        "acceptance": round(float(kept.mean()), 4) if len(kept) else None,
        "acceptance_of_whole_rounds": round(sum(whole) / len(whole), 4) if whole else None,
        "histogram": np.bincount(kept, minlength=block + 1)[1:].tolist(),
    }


def overlap(replayed: Sequence[Replayed], tokens: int) -> Row:
    """Branches by kind, coverage and reuse as shares of the rounds, and tokens per forward.

    `tokens` are those of the texts; the first of each comes from prefill.
    """
    rounds = [r for text in replayed for r in text.rounds]
    opened = Counter(kind for r in rounds for kind in r.opened)
    covered = Counter(r.covered for r in rounds if r.covered is not None)
    reused = Counter(r.reused for r in rounds if r.reused is not None)
    forwards = sum(text.forwards for text in replayed)

    def share(part: int) -> float | None:
        return round(part / len(rounds), 4) if rounds else None

    return {
        "rounds": len(rounds),
        "acceptance": round(sum(r.kept for r in rounds) / len(rounds), 4) if rounds else None,
        "forwards": forwards,
        "tpf": round((tokens - len(replayed)) / forwards, 4) if forwards else None,
        "coverage": share(covered.total()),
        "reuse": share(reused.total()),
        "branches": {
            kind.value: {"opened": opened[kind], "covered": covered[kind], "reused": reused[kind]}
            for kind in Prepared
        },
    }
