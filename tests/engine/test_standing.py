"""What starts before the verdict is made is what the verdict says."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine import test_equality
from tests.engine.device import padded_engine
from tests.engine.test_equality import model
from tests.engine.test_inputs import inputs_of
from tests.engine.test_running_ahead import PAGES, any_alone, assert_idle
from tests.fake import run

from recguide.attention.packing import Flat
from recguide.attention.places import STEM
from recguide.core import SamplingParams
from recguide.engine.docket import docket_of, spans_of
from recguide.engine.judging import _OfOne
from recguide.engine.picking import UnpickableLogits
from recguide.engine.rooms import Limits
from recguide.engine.rounds import Settled, decided
from recguide.engine.scheduler import Scheduled
from recguide.engine.standing import _awaited, _statistics
from recguide.speculation.methods import RECGUIDE, TIDAR
from recguide.speculation.rows import BranchKind, Phase, blank_draft, draft, fit_branches, verify
from recguide.speculation.step import INTEGERS, StepOutput

MASK = 3
HALF = np.float32(0.5)
PROBABILITIES = [0.0, 0.1, 0.25, 0.3, 0.75, 0.8, 1.0, *(np.nextafter(HALF, to) for to in (0, 1)), HALF]
"""Whose differences lie at δ, and a little beside it."""


@st.composite
def outputs(draw, slots):
    """Picks of so many slots."""
    integers = draw(
        st.lists(
            st.lists(st.integers(4, 9), min_size=slots, max_size=slots), min_size=INTEGERS, max_size=INTEGERS
        )
    )
    chance = st.lists(st.sampled_from(PROBABILITIES), min_size=slots, max_size=slots)
    reals = draw(st.lists(chance, min_size=4, max_size=4))
    return StepOutput(np.zeros((1, 9), np.int32), np.array(integers, np.int32), np.array(reals, np.float32))


def request_of(method):
    params = SimpleNamespace(threshold=None, logprobs=None)
    return SimpleNamespace(draft=None, method=method, params=params, finish_reason=None)


def check(request, layout, output, number, verdict):
    """That the draft and its branches are read from the output as the verdict has them."""
    spans = spans_of([Scheduled(request, layout)])
    awaited = _awaited(Scheduled(request, layout), SimpleNamespace(spans=spans, wanted=spans[0][-1].stop))
    drafted = awaited.drafted[number]
    found = verdict.draft
    assert found.tokens[1:] == tuple(output.tokens[drafted].tolist())
    assert awaited.wanted == len(output.tokens)
    assert awaited.seed in (None, found.tokens[0])
    margins, candidates = _statistics(output, drafted)
    assert margins[1:] == list(found.margins[1:])
    assert candidates[1:] == list(found.candidates[0][1:])
    for method in (RECGUIDE, TIDAR):
        assert method.branches(margins, candidates) == method.branches(found.margins, found.candidates[0])


@given(st.integers(2, 9), st.data())
def test_a_draft_is_read_as_it_is_decided(block, data):
    request, output = request_of(RECGUIDE), data.draw(outputs(block - 1))
    layout = draft(0, 5, blank_draft(8, block, MASK), adapter=True)
    verdict = decided(Scheduled(request, layout), [slice(0, block - 1)], _OfOne(output), None)
    check(request, layout, output, 0, verdict)


@given(st.integers(2, 6), st.sampled_from([RECGUIDE, TIDAR]), st.integers(3, 20), st.data())
def test_the_draft_of_a_reused_branch_is_read_as_it_is_decided(block, method, left, data):
    margins = data.draw(st.lists(st.sampled_from([0.2, 0.8]), min_size=block, max_size=block))
    branches = fit_branches(method.branches(margins, range(4, 4 + block)), block, left)
    if not branches:
        return
    before = blank_draft(8, block, MASK)
    layout = verify(0, 5, before.tokens, branches, mask=MASK, adapter=True, draft=before)
    request = request_of(method)
    (spans,) = spans_of([Scheduled(request, layout)])
    output = data.draw(outputs(spans[-1].stop))
    number = data.draw(st.integers(0, len(branches) - 1))
    branch, span = branches[number], spans[1 + number]
    last = branch.head if branch.kind is BranchKind.CORRECTION else int(output.tokens[span.start])
    said = Settled(branch.slot, branch.slot, 0, number, number, [7] * (branch.slot - 1) + [last])
    verdict = decided(Scheduled(request, layout), spans, _OfOne(output), said)
    assert verdict.draft.tokens[0] == last
    check(request, layout, output, number, verdict)


# --- in an engine -------------------------------------------------------------------------------------------


def inputs_noted(machine):
    """What is filled in for each forward that starts, while it runs."""
    noted, go = [], machine.runner.go

    def go_and_note(ready):
        noted.append((ready.inputs.room, ready.inputs.saved()))
        return go(ready)

    machine.runner.go = go_and_note
    return noted


def check_filled(machine, room, saved):
    """That this is what the rows of the forward that runs fill in, as they are known by now."""
    plan = machine._flight.plan
    layout, request = plan[0].layout, plan[0].request
    table = request.table.array
    flat = Flat(layout.rows, [table], machine.runner.pool.page_size)
    _, judged = docket_of(plan, room.settle)
    fresh, filled = inputs_of(room), inputs_of(room)
    fresh.fill(flat, [table], [request.sampling], judged)
    filled.restore(saved)
    np.testing.assert_array_equal(filled.blocks, fresh.blocks)
    np.testing.assert_array_equal(filled._arrays["facts"][:STEM], fresh._arrays["facts"][:STEM])
    tokens, rows = flat.tokens, len(layout.rows)
    np.testing.assert_array_equal(filled.tokens[:tokens], fresh.tokens[:tokens])
    np.testing.assert_array_equal(filled.begins(rows), fresh.begins(rows))
    held = -(-(request.cached + len(layout.block)) // room.batch.page_size)
    np.testing.assert_array_equal(filled._arrays["block_tables"][0, :held], table[:held])
    for name in ("seed", "slot", "temperature", "draft"):
        of_slots = getattr(filled._slots, name)[: flat.wanted], getattr(fresh._slots, name)[: flat.wanted]
        np.testing.assert_array_equal(*of_slots, name)
    assert machine._flight.prefix_tokens == request.cached == layout.rows[0].prefix


@pytest.mark.parametrize("seed", range(6))
def test_every_round_of_a_request_that_is_alone_runs_as_the_verdict_lays_it_out(seed):
    random = Random(seed)
    limits = Limits(tokens=random.choice((16, 64)), requests=4, length=256, stops=6)
    machine = padded_engine(
        model("llama"), test_equality.decode, limits=limits, page_size=random.choice(PAGES)
    )
    noted, started, go = inputs_noted(machine), [0], machine._standing.go

    def go_and_count(landed):
        flight = go(landed)
        started[0] += flight is not None
        return flight

    machine._standing.go = go_and_count
    while started[0] < 20:
        prompt, params = any_alone(random)
        params = replace(params, method=random.choice(("recguide", "tidar")))
        (request,) = machine.add(prompt, params)
        while machine.busy:
            machine.step()
            if machine._flight is None or request.finish_reason is not None:
                continue
            assert machine._flight.plan[0].request is request
            layout = machine._flight.plan[0].layout
            if layout.phase is Phase.DRAFT or layout.draft is not None:
                check_filled(machine, *noted[-1])
        assert_idle(machine)


@pytest.mark.parametrize("turn", range(5, 13))
def test_nothing_starts_behind_picks_that_are_bad(turn):
    machine = padded_engine(model("llama"), test_equality.decode)
    pick, started, go, turns = machine.runner._picker, [], machine._standing.go, 0

    def pick_ill(logits, slots):
        nonlocal turns
        turns += 1
        picks = pick(logits, slots)
        return replace(picks, bad=torch.ones_like(picks.bad)) if turns == turn else picks

    def go_and_note(landed):
        started.append(go(landed))
        return started[-1]

    run_by = machine.runner._run
    machine.runner._run = partial(run_by.func, *run_by.args[:2], pick_ill)
    machine._standing.go = go_and_note
    params = SamplingParams(max_tokens=80, ignore_eos=True, method="recguide", block_size=3)
    (request,) = machine.add((4, 5, 6), params)
    run(machine)
    assert isinstance(request.error, UnpickableLogits)
    assert turns == turn
    assert started[-1] is None
    assert_idle(machine)
