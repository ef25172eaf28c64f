"""How rounds are laid out, and the paper's overlap rule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recguide.speculation import rows
from recguide.speculation.methods import RECGUIDE, TIDAR
from recguide.speculation.methods.diffusion import refine
from recguide.speculation.rows import Branch, BranchKind, Draft, Phase, fit_branches

MASK = 99


@given(st.lists(st.sampled_from([0.0, 0.2, 0.4999, 0.5, 0.9]), min_size=1, max_size=32))
def test_the_overlap_rule(later):
    """Two earliest slots under δ get a correction; the continuation runs while at most two are under δ."""
    margins = [0.0, *later]  # slot 0 is known and never risky, whatever stands there
    sites = RECGUIDE.branches(margins, range(50, 50 + len(margins)))
    risky = [slot for slot, margin in enumerate(margins) if slot and margin < 0.5]
    corrections = [(BranchKind.CORRECTION, slot, 50 + slot) for slot in risky[:2]]
    rest = [(BranchKind.CONTINUATION, len(margins), None)] if len(risky) <= 2 else []
    assert sites == corrections + rest


def test_rows_of_a_verification_with_every_kind_of_branch():
    branches = (
        Branch(BranchKind.CORRECTION, 2, block=4, head=7),
        Branch(BranchKind.CONTINUATION, 4, block=3),
        Branch(BranchKind.ANY, 1, block=2),
    )
    layout = rows.verify(5, 100, (1, 2, 3, 4), branches, mask=MASK, adapter=True)
    causal, correction, continuation, anywhere = layout.rows
    assert layout.phase is Phase.VERIFY
    assert (causal.causal, causal.adapter, causal.start, list(causal.wanted)) == (
        True,
        False,
        100,
        [0, 1, 2, 3],
    )
    assert (correction.tokens, correction.stem, correction.start) == ((7, MASK, MASK, MASK), 2, 102)
    assert correction.masked == correction.wanted == (1, 2, 3)
    assert (continuation.tokens, continuation.stem) == ((MASK,) * 3, 4)
    assert continuation.masked == continuation.wanted == (0, 1, 2)
    assert (anywhere.tokens, anywhere.masked, anywhere.wanted) == ((MASK, MASK), (0, 1), (1,))
    assert all(row.adapter and not row.causal and row.request == 5 for row in layout.rows[1:])
    assert layout.query_tokens == 4 + 4 + 3 + 2


@given(st.integers(2, 32), st.integers(1, 80))
def test_no_branch_drafts_past_the_cap(block, remaining):
    fitted = fit_branches(TIDAR.branches([1.0] * block, [0] * block), block, remaining)
    assert all(2 <= branch.block <= block and branch.slot + branch.block <= remaining for branch in fitted)
    assert [branch.slot for branch in fitted] == [p for p in range(1, block + 1) if remaining - p >= 2]


def test_a_draft_row_wants_just_what_is_masked():
    half = Draft((1, 2, MASK, 4, MASK), (1.0,) * 5, ((0,) * 5,) * 2, masked=(2, 4))
    (row,) = rows.draft(0, 10, half, adapter=False).rows
    assert row.wanted == row.masked == (2, 4)
    assert not row.causal
    assert not row.adapter


def test_refining_keeps_the_confident_and_always_the_best():
    half = Draft((1, 2, 3, 4), (1.0,) * 4, ((0,) * 4,) * 2, masked=(1, 2, 3))
    assert refine(half, (0.95, 0.2, 0.9), 0.9).masked == (2,)
    assert refine(half, (0.5, 0.6, 0.6), 0.9).masked == (1, 3)
    assert refine(half, (0.1, 0.1, 0.1), 0.05).masked == ()


def test_prefill_picks_only_at_its_end():
    assert rows.prefill(0, 4, (1, 2, 3), picks=False).block == ()
    layout = rows.prefill(0, 4, (1, 2, 3), picks=True)
    assert layout.block == (3,)
    assert tuple(layout.rows[0].wanted) == (2,)
