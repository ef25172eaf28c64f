"""Settle against a plain reading of the rules, request by request."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recguide.speculation.settle import Verdicts, settle

TOKENS = st.integers(0, 3)


@st.composite
def one_request(draw):
    length = draw(st.integers(1, 6))
    branches = draw(st.lists(st.tuples(st.integers(1, length), st.integers(-1, 3)), max_size=4))
    return {
        "block": draw(st.lists(TOKENS, min_size=length, max_size=length)),
        "picks": draw(st.lists(TOKENS, min_size=length, max_size=length)),
        "trusted": draw(st.booleans()),
        "stops": draw(st.sets(TOKENS, max_size=2)),
        "cap": draw(st.integers(1, 8)),
        "branches": branches,
    }


def expected(case):
    block, picks = case["block"], list(case["picks"])
    if case["trusted"]:
        picks[:-1] = block[1:]
    accepted = 1
    while accepted < len(block) and picks[accepted - 1] == block[accepted]:
        accepted += 1
    emitted, stopped = [], False
    for token in picks[:accepted]:
        if len(emitted) == case["cap"] or stopped:
            break
        emitted.append(token)
        stopped = token in case["stops"]
    last = picks[accepted - 1]
    covered = next((i for i, (slot, _) in enumerate(case["branches"]) if slot == accepted), -1)
    reused = next(
        (i for i, (slot, head) in enumerate(case["branches"]) if slot == accepted and head in (-1, last)), -1
    )
    capped = len(emitted) == case["cap"]
    return emitted, accepted, stopped, capped, covered, -1 if stopped or capped else reused


def padded(rows, fill):
    width = max(map(len, rows))
    return np.array([[*row, *[fill] * (width - len(row))] for row in rows], dtype=np.int64).reshape(
        len(rows), width
    )


@given(st.lists(one_request(), min_size=1, max_size=5))
def test_settle_follows_the_rules_for_every_request_of_a_batch(cases):
    outcome = settle(
        Verdicts(
            blocks=padded([case["block"] for case in cases], 0),
            lengths=np.array([len(case["block"]) for case in cases]),
            picks=padded([case["picks"] for case in cases], 0),
            trusted=np.array([case["trusted"] for case in cases]),
            stops=padded([sorted(case["stops"]) for case in cases], -1),
            caps=np.array([case["cap"] for case in cases]),
            branch_slots=padded([[slot for slot, _ in case["branches"]] for case in cases], 0),
            branch_heads=padded([[head for _, head in case["branches"]] for case in cases], -1),
        )
    )
    for at, case in enumerate(cases):
        count = int(outcome.emitted[at])
        got = (
            outcome.tokens[at, :count].tolist(),
            int(outcome.acceptance[at]),
            bool(outcome.stopped[at]),
            bool(outcome.capped[at]),
            int(outcome.covered[at]),
            int(outcome.reused[at]),
        )
        assert got == expected(case)


def test_end_of_sequence_stop_and_cap_at_every_place_of_a_full_block():
    block = np.arange(10, 18)[None]
    picks = np.arange(11, 19)[None]
    for stop in range(11, 19):
        for other in range(11, 19):
            for cap in range(1, 10):
                outcome = settle(
                    Verdicts(
                        blocks=block,
                        lengths=np.array([8]),
                        picks=picks,
                        trusted=np.array([False]),
                        stops=np.array([[stop, other]]),
                        caps=np.array([cap]),
                        branch_slots=np.array([[8]]),
                        branch_heads=np.array([[18]]),
                    )
                )
                first = min(stop, other) - 10
                assert outcome.acceptance.item() == 8
                assert outcome.emitted.item() == min(first, cap)
                assert outcome.stopped.item() == (first <= cap)
                assert outcome.reused.item() == -1
