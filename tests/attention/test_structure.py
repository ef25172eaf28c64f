"""How rows lie in a batch is worked out once, wherever in their texts they stand."""

from __future__ import annotations

from dataclasses import replace

from recguide.attention import structure
from recguide.attention.structure import KEPT, KEPT_OF_ONE, KEPT_ROW, KEPT_TOKENS, structure_of
from recguide.core import Row

ROUND = (
    Row(0, 4, (1, 2, 3), True, wanted=(0, 1, 2)),
    Row(0, 4, (9, 9), False, stem=2, adapter=True, masked=(0, 1), wanted=[0, 1]),
)


def test_tokens_and_positions_make_no_other_structure():
    later = [replace(row, prefix=30, tokens=tuple(token + 5 for token in row.tokens)) for row in ROUND]
    later[1] = replace(later[1], stem=1)
    assert structure_of(later) is structure_of(ROUND)


def test_all_else_does():
    others = [
        (ROUND[0], replace(ROUND[1], request=1)),
        (ROUND[0], replace(ROUND[1], adapter=False)),
        (ROUND[0], replace(ROUND[1], tokens=(9, 9, 9))),
        (ROUND[0], replace(ROUND[1], masked=(1,))),
        (replace(ROUND[0], wanted=(2,)), ROUND[1]),
        (replace(ROUND[0], causal=False), ROUND[1]),
        ROUND[::-1],
    ]
    assert len({structure_of(rows) for rows in (ROUND, *others)}) == 1 + len(others)


def test_few_and_small_ones_are_kept():
    two = [*ROUND, Row(1, 0, (1,), causal=True)]
    first, several = structure_of(ROUND), structure_of(two)
    for request in range(1, KEPT_OF_ONE + 1):
        structure_of([replace(row, request=request) for row in ROUND])
    assert structure_of(two) is several
    for request in range(2, KEPT + 2):
        structure_of([*ROUND, Row(request, 0, (1,), causal=True)])
    assert structure_of(ROUND) is not first
    assert structure_of(two) is not several
    large = [Row(0, 0, (1,) * (KEPT_TOKENS + 1), True)]
    assert structure_of(large) is not structure_of(large)
    assert not structure_of(large).is_kept


def test_requests_share_what_is_known_of_their_rows():
    structure._run.cache_clear()
    rows = [replace(row, request=request, prefix=request) for request in range(9) for row in ROUND]
    structure_of(rows)
    structure_of([*rows[2:], replace(ROUND[0], request=0)])
    assert structure._run.cache_info().misses == len(ROUND)


def test_chunks_of_prompts_are_not_kept():
    structure._run.cache_clear()
    structure_of(
        [Row(0, 0, (1,) * (KEPT_ROW + 1), True, wanted=(0,)), *[replace(row, request=1) for row in ROUND]]
    )
    assert structure._run.cache_info().currsize == len(ROUND)
