"""Settling from one block of words into another: on the host and by the kernel, against the plain rules."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.speculation.test_settle import TOKENS, expected, one_request

from recguide.core import CANDIDATES, RecGuideError
from recguide.speculation.picks import Picks
from recguide.speculation.rows import Branch, BranchKind
from recguide.speculation.step import (
    VERDICT,
    Judged,
    SettleShape,
    SettleTable,
    StepOutput,
    settle_on_device,
    settle_step,
)

SHAPE = SettleShape(requests=6, block=6, stops=3, branches=4)
REALS = ("p1", "p2", "entropy", "logprobs")
on_device = pytest.param(settle_on_device, id="kernel")
SETTLERS = pytest.mark.parametrize("settler", [pytest.param(settle_step, id="host"), on_device])


def picks_of(tokens, seed=0):
    g = torch.Generator().manual_seed(seed)
    return Picks(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        candidates=torch.randint(0, 9, (CANDIDATES, len(tokens)), generator=g),
        bad=torch.rand(len(tokens), generator=g) < 0.3,
        **{name: torch.randn(len(tokens), generator=g) for name in REALS},
    )


def run(settler, judged, tokens, shape=SHAPE, device="cpu"):
    """The output of a step, both buffers dirty beforehand."""
    words = np.full(shape.words, 77, dtype=np.int32)
    shape.fill(words, judged)
    picks = picks_of(tokens)
    picks = Picks(**{name: getattr(picks, name).to(device) for name in Picks.__slots__})
    out = torch.full((shape.output_words(len(tokens)),), 55, dtype=torch.int32, device=device)
    settler(picks, SettleTable(shape, torch.from_numpy(words).to(device)), out)
    return picks, StepOutput.read(out.cpu().numpy(), shape, len(tokens))


@st.composite
def one_case(draw):
    """A case of test_settle, and which of its branches' heads were predicted rather than tried."""
    case = draw(one_request())
    width = len(case["branches"])
    case["predicted"] = draw(st.lists(st.booleans(), min_size=width, max_size=width))
    return case


def laid_out(cases, before):
    """Judged requests and the picks of all slots; predicted heads lie among the picks."""
    judged, tokens = [], list(before)
    for case in cases:
        branches, heads = [], []
        pick = len(tokens)
        tokens += case["picks"]
        for (slot, head), predicted in zip(case["branches"], case["predicted"], strict=True):
            if head == -1:
                branches.append(Branch(BranchKind.ANY, slot, 2))
            elif predicted:
                branches.append(Branch(BranchKind.CONTINUATION, slot, 2))
            else:
                branches.append(Branch(BranchKind.CORRECTION, slot, 2, head))
            heads.append(len(tokens))
            tokens.append(head if head >= 0 else 3)
        judged.append(
            Judged(case["block"], pick, case["cap"], case["trusted"], sorted(case["stops"]), branches, heads)
        )
    return judged, tokens


def check(cases, output):
    for at, case in enumerate(cases):
        tokens, accepted, stopped, capped, covered, reused = expected(case)
        said = output.verdicts[at].tolist()
        assert said[:VERDICT] == [accepted, len(tokens), stopped, covered, reused]
        assert said[VERDICT : VERDICT + len(tokens)] == tokens
        assert (len(tokens) == case["cap"]) == capped
        assert output.stopped[at] == stopped
    for inert in output.verdicts[len(cases) :, :VERDICT].tolist():
        assert inert == [0, 0, 0, -1, -1]


@SETTLERS
def test_a_step_is_settled_by_the_rules(settler):
    @settings(max_examples=60, deadline=None)
    @given(st.lists(one_case(), max_size=6), st.lists(TOKENS, min_size=1, max_size=5))
    def follows(cases, before):
        judged, tokens = laid_out(cases, before)
        picks, output = run(settler, judged, tokens)
        check(cases, output)
        said, *candidates, bad = output.integers.tolist()
        assert (said, bad) == (picks.tokens.tolist(), picks.bad.tolist())
        assert candidates == picks.candidates.tolist()
        for name, found in zip(REALS, output.reals, strict=True):
            assert np.array_equal(found, getattr(picks, name).numpy())
        assert output.tokens.tolist() == picks.tokens.tolist()
        assert output.bad.tolist() == picks.bad.tolist()

    follows()


@SETTLERS
def test_every_place_of_a_stop_and_the_cap_in_a_full_block(settler):
    shape = SettleShape(requests=32, block=8, stops=2, branches=2)
    cases = [(stop, cap) for stop in range(11, 20) for cap in range(1, 10)]
    for start in range(0, len(cases), 32):
        some = cases[start : start + 32]
        branches = (Branch(BranchKind.CORRECTION, 3, 2, 13), Branch(BranchKind.CONTINUATION, 8, 2))
        judged = [Judged(range(10, 18), 0, cap, False, (stop,), branches, (-1, 7)) for stop, cap in some]
        _, output = run(settler, judged, range(11, 19), shape)
        for at, (stop, cap) in enumerate(some):
            first = stop - 10
            reused = 1 if first > 8 and cap > 8 else -1
            said = output.verdicts[at, :VERDICT].tolist()
            assert said == [8, min(first, cap, 8), first <= min(cap, 8), 1, reused]


@SETTLERS
def test_a_step_without_branches_and_more_slots_than_one_program_packs(settler):
    shape = SettleShape(requests=2, block=1, stops=1, branches=0)
    picks, output = run(settler, [Judged((4,), 511, 9, False, ())], [*range(511), 77], shape)
    assert output.verdicts[0].tolist() == [1, 1, 0, -1, -1, 77]
    assert np.array_equal(output.reals[-1], picks.logprobs.numpy())
    assert output.tokens.tolist() == picks.tokens.tolist()


def test_what_does_not_fit_is_refused():
    small = SettleShape(requests=1, block=2, stops=1, branches=0)
    words = np.zeros(small.words, dtype=np.int32)
    fitting = Judged((1, 2), 0, 5, False, (3,))
    small.fill(words, [fitting])
    assert small.fits(fitting)
    branch = Branch(BranchKind.ANY, 1, 2)
    for wrong in (
        fitting._replace(block=(1, 2, 3)),
        fitting._replace(stops=(1, 2)),
        fitting._replace(branches=(branch,), heads=(-1,)),
    ):
        assert not small.fits(wrong)
        with pytest.raises(RecGuideError, match="do not fit"):
            small.fill(words, [wrong])
    with pytest.raises(RecGuideError, match="2 requests"):
        small.fill(words, [fitting, fitting])


@SETTLERS
def test_a_request_may_have_thousands_of_stop_tokens_beside_one_that_has_few(settler):
    shape = SettleShape(requests=2, block=1, stops=3000, branches=0)
    stops = range(100, 3100)
    judged = [Judged((4,), 0, 9, False, stops), Judged((4,), 1, 9, False, (5,))]
    _, output = run(settler, judged, [3099, 3099], shape)
    assert output.stopped.tolist() == [1, 0]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2**32), min_size=1, max_size=6))
def test_a_table_of_many_is_that_of_few(seeds):
    """Written column by column or word by word, over whatever lay there before."""
    judged = []
    for seed in seeds:
        draw = np.random.default_rng(seed)
        branches = [
            Branch(kind, 1 + at, 4, int(draw.integers(9)) if kind is BranchKind.CORRECTION else None)
            for at, kind in enumerate(draw.permutation(list(BranchKind))[: draw.integers(4)])
        ]
        block = tuple(draw.integers(9, size=draw.integers(1, 7)).tolist())
        stops = tuple(draw.integers(9, size=draw.integers(4)).tolist())
        heads = draw.integers(30, size=len(branches)).tolist()
        judged.append(
            Judged(block, int(draw.integers(50)), 5, bool(draw.integers(2)), stops, branches, heads)
        )
    few, many = (np.full(SHAPE.words + 5, 77, np.int32) for _ in range(2))
    SHAPE._fill_few(few, judged)
    SHAPE._fill_many(many, judged)
    assert few.tolist() == many.tolist()


@pytest.mark.parametrize("change", [{"block": (1,) * 7}, {"stops": (1,) * 4}, {"branches": (1,) * 5}])
def test_many_that_do_not_fit_are_refused(change):
    one = Judged((1, 2), 0, 5, False, (3,))._replace(**change)
    shape = SettleShape(requests=30, block=6, stops=3, branches=4)
    with pytest.raises(RecGuideError, match="do not fit"):
        shape.fill(np.zeros(shape.words, np.int32), [one] * 25)
