"""Cases have the query tokens that they are named after; rows and targets say what was measured."""

from __future__ import annotations

import pytest
from benchmarks.forward_cost import CASES, LIMITS, LOAD_PREFIX, Case, cost_rows, parse, targets

from recguide.speculation.rows import BranchKind, Phase

FLOOR = 4.0


def measure(layouts):
    tokens = sum(layout.query_tokens for layout in layouts)
    return [FLOOR + tokens / 100] * 3, 2 * tokens


def rows_of(*cases, model="nld-8b"):
    return cost_rows(model, FLOOR, cases, measure, mask=100, vocabulary=131072)


def test_cases_cover_what_was_asked():
    tokens = [case.query_tokens for case in CASES if case.kind != "prefill chunk"]
    assert tokens == [1, 8, 16, 32, 64, 80, 96, 128, 160, 256, 512, 1024]
    assert all(case.requests == 1 for case in CASES if case.query_tokens <= 128)


@pytest.mark.parametrize("case", [*CASES, Case("AR step", 8, 1, prefix=LOAD_PREFIX)], ids=str)
def test_layouts_have_the_rows_of_a_round(case):
    layouts = case.layouts(mask=100, vocabulary=1000)
    assert len(layouts) == case.requests
    assert sum(layout.query_tokens for layout in layouts) == case.query_tokens
    for index, layout in enumerate(layouts):
        causal, *branches = layout.rows
        assert (causal.request, causal.prefix, causal.causal) == (index, case.prefix, True)
        assert len(branches) == case.branches
        assert all(len(row.tokens) == case.block and row.adapter for row in branches)
        wanted = 1 if layout.phase is Phase.PREFILL else case.block
        assert len(causal.wanted) == wanted


def test_three_branches_are_two_corrections_and_a_continuation():
    (layout,) = Case("verification", 1, 16, 3).layouts(mask=100, vocabulary=1000)
    kinds = sorted(branch.kind for branch in layout.branches)
    assert kinds == [BranchKind.CONTINUATION, BranchKind.CORRECTION, BranchKind.CORRECTION]
    assert len({branch.slot for branch in layout.branches}) == 3


def test_rows_hold_times_and_anchors():
    one, many, chunk, load = rows_of(
        Case("AR step", 1, 1),
        Case("verification", 1, 32, 3),
        Case("prefill chunk", 1, 512),
        Case("AR step", 64, 1, prefix=LOAD_PREFIX),
    )
    assert (one["ms"], one["over_floor"], one["bucket"]) == (pytest.approx(4.01), pytest.approx(1.0025), 2)
    assert (many["products_ms"], many["plain_ms"], many["vllm_ms"]) == (4.99, 6.91, None)
    assert many["limit_ms"] == 1.48 * FLOOR
    assert [row["series"] for row in (one, many, chunk, load)] == ["tokens", "tokens", "chunk", "load"]
    assert (load["vllm_ms"], load["limit_ms"]) == (7.74, None)


def test_targets_are_those_of_the_model_and_can_be_missed():
    found = targets("nld-8b", rows_of(*CASES, Case("AR step", 64, 1, prefix=LOAD_PREFIX)))
    assert [target.target for target in found] == [1.25, 1.36, 1.48, 1.15, 7.74]
    assert all(target.met for target in found)
    slow = [row | {"over_floor": 1.37} for row in rows_of(*CASES)]
    assert [target.met for target in targets("nld-8b", slow)] == [False, False, True, False]
    asked = targets("nld-14b", rows_of(*CASES, model="nld-14b"))
    assert [target.target for target in asked] == list(LIMITS["nld-14b"].values())


def test_quick_is_small():
    options = parse(["--quick", "--model", "nld-14b"])
    assert options.replays < parse([]).replays
    assert max(options.loads) == 8
    assert options.output.name == "forward_cost-nld-14b.json"
