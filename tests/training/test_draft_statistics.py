"""Statistics of replayed rounds, against two rounds small enough to count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from recguide.training.corpus import Corpus
from recguide.training.draft_statistics import Reached, acceptance, overlap
from recguide.training.drafted import Drafted
from recguide.training.rounds import Replay, Replayed, everywhere

BLOCK, CAP = 4, 20
TEXT = [9, 9, 10, 11, 12, 13, 14, 15]
"""Two tokens of prompt; the text ends by itself, before the cap."""


@pytest.fixture
def corpus() -> Corpus:
    return Corpus.of([TEXT], [2])


def drafted_from(corpus: Corpus, tokens: dict[int, list[int]], p1: dict[int, list[float]]) -> Drafted:
    """Drafts of every place; those not named are wrong throughout and sure of it."""
    places = everywhere(corpus, BLOCK, CAP)
    shape = (len(places), BLOCK)
    picks, first = np.zeros(shape, np.int32), np.ones(shape, np.float32)
    for row, start in enumerate(places.start.tolist()):
        picks[row, 1:] = tokens.get(start, [0, 0, 0])
        first[row, 1:] = p1.get(start, [1.0, 1.0, 1.0])
    labels = np.array([[*TEXT[s : s + BLOCK], *[-1] * BLOCK][:BLOCK] for s in places.start.tolist()]).reshape(
        shape
    )
    hits = (picks == labels) & (np.arange(BLOCK) > 0)
    candidates = np.full(shape, 13, np.int32)
    rank = np.full(len(places), 2, np.int32)
    return Drafted(places, picks, first, 1 - first, candidates, hits, rank, rank - 1)


@pytest.fixture
def drafted(corpus: Corpus) -> Drafted:
    """At position 2 two slots are right, then one is wrong; at 5 the text's last two tokens are right."""
    return drafted_from(
        corpus, {2: [11, 12, 0], 5: [14, 15, 0]}, {2: [0.95, 0.55, 0.45], 5: [0.85, 0.65, 0.3]}
    )


@pytest.fixture
def linear(corpus: Corpus, drafted: Drafted) -> list[Replayed]:
    return Replay(corpus, drafted, BLOCK, CAP, lambda _: pytest.fail("no block passes")).linear()


def test_slots_count_up_to_the_first_mismatch_and_not_behind_the_text(corpus, drafted, linear):
    assert [(r.kept, r.cut) for r in linear[0].rounds] == [(3, False), (2, True)]
    reached = Reached.of(corpus, drafted, linear)
    assert reached.acceptance_of_slots() == {
        "reached": [2, 2, 1],
        "matched": [2, 2, 0],
        "rate": [1.0, 1.0, 0.0],
    }
    assert acceptance(linear, BLOCK) == {
        "rounds": 2,
        "acceptance": 2.5,
        "acceptance_of_whole_rounds": 3.0,
        "histogram": [0, 1, 1, 0],
    }


def test_margins_ranks_and_calibration_are_those_of_reached_slots(corpus, drafted, linear):
    reached = Reached.of(corpus, drafted, linear)
    # Margins 0.9, 0.1, 0.7, 0.3 (float32 just above or below a tenth) were right, -0.1 was not.
    margins = reached.margins()
    assert sum(margins["accepted"]) == 4
    assert margins["mismatched"] == [1, *[0] * 9]
    ranks = reached.ranks()
    assert ranks["mismatches"] == 1
    assert ranks["rank"] == {"1": 0, "2": 1, "3": 0, "4-8": 0, ">8": 0}
    assert ranks["rank_without_noise"]["1"] == 1
    found = reached.calibration()
    assert found["slots"] == [0, 0, 0, 0, 1, 1, 1, 0, 1, 1]
    assert found["matched"] == [0, 0, 0, 0, 0, 1, 1, 0, 1, 1]
    assert found["brier"] == pytest.approx((0.05**2 + 0.45**2 + 0.45**2 + 0.15**2 + 0.35**2) / 5, abs=1e-4)


def test_branches_are_counted_by_the_order_of_their_risky_slots(corpus, drafted):
    """Slots 2 and 3 of the first round are risky; it ends at slot 3, whose candidate is the text's 13."""
    replay = Replay(corpus, drafted, BLOCK, CAP, lambda _: pytest.fail("no block passes"))
    overlapped, continuations = replay.overlapped()
    assert continuations is None
    row = overlap(overlapped, 6)
    assert row["branches"]["correction 1"] == {"opened": 2, "covered": 0, "reused": 0}
    assert row["branches"]["correction 2"] == {"opened": 2, "covered": 1, "reused": 1}
    assert row["branches"]["continuation"] == {"opened": 2, "covered": 0, "reused": 0}
    assert (row["coverage"], row["reuse"]) == (0.5, 0.5)
    assert (row["forwards"], row["tpf"]) == (3, round(5 / 3, 4))


def test_an_empty_text_has_no_shares():
    corpus = Corpus.of([[5, 6]], [1])
    drafted = drafted_from(corpus, {}, {})
    replayed = Replay(corpus, drafted, BLOCK, CAP, lambda _: pytest.fail("no round")).linear()
    assert acceptance(replayed, BLOCK)["acceptance"] is None
    assert overlap(replayed, 1)["tpf"] is None
    assert Reached.of(corpus, drafted, replayed).acceptance_of_slots()["rate"] == [None] * 3
