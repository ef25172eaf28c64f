"""Policies in the loop: whatever they plan, the text is plain decoding's, and what they plan is what runs."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import fake
from tests.engine import test_structures as structures
from tests.engine.device import device_engine, padded_engine
from tests.engine.test_equality import PROMPTS, SAMPLING, SETTINGS, assert_same, decode, model, plain
from tests.engine.wayward import Wayward, wayward
from tests.fake import FakeBackbone, Script, Slip, encode
from tests.toy import toy_model

from recguide.core import MAX_BLOCK, ParameterError, SamplingParams
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.planning import BRANCHES, fitted
from recguide.guidance.fixed import Fixed, whole_blocks
from recguide.guidance.unlearning import Unlearning
from recguide.guidance.view import Branches, Head, Plan
from recguide.llm import LLM
from recguide.speculation.rows import Phase

ANSWER = tuple(encode("the quick brown fox jumps over the lazy dog, and then it naps in the warm sun. " * 3))


def host_engine(backbone, decoder=decode, **config):
    return Engine(backbone, decoder, EngineConfig(**config))


MAKERS = (host_engine, device_engine, padded_engine)
CONFIGS = (
    {},
    {"batching": "bucketed"},
    {"batching": "padded"},
    {"max_batch_tokens": 24},
    {"page_size": 2, "kv_cache_tokens": 96},
    {"batching": "bucketed", "max_batch_tokens": 20},
)


def planned(make, family, walk, config, **params):
    machine = make(model(family), decode, **config)
    policy = wayward(machine, walk)
    return fake.complete(machine, PROMPTS, SamplingParams(max_tokens=24, **params)), policy


@settings(max_examples=30, deadline=None)
@given(
    walk=st.integers(0, 2**32 - 1),
    setting=st.sampled_from(sorted(SETTINGS)),
    sampling=st.sampled_from(sorted(SAMPLING)),
    config=st.sampled_from(CONFIGS),
    make=st.sampled_from(MAKERS),
)
def test_a_random_walk_over_plans_writes_plain_text(walk, setting, sampling, config, make):
    params = {**SETTINGS[setting], **SAMPLING[sampling]}
    completions, _ = planned(make, "llama", walk, config, **params)
    assert_same(completions, plain("llama", setting, sampling))


@pytest.mark.parametrize("structure", ["regex", "schema"])
@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_a_structure_is_kept_whatever_is_planned(structure, sampling):
    llm = LLM(toy_model())
    wayward(llm.engine, 1)
    completions = structures.complete(
        structures.STRUCTURES[structure], "recguide", None, llm, **structures.SAMPLING[sampling]
    )
    assert_same(completions, structures.plain(structure, sampling))


@pytest.mark.parametrize("policy", ["price", "paper", "fixed", "fixed-8", "ar"])
@pytest.mark.parametrize("sampling", SAMPLING)
def test_every_policy_writes_plain_text(policy, sampling):
    machine = device_engine(model("nemotron_labs_diffusion"), decode, policy=policy)
    completions = fake.complete(machine, PROMPTS, SamplingParams(max_tokens=24, **SAMPLING[sampling]))
    assert_same(completions, plain("nemotron_labs_diffusion", "plain", sampling))


def test_requests_of_several_policies_and_methods_share_forwards():
    machine = device_engine(model("llama"), decode)
    wayward(machine, 7)
    each = [
        SamplingParams(max_tokens=24),
        SamplingParams(max_tokens=24, policy="fixed-6"),
        SamplingParams(max_tokens=24, policy="ar"),
        SamplingParams(max_tokens=24, method="linear", block_size=8),
        SamplingParams(max_tokens=24, max_block_size=3),
    ]
    requests = [machine.add(prompt, params)[0] for prompt, params in zip(PROMPTS, each, strict=True)]
    fake.run(machine)
    assert_same([request.completion() for request in requests], plain("llama", "plain", "greedy"))
    assert max(requests[2].stats.blocks) == 1
    assert max(requests[4].stats.blocks) <= 3 < max(requests[1].stats.blocks) <= 6


# --- what is planned is what runs ---------------------------------------------------------------------------


def scripted(count, slips=(), **config):
    """An engine of as many requests as wanted, drafts of which slip at these distances from their prompts."""
    scripts = [Script((200 + number, 65, 66, 67), ANSWER, dict(slips)) for number in range(count)]
    machine = Engine(FakeBackbone(*scripts), fake.decode, EngineConfig(**config))
    return machine, [script.prompt for script in scripts]


def spied(machine):
    """Collects, for each forward, what every request of it was planned to do and its layout."""
    forwards = []
    launch = machine.runner.launch

    def spy(plan):
        forwards.append([(machine._planner.planned.turns.get(one.request), one.layout) for one in plan])
        return launch(plan)

    machine.runner.launch = spy
    return forwards


def test_rows_are_those_of_the_plan_and_their_outcome_is_told():
    slips = {at: Slip(second_right=at % 2 == 0, third_right=at % 2 == 1) for at in range(9, 300, 7)}
    machine, prompts = scripted(3, slips)
    policy, forwards = wayward(machine, 3), spied(machine)
    fake.complete(machine, prompts, SamplingParams(max_tokens=150))
    for turn, layout in (pair for forward in forwards for pair in forward):
        if turn is None:
            continue
        branches = [(branch.slot, branch.block) for branch in layout.branches]
        if layout.phase.value == "verify":
            assert len(layout.block) == turn.verified
            assert branches == [(slot, block) for slot, _, block in turn.branches]
            assert [row.stem for row in layout.rows[1:]] == [slot for slot, _ in branches]
            for branch, (slot, rank, _) in zip(layout.branches, turn.branches, strict=True):
                assert branch.head == (layout.draft.candidates[rank - 1][slot] if rank else None)
        elif layout.phase.value == "draft":
            assert [len(row.tokens) for row in layout.rows] == [turn.block]
    assert sum(len(view) for view, _, _ in policy.told) > 100
    for view, plan, outcome in policy.told:
        assert (outcome.acceptance <= np.maximum(plan.verified, 0)).all()
        assert ((outcome.acceptance == 0) == (plan.verified == 0)).all()
        assert (outcome.rank[outcome.acceptance >= np.maximum(view.draft, 1)] == 0).all()
    heads = np.concatenate([outcome.head for _, _, outcome in policy.told])
    ranks = np.concatenate([outcome.rank for _, _, outcome in policy.told])
    assert {*heads.tolist()} == {-1, 0, 1}
    assert {*ranks.tolist()} == {0, 1, 2}


def test_a_slot_with_two_corrections_keeps_the_one_that_is_right():
    """Both candidates of a slot have branches; the text is as long as the draft behind the right one."""
    at = 6
    machine, prompts = scripted(1, {4 + at: Slip(second_right=False, third_right=True)})
    forwards = spied(machine)

    class Both(Wayward):
        def _request(self, draft, remaining):
            del remaining
            if not draft:
                return 8, 0, []
            return 0, draft, [(slot, rank, 8) for slot in range(1, min(draft, 8)) for rank in (1, 2)]

    machine._policies._made[machine.config.policy] = Both(0)
    (request,) = machine.add(prompts[0], SamplingParams(max_tokens=15))
    fake.run(machine)
    assert request.completion().text == fake.decode(ANSWER[:15])
    assert request.stats.reused == {"correction": 1}
    assert request.stats.covered == {"correction": 1}
    # The prompt's end emits one token and a draft's rounds at + 8 of them: no other draft was needed.
    assert [len(layout.branches) for forward in forwards for _, layout in forward][:3] == [0, 0, 14]
    assert request.stats.acceptance == {at: 1, 8: 1}


def test_where_branches_are_too_many_better_ranks_and_earlier_slots_stay():
    """A continuation always does."""
    mine = [(slot, rank) for slot in range(1, 12) for rank in (1, 2)] + [(12, int(Head.CONTINUATION))]
    rows = [(0, 3, 1, 8)] + [(1, slot, head, 8) for slot, head in mine]
    plan = Plan(np.zeros(2, np.int64), np.full(2, 12), Branches(*np.array(rows, np.int64).T))
    branches = fitted(plan, [MAX_BLOCK, MAX_BLOCK]).branches
    found = [*zip(branches.request.tolist(), branches.slot.tolist(), branches.head.tolist(), strict=True)]
    kept = sorted([(slot, 1) for slot in range(1, 12)] + [(slot, 2) for slot in range(1, 5)])
    assert found == [(0, 3, 1), *((1, *one) for one in kept), (1, 12, 0)]
    assert len(kept) + 1 == BRANCHES


def test_every_step_of_a_policy_is_timed():
    machine, prompts = scripted(2)
    policy, forwards = wayward(machine, 5), spied(machine)
    began = time.perf_counter()
    fake.complete(machine, prompts, SamplingParams(max_tokens=40))
    taken = 1e3 * (time.perf_counter() - began)
    assert len(policy.took) == len(forwards)
    assert all(ms > waited > 0 for _, ms, waited in policy.took)
    assert sum(ms for _, ms, _ in policy.took[1:]) <= taken
    assert [plan.all_tokens for plan, _, _ in policy.took][1:] == [
        sum(layout.query_tokens for _, layout in forward) for forward in forwards
    ][1:]


@pytest.mark.parametrize("batching", ["padded", "bucketed"])
def test_a_forward_that_is_not_as_planned_is_not_timed(batching):
    """Padding, and who waits, make it another one than the plan's."""
    machine, prompts = scripted(3, batching=batching)
    policy, forwards = wayward(machine, 5), spied(machine)
    fake.complete(machine, prompts, SamplingParams(max_tokens=40))
    timed = [plan.all_tokens for plan, _, _ in policy.took]
    assert policy.told
    assert len(timed) < len(forwards) / (1 if batching == "bucketed" else 99)


def test_steps_for_which_graphs_are_captured_are_not_timed():
    """They teach all the same: only their time says nothing."""
    machine = padded_engine(FakeBackbone(Script((200, 65, 66, 67), ANSWER)), fake.decode)
    policy, graphs = wayward(machine, 5), machine.runner._replays
    met, seldom, forward = Counter(), [0], graphs.forward

    def watched(bucket, inputs):
        logits, landing = forward(bucket, inputs)
        met[bucket] += 1
        seldom[0] += met[bucket] < 3
        return logits, replace(landing, first=met[bucket] < 3)

    graphs.forward = watched
    fake.complete(machine, [(200, 65, 66, 67)], SamplingParams(max_tokens=60))
    assert 0 < seldom[0] < met.total()
    assert len(policy.took) == met.total() - seldom[0]
    timed = [plan for plan, *_ in policy.took if (plan.verified > 1).any()]
    assert len([plan for _, plan, _ in policy.told if (plan.verified > 1).any()]) > len(timed)


def test_a_device_that_is_given_its_work_piece_by_piece_does_not_wait():
    """A forward without a graph may take as long to launch as to run: that is not the host's time."""

    class Slow(FakeBackbone):
        def forward(self, batch, attend):
            time.sleep(0.03)
            return super().forward(batch, attend)

    machine = device_engine(Slow(Script((200, 65, 66, 67), ANSWER)), fake.decode)
    policy = wayward(machine, 5)
    fake.complete(machine, [(200, 65, 66, 67)], SamplingParams(max_tokens=20))
    assert median(ms for _, ms, _ in policy.took) > 30
    assert median(waited for _, _, waited in policy.took) < 15


@pytest.mark.parametrize("policy", ["price", "paper", "fixed-8"])
def test_nothing_is_drafted_past_the_cap(policy):
    for cap, queries in ((1, 4), (2, 5)):
        machine, prompts = scripted(1, policy=policy)
        fake.complete(machine, prompts, SamplingParams(max_tokens=cap))
        assert machine._backbone.query_tokens == queries


def test_a_shorter_verification_computes_less():
    machine, prompts = scripted(1)
    forwards = spied(machine)
    wayward(machine, 5)
    fake.complete(machine, prompts, SamplingParams(max_tokens=100))
    short = [
        (turn, layout)
        for forward in forwards
        for turn, layout in forward
        if layout.draft is not None and len(layout.block) < len(layout.draft.tokens)
    ]
    assert short
    for turn, layout in short:
        assert layout.query_tokens == turn.verified + sum(block for _, _, block in turn.branches)


def test_buckets_hold_one_block_and_starve_nobody():
    machine, prompts = scripted(6, {position: Slip() for position in range(9, 300, 5)}, batching="bucketed")
    forwards = spied(machine)
    wayward(machine, 11)
    completions = fake.complete(machine, prompts, SamplingParams(max_tokens=80))
    assert [completion.text for completion in completions] == [fake.decode(ANSWER[:80])] * 6
    sizes = set()
    for forward in forwards:
        planned = [(turn, layout) for turn, layout in forward if turn is not None]
        blocks = {
            turn.block if layout.draft is None else len(layout.draft.tokens) for turn, layout in planned
        }
        assert len(blocks) <= 1
        sizes |= blocks
    assert len(sizes) > 5


def test_padding_is_computed_and_changes_no_text():
    slips = {position: Slip() for position in range(9, 300, 5)}
    ragged, prompts = scripted(4, slips)
    padded, _ = scripted(4, slips, batching="padded")
    forwards = spied(padded)
    for machine in (ragged, padded):
        wayward(machine, 2)
    texts = [
        [
            completion.token_ids
            for completion in fake.complete(machine, prompts, SamplingParams(max_tokens=80))
        ]
        for machine in (ragged, padded)
    ]
    assert texts[0] == texts[1]
    assert padded._backbone.query_tokens > ragged._backbone.query_tokens
    for forward in forwards:
        for turn, layout in forward:
            if turn is not None and turn.width and layout.phase.value != "prefill":
                assert layout.query_tokens == turn.width * len(layout.rows)


@pytest.mark.parametrize("policy", ["price", "paper"])
def test_a_mixed_load_uses_more_than_one_block(policy):
    """Some requests draft well and some badly: one block for all would not do."""
    slips = {position: Slip(second_right=False) for position in range(200)}
    scripts = [Script((200 + number, 65), ANSWER, slips if number % 2 else {}) for number in range(6)]
    machine = Engine(FakeBackbone(*scripts), fake.decode, EngineConfig(policy=policy))
    forwards = spied(machine)
    fake.complete(machine, [script.prompt for script in scripts], SamplingParams(max_tokens=120))
    blocks = {len(layout.draft.tokens) for forward in forwards for _, layout in forward if layout.draft}
    assert len(blocks) > 1


@pytest.mark.parametrize("requests", [1, 8])
def test_worthless_drafts_leave_plain_decoding(requests):
    """After a short time no more than probes are drafted: two in a hundred query tokens."""
    worthless = {position: Slip(risky=False, second_right=False) for position in range(1000)}
    machine, prompts = scripted(requests, worthless, max_batch_tokens=256)
    # Forwards of a model that computes nothing are all of the host's time, beside which more tokens are free.
    machine._policies.named("price")._host.add = lambda *_, **__: None
    added = [machine.add(prompt, SamplingParams(max_tokens=400))[0] for prompt in prompts]
    while min(len(request.emitted) for request in added) < 60:
        machine.step()
    tokens, queries = sum(len(request.emitted) for request in added), machine._backbone.query_tokens
    fake.run(machine)
    spent = machine._backbone.query_tokens - queries
    assert spent <= 1.03 * (sum(len(request.emitted) for request in added) - tokens) + 40


def test_plain_steps_of_a_policy_run_ahead():
    machine = padded_engine(model("llama"), decode, policy="ar")
    adopted = []
    adopt = machine._planner.adopt
    machine._planner.adopt = lambda: adopted.append(adopt())
    completions = fake.complete(machine, PROMPTS, SamplingParams(max_tokens=24))
    assert_same(completions, plain("llama", "plain", "greedy"))
    assert len(adopted) > 10


def test_a_plan_that_goes_on_for_ever_forgets_those_that_have_ended():
    machine = padded_engine(model("llama"), decode, policy="ar", max_running=4)
    for prompt in PROMPTS:
        machine.add(prompt, SamplingParams(max_tokens=90))
    for number in range(20):
        machine.add(PROMPTS[number % 3], SamplingParams(max_tokens=3))
    most = 0
    while machine.busy:
        machine.step()
        most = max(most, len(machine._planner.planned.turns))
    assert most <= 4


def test_no_policy_is_told_the_time_of_a_step_in_which_newcomers_prefill():
    told = []

    class Timed(Fixed):
        def timed(self, view, plan, ms, waited_ms, *, late=False):  # noqa: ARG002
            told.append(view.tokens)

    machine = padded_engine(model("llama"), decode)
    machine.plan_by(Timed(1))
    for prompt in PROMPTS:
        machine.add(prompt, SamplingParams(max_tokens=24))
    with machine.recording() as forwards:
        while machine.busy:
            machine.step()
            if len(forwards) in (6, 12):
                machine.add(PROMPTS[0], SamplingParams(max_tokens=1))
    plain_steps = [forward for forward in forwards if Phase.PREFILL not in forward.phases]
    assert told.count(0) == len(plain_steps) < len(forwards) - 2


class Probing(Unlearning):
    """Plain steps, and now and then a draft of the first request.

    `seen` are tokens of views that nobody chooses, `begun` drafts.
    """

    name = "probing"

    def __init__(self, every):
        self.every, self.seen, self.begun = every, [], 0

    def decide(self, view):
        self.seen.append(view.tokens)
        plan = whole_blocks(view, np.ones(len(view), np.int64), Branches.none())
        if len(self.seen) % self.every == 0 and not view.draft.any() and view.remaining[0] > 4:
            plan.block[0], plan.verified[0] = 4, 0
            self.begun += 1
        return plan

    def again(self, requests):
        del requests
        return False


@pytest.mark.parametrize("every", [2, 3, 5])
def test_a_draft_is_begun_as_planned_whoever_joins(every):
    """What was planned while a forward ran holds beside the prompts of newcomers."""
    policy = Probing(every)
    machine = padded_engine(model("llama"), decode, max_running=3)
    machine.plan_by(policy)
    machine.add(PROMPTS[0], SamplingParams(max_tokens=120, ignore_eos=True))
    with machine.recording() as forwards:
        while machine.busy:
            if len(machine._scheduler.running) + len(machine._scheduler.waiting) == 1 and len(forwards) < 60:
                machine.add(PROMPTS[1], SamplingParams(max_tokens=2))
            machine.step()
    drafted = sum(forward.phases[Phase.DRAFT] for forward in forwards)
    assert drafted == policy.begun > 3
    assert 0 < max(policy.seen) <= sum(map(len, PROMPTS[:2]))


# --- what is asked for --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"policy": "cleverest"}, "policy"),
        ({"policy": "fixed-99"}, "block"),
        ({"policy": "price", "method": "linear"}, "policy"),
        ({"policy": "price", "block_size": 8}, "policy"),
        ({"policy": "price", "method": "ar"}, "policy"),
        ({"max_block_size": 4, "method": "ar"}, "max_block_size"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(params, field):
    machine, prompts = scripted(1)
    with pytest.raises(ParameterError) as refused:
        machine.add(prompts[0], SamplingParams(**params))
    assert refused.value.parameter == field


def test_an_engine_says_at_its_start_who_chooses(caplog):
    with caplog.at_level(logging.INFO, "recguide"):
        scripted(1)
        scripted(1, policy="fixed-8", batching="bucketed")
        scripted(1, block_size=16)
    said = [record.message for record in caplog.records if record.message.startswith("method")]
    assert said == [
        "method recguide, policy price, batching ragged",
        "method recguide, policy fixed-8, batching bucketed",
        "method recguide, no policy, B = 16",
    ]


def test_a_named_table_that_does_not_hold_is_refused(tmp_path):
    file = tmp_path / "table.json"
    for field in ("cost_table", "value_table"):
        with pytest.raises(ParameterError, match=field):
            scripted(1, **{field: file})
