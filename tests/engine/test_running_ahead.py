"""What runs ahead of the host changes nobody's text, whatever happens meanwhile."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
from tests.engine import test_equality
from tests.engine.device import padded_engine
from tests.engine.test_equality import model
from tests.fake import EOS, FakeBackbone, Script, decode, encode, run

from recguide.core import FinishReason, SamplingParams
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.errors import OutOfMemory
from recguide.engine.rooms import Limits
from recguide.guidance.fixed import Fixed, whole_blocks
from recguide.guidance.unlearning import Unlearning
from recguide.guidance.view import Branches, Head, Plan
from recguide.speculation.rows import Phase

ANSWER = tuple(encode("the quick brown fox jumps over the lazy dog, and then it naps in the warm sun."))
SCRIPTS = [Script((200 + at, *encode("Say it: ")), ANSWER[at:]) for at in range(4)]
PAGES = (1, 2, 4, 8)
SMALL = Limits(tokens=16, requests=8, length=256)


def assert_idle(machine):
    pool = machine.runner.pool
    assert not machine.busy
    assert pool.used_pages == 0
    assert pool.free_pages + pool.cached_pages == pool.pages


def started(machine):
    """Lists that tell, while it runs, of forwards that were made ahead, and of those that were not."""
    ahead, others, go, launch = [], [], machine._ahead.go, machine._launch

    def go_and_note(landed):
        flight = go(landed)
        if flight is not None:
            ahead.append(flight)
        return flight

    machine._ahead.go = go_and_note
    machine._launch = lambda: others.append(launch())
    return ahead, others


@pytest.mark.parametrize("requests", [1, 4])
@pytest.mark.parametrize(
    ("how", "waits"),
    [
        ({"method": "ar"}, 5),
        ({"method": "linear", "block_size": 8}, 5),
        ({"policy": "fixed-8"}, 2),  # which needs no outcome
    ],
)
def test_rounds_without_branches_wait_for_the_host_only_at_their_beginning_and_end(how, waits, requests):
    machine = padded_engine(FakeBackbone(*SCRIPTS), decode)
    ahead, others = started(machine)
    params = SamplingParams(max_tokens=60, **how)
    added = [machine.add(one.prompt, params)[0] for one in SCRIPTS[:requests]]
    run(machine)
    for request, script in zip(added, SCRIPTS, strict=False):
        assert request.completion().token_ids == script.answer[:60]
    assert_idle(machine)
    assert len(ahead) > 10
    assert len(others) <= waits


class Heedful:
    """A policy that sees to what it is told; `told` counts that."""

    def __init__(self, policy):
        self._policy, self.told = policy, 0

    def __getattr__(self, name):
        return getattr(self._policy, name)

    def observe(self, view, plan, outcome):
        del plan, outcome
        self.told += 1
        assert view.margins.shape[1] >= view.draft.max(), "what is told of a draft has its margins"


@pytest.mark.parametrize("most", range(9, 24))
def test_what_was_planned_behind_a_forward_that_failed_is_not_taken_for_what_follows(most):
    """Near their caps drafts are verified by a slot each, which looks like plain steps of these requests."""
    machine, policy = padded_engine(FakeBackbone(*SCRIPTS), decode, kv_cache_tokens=4096), Heedful(Fixed(8))
    machine.plan_by(policy)
    requests = [machine.add(one.prompt, SamplingParams(max_tokens=most))[0] for one in SCRIPTS]
    newcomers, failed, go = [], [], machine.runner.go

    def go_and_fail_once(ready):
        flight = go(ready)
        phases = [one.layout.phase for one in flight.plan]

        def land():
            if not failed and Phase.DRAFT in phases and Phase.PREFILL in phases:
                failed.append([request.remaining for request in requests])
                if min(failed[0]) > 3:
                    failed.clear()
                else:
                    raise MemoryError
            return flight.land()

        return replace(flight, land=land)

    machine.runner.go = go_and_fail_once
    while machine.busy:
        if any(request.finish_reason is None for request in requests):
            prompt = (201, *range(4, 70), *range(4, 5 + len(newcomers) % 50))
            newcomers += machine.add(prompt, SamplingParams(max_tokens=2, method="ar"))
        machine.step()
    assert failed
    assert policy.told
    for request, script in zip(requests, SCRIPTS, strict=True):
        assert request.completion().token_ids == script.answer[:most]
    assert_idle(machine)


def test_a_long_prompt_goes_on_beside_drafts_that_run_ahead():
    tale = Script((255, *encode("once upon a time " * 9)), ANSWER)
    machine = padded_engine(FakeBackbone(SCRIPTS[0], tale), decode, max_batch_tokens=24)
    ahead, others = started(machine)
    added = [machine.add(SCRIPTS[0].prompt, SamplingParams(max_tokens=60, method="linear", block_size=8))[0]]
    for _ in range(3):
        machine.step()
    before = len(others)
    long = machine.add(tale.prompt, SamplingParams(max_tokens=2))[0]
    run(machine)
    assert added[0].completion().token_ids == SCRIPTS[0].answer[:60]
    assert long.completion().token_ids == ANSWER[:2]
    assert_idle(machine)
    chunks = [
        one.layout for flight in ahead for one in flight.plan if one.request is long and not one.layout.block
    ]
    assert sum(len(layout.rows[0].tokens) for layout in chunks) > 100
    assert len(others) - before <= 4


@pytest.mark.parametrize(("method", "policy"), [("linear", None), (None, "fixed-8")])
def test_whoever_nears_its_cap_holds_nobody_up(method, policy):
    """It drafts what fits whatever comes of its last block, or takes a step."""
    machine = padded_engine(FakeBackbone(*SCRIPTS), decode)
    ahead, others = started(machine)
    how = {"method": method, "block_size": 8} if method else {"policy": policy}
    caps = (60, 41, 28, 13)
    added = [
        machine.add(script.prompt, SamplingParams(max_tokens=cap, **how))[0]
        for script, cap in zip(SCRIPTS, caps, strict=True)
    ]
    run(machine)
    for request, script, cap in zip(added, SCRIPTS, caps, strict=True):
        assert request.completion().token_ids == script.answer[:cap]
    assert_idle(machine)
    assert len(ahead) > 10
    # The last one that runs alone waits for what is left.
    assert len(others) <= (5 if method else 2)


def test_a_draft_is_made_ahead_beside_branches_too_and_dropped_where_one_is_reused():
    machine = padded_engine(model("llama"), test_equality.decode, limits=SMALL)
    ahead, _ = started(machine)
    prompt = (4, 5, 6)
    params = {"max_tokens": 60, "temperature": 0.8, "seed": 3}
    params |= {"ignore_eos": True}
    request = machine.add(prompt, SamplingParams(**params, method="recguide", block_size=3))[0]
    run(machine)
    assert [request.completion().token_ids] == [one.token_ids for one in alone(prompt, tuple(params.items()))]
    drafts = sum(flight.plan[0].layout.phase is Phase.DRAFT for flight in ahead)
    assert drafts > 5
    assert sum(request.stats.reused.values()) > 2


@pytest.mark.parametrize("method", ["recguide", "tidar"])
@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.8, "seed": 3}])
def test_rounds_with_branches_of_shapes_that_have_been_met_are_not_laid_out_again(method, sampled):
    """And what is emitted, and counted, is what it is where each of them is."""
    params = {"max_tokens": 80, "ignore_eos": True, **sampled}
    prompts = [(4, 5, 6), (9, 8)]
    machine, other = (
        padded_engine(model("llama"), test_equality.decode, limits=SMALL, page_size=4) for _ in range(2)
    )
    other._standing.go = lambda _: None
    started, go = [], machine._standing.go

    def go_and_note(landed):
        started.append(go(landed))
        return started[-1]

    machine._standing.go = go_and_note
    for prompt in prompts:
        found, expected = (
            one.add(prompt, SamplingParams(**params, method=method, block_size=3))[0]
            for one in (machine, other)
        )
        for one in (machine, other):
            run(one)
            assert_idle(one)
        assert found.completion() == expected.completion()
        (said,) = alone(prompt, tuple(params.items()))
        assert found.completion().token_ids == said.token_ids
    flights = [flight for flight in started if flight is not None]
    assert len(flights) > 20
    assert all(flight.plan[0].layout.branches for flight in flights)


def test_shapes_stand_where_a_draft_is_verified_before_it_is_known():
    machine = padded_engine(model("llama"), test_equality.decode, limits=SMALL)
    go, list_work = machine._standing.go, machine.runner.list_work
    late, started = [], 0

    def note_and_list(ready):
        late.append(ready)
        return list_work(ready)

    def go_and_note(landed):
        nonlocal started
        late.clear()
        flight = go(landed)
        if flight is not None:
            started += 1
            assert not late
        return flight

    machine.runner.list_work, machine._standing.go = note_and_list, go_and_note
    params = SamplingParams(max_tokens=80, ignore_eos=True, method="recguide", block_size=3)
    machine.add((4, 5, 6), params)
    run(machine)
    assert started > 5


def test_of_a_draft_that_reaches_past_the_cap_no_more_than_the_seed_is_verified_and_it_is_told_as_a_round():
    """Its block is as long as if half of the block before had passed, and all of it has."""
    told = []

    class Watched(Fixed):
        def observe(self, view, plan, outcome):
            told.append((view, plan, outcome))

    machine = padded_engine(FakeBackbone(*SCRIPTS), decode)
    machine.plan_by(Watched(8))
    ahead, _ = started(machine)
    capped, other = (
        machine.add(script.prompt, SamplingParams(max_tokens=cap))[0]
        for script, cap in zip(SCRIPTS, (10, 60), strict=False)
    )
    run(machine)
    for request, script, cap in zip((capped, other), SCRIPTS, (10, 60), strict=False):
        assert request.completion().token_ids == script.answer[:cap]
    assert_idle(machine)
    rows = [one.layout for flight in ahead for one in flight.plan if one.request is capped]
    assert [len(layout.rows[0].tokens) for layout in rows] == [8, 5, 1]
    assert capped.stats.acceptance == {8: 1, 1: 1}
    for view, plan, outcome in told:
        assert view.margins.shape[1] >= view.draft.max()
        assert (outcome.acceptance == plan.verified).all()


class ShortDraftsAndLongBranches(Unlearning):
    """Drafts of two slots, and beside each a continuation of many; ahead it plans another draft of two."""

    name = "short and long"

    def decide(self, view):
        draft, left = view.draft, view.remaining
        at = np.flatnonzero((draft > 0) & (left > draft + 1))
        block = np.minimum(24, left - draft)[at]
        plan = self._begun(view)
        return replace(plan, branches=Branches(at, draft[at], np.full_like(at, Head.CONTINUATION), block))

    def ahead(self, view):
        return None if view.draft.any() else self._begun(view)

    def _begun(self, view):
        begins = (view.draft == 0) & (view.remaining > 1)
        verified = np.maximum(1, np.minimum(view.draft, view.remaining))
        return Plan(np.where(begins, 2, 0), np.where(begins, 0, verified), Branches.none())


def test_a_reused_branch_has_pages_though_a_short_draft_was_planned_ahead_beside_it():
    machine = padded_engine(FakeBackbone(*SCRIPTS), decode, page_size=1)
    machine.plan_by(ShortDraftsAndLongBranches())
    request = machine.add(SCRIPTS[0].prompt, SamplingParams(max_tokens=60))[0]
    run(machine)
    assert request.completion().token_ids == SCRIPTS[0].answer[:60]
    assert sum(request.stats.reused.values()) > 0
    assert max(request.stats.blocks) == 24
    assert_idle(machine)


def any_alone(random):
    """A prompt, and how it is continued, of a request that nothing is planned for."""
    params = {"max_tokens": random.choice((5, 17, 33, 60)), "ignore_eos": random.random() < 0.6}
    params["method"] = random.choice(("recguide", "recguide", "tidar", "linear"))
    params["block_size"] = random.choice((2, 3, 4, 5, 8))
    odd = (
        {"temperature": random.choice((0.5, 0.9)), "seed": random.randrange(9)},
        {"stop_token_ids": tuple(random.sample(range(4, 32), random.choice((1, 2, 5))))},
        {"logprobs": 0},
    )
    for each in odd:
        params |= each if random.random() < 0.4 else {}
    return tuple(random.randrange(4, 32) for _ in range(random.choice((1, 3, 9)))), SamplingParams(**params)


@pytest.mark.parametrize("seed", range(4))
def test_one_request_after_another_is_told_and_counted_as_where_nothing_runs_ahead(seed):
    """Shapes come again with other sampling seeds, stop tokens, caps and pages."""
    random = Random(seed)
    limits = Limits(tokens=random.choice((16, 64)), requests=4, length=256, stops=random.choice((2, 6)))
    page_size = random.choice(PAGES)
    machine, other = (
        padded_engine(model("llama"), test_equality.decode, limits=limits, page_size=page_size)
        for _ in range(2)
    )
    other._standing.go = other._ahead.go = lambda _: None
    reports = [[], []]
    machine.observer, other.observer = (rounds.append for rounds in reports)
    for _ in range(5):
        prompt, params = any_alone(random)
        found, expected = (one.add(prompt, params)[0] for one in (machine, other))
        for one in (machine, other):
            run(one)
            assert_idle(one)
        assert found.completion() == expected.completion()
        assert found.inbox == expected.inbox
    ran, laid_out = ([one for report in told for one in report.rounds] for told in reports)
    assert ran == laid_out


def test_rounds_go_on_where_there_is_no_memory_to_keep_their_shapes():
    machine = padded_engine(model("llama"), test_equality.decode, limits=SMALL)

    def own_inputs(_):
        raise MemoryError

    machine.runner._replays.own_inputs = own_inputs
    params = {"max_tokens": 40, "ignore_eos": True}
    request = machine.add((4, 5, 6), SamplingParams(**params, method="recguide", block_size=3))[0]
    run(machine)
    assert [request.completion().token_ids] == [
        one.token_ids for one in alone((4, 5, 6), tuple(params.items()))
    ]
    assert_idle(machine)


@pytest.mark.parametrize("cap", [4, 30])
def test_more_stop_tokens_than_a_graph_has_room_for_are_the_hosts_after_a_prefill_without_one(cap):
    """A forward without a graph settles any number of them on the device."""
    script = Script((210, *range(65, 85)), (*ANSWER[:9], 5, *ANSWER))
    machine = padded_engine(FakeBackbone(script, *SCRIPTS), decode, limits=SMALL, method="ar")
    others = [machine.add(one.prompt, SamplingParams(max_tokens=cap))[0] for one in SCRIPTS[:1]]
    for _ in range(2):
        machine.step()
    many = SamplingParams(max_tokens=40, stop_token_ids=range(10))
    request = machine.add(script.prompt, many)[0]
    run(machine)
    assert request.completion().token_ids == (*ANSWER[:9], 5)
    assert request.finish_reason is FinishReason.STOP
    assert [one.completion().token_ids for one in others] == [SCRIPTS[0].answer[:cap]]
    assert_idle(machine)


class StepsBetweenRounds(Unlearning):
    """A plain step behind every verification, planned ahead."""

    name = "steps between"

    def decide(self, view):
        return whole_blocks(view, np.full(len(view), 24), Branches.none())

    def ahead(self, view):
        return whole_blocks(view, np.where(view.verifying, 1, 24), Branches.none())


def test_a_step_behind_a_verification_without_a_graph_is_the_hosts_where_a_graph_has_no_room_for_it():
    """Whoever stands before it in the forward."""
    limits = Limits(tokens=16, requests=2, length=256, stops=3)
    machine = padded_engine(FakeBackbone(*SCRIPTS), decode, limits=limits)
    machine.plan_by(StepsBetweenRounds())
    added = [
        machine.add(script.prompt, SamplingParams(max_tokens=60, **how))[0]
        for script, how in zip(SCRIPTS, ({"method": "ar"}, {"stop_token_ids": range(10)}), strict=False)
    ]
    run(machine)
    for request, script in zip(added, SCRIPTS, strict=False):
        assert request.completion().token_ids == script.answer[:60]
    assert added[1].stats.blocks[24] > 0
    assert_idle(machine)


@pytest.mark.parametrize("requests", [1, 2])
@pytest.mark.parametrize("method", ["linear", "recguide"])
def test_a_draft_of_a_request_with_more_stop_tokens_than_a_graph_has_room_for_is_the_hosts(method, requests):
    """No table holds its block, and nobody else's block is touched."""
    limits = Limits(tokens=64, requests=requests, length=256, stops=3)
    machine = padded_engine(model("llama"), test_equality.decode, limits=limits, max_running=requests)
    params = {"max_tokens": 40, "stop_token_ids": (1, 2, 3, 30)}
    asked = [((4, 5, 6), {**params, "ignore_eos": True, "stop_token_ids": ()}), ((4, 5, 7), params)]
    asked = asked[-requests:]
    added = [
        machine.add(prompt, SamplingParams(**params, method=method, block_size=4))[0]
        for prompt, params in asked
    ]
    run(machine)
    for request, (prompt, params) in zip(added, asked, strict=True):
        (expected,) = alone(prompt, tuple(params.items()))
        assert request.completion().token_ids == expected.token_ids
    assert_idle(machine)


def test_a_request_that_fails_while_its_draft_runs_hides_nobodys_pick():
    """Its text cannot be made, when a forward is on its way in which it has many picks."""

    def fussy(ids):
        if 5 in ids:
            raise RuntimeError("no text")
        return decode(ids)

    ill = Script((210, *encode("Say it: ")), (*ANSWER[:12], 5, *ANSWER[20:]))
    machine = padded_engine(FakeBackbone(ill, *SCRIPTS), fussy)
    request = machine.add(ill.prompt, SamplingParams(max_tokens=60, method="linear", block_size=8))[0]
    others = [machine.add(one.prompt, SamplingParams(max_tokens=60, method="ar"))[0] for one in SCRIPTS]
    run(machine)
    assert request.finish_reason is FinishReason.ABORT
    for one, script in zip(others, SCRIPTS, strict=True):
        assert one.completion().token_ids == script.answer[:60]
    assert_idle(machine)


class Narrow(FakeBackbone):
    """Finds no memory for the prompt of one script."""

    def forward(self, batch, attend):
        if any(row.tokens[0] == SCRIPTS[3].prompt[0] and row.prefix == 0 for row in batch.rows):
            raise MemoryError
        return super().forward(batch, attend)


@pytest.mark.parametrize("stopping", [0, 1, 2, 3])
def test_a_newcomer_without_memory_costs_those_that_decode_nothing(stopping):
    """Not even one of them that ends meanwhile."""
    scripts = [Script(one.prompt, (*one.answer[: 4 + at], EOS)) for at, one in enumerate(SCRIPTS[:3])]
    machine = padded_engine(Narrow(*scripts, SCRIPTS[3]), decode, method="ar")
    requests = [machine.add(one.prompt, SamplingParams(max_tokens=30))[0] for one in scripts]
    for _ in range(1 + stopping):
        machine.step()
    ill = machine.add(SCRIPTS[3].prompt, SamplingParams(max_tokens=30))[0]
    run(machine)
    assert isinstance(ill.error, OutOfMemory)
    for request, script in zip(requests, scripts, strict=True):
        assert request.error is None
        assert request.completion().token_ids == script.answer
    assert_idle(machine)


def test_a_forward_without_memory_whose_requests_have_all_ended_costs_nobody_anything():
    machine = padded_engine(FakeBackbone(*SCRIPTS), decode, method="ar")
    capped, dropped = (
        machine.add(script.prompt, SamplingParams(max_tokens=cap))[0]
        for script, cap in zip(SCRIPTS, (3, 9), strict=False)
    )
    while len(capped.emitted) < 2:
        machine.step()
    machine.abort(dropped)

    def go(_):
        raise MemoryError

    machine.runner.go = go
    run(machine)
    assert capped.error is None
    assert capped.completion().token_ids == SCRIPTS[0].answer[:3]
    assert_idle(machine)


def test_newcomers_make_no_forward_larger_than_any_may_be():
    machine = padded_engine(FakeBackbone(*SCRIPTS), decode, method="ar", max_batch_tokens=12)
    requests = [machine.add(SCRIPTS[0].prompt, SamplingParams(max_tokens=30))[0]]
    for _ in range(3):
        machine.step()
    requests += [machine.add(one.prompt, SamplingParams(max_tokens=30))[0] for one in SCRIPTS[1:]]
    with machine.recording() as forwards:
        run(machine)
    assert max(forward.query_tokens for forward in forwards) <= 12
    for request, script in zip(requests, SCRIPTS, strict=True):
        assert request.completion().token_ids == script.answer[:30]


def test_a_prompt_that_is_computed_again_is_shared_only_as_far_as_it_is():
    script = Script((210, *range(65, 80)), ANSWER)
    machine = padded_engine(FakeBackbone(script), decode, page_size=4, max_batch_tokens=4, method="ar")
    request = machine.add(script.prompt, SamplingParams(max_tokens=20))[0]
    while len(request.emitted) < 3:
        machine.step()
    machine._drop()
    machine._scheduler._preempt(request)
    machine._tree.evict(machine._tree.unused)
    while request.cached < request.prefill_end:
        machine.step()
        assert 4 * len(machine._tree.find(script.prompt)) <= request.cached
    run(machine)
    assert request.completion().token_ids == ANSWER[:20]


# --- anything, in any order ---------------------------------------------------------------------------------


@cache
def alone(prompt, params):
    """What each choice says when nothing else runs, and by plain decoding on the host."""
    machine = Engine(model("llama"), test_equality.decode, EngineConfig())
    requests = machine.add(prompt, SamplingParams(**dict(params), method="ar"))
    run(machine)
    return [request.completion() for request in requests]


def any_params(random):
    params = {"max_tokens": random.choice((1, 2, 3, 7, 15, 28, 28))}
    if random.random() < 0.3:
        params["stop_token_ids"] = tuple(random.sample(range(4, 32), random.choice((1, 2, 8))))
    if random.random() < 0.3:
        params |= {"temperature": 0.9, "seed": random.randrange(9)}
    odd = ({"n": 3}, {"logprobs": 0}, {"logprobs": 2}, {"stop": ("ab", "q")}, {"prompt_logprobs": 0})
    return params | random.choice((*({},) * 10, *odd))


METHODS = (
    *({"method": "ar"}, {"method": "recguide", "policy": "ar"}) * 4,
    {"method": "recguide", "policy": "price"},
    {"method": "recguide", "policy": "fixed-4"},
    {"method": "recguide", "policy": "fixed-8"},
    *({"method": "linear", "block_size": block} for block in (2, 4, 8)),
    {"method": "recguide", "block_size": 4},
    {"method": "tidar", "block_size": 4},
)


class Scenario:
    """Requests, most of them plain, that come, share pages, end and are aborted at any time."""

    def __init__(self, seed):
        self.random = random = Random(seed)
        page = random.choice(PAGES)
        self.machine = padded_engine(
            model("llama"),
            test_equality.decode,
            limits=Limits(tokens=random.choice((16, 64, 1024)), requests=8, length=256, stops=3),
            page_size=page,
            kv_cache_tokens=random.choice((64, 72, 120)),
            max_running=random.choice((2, 3, 4, 8)),
            max_batch_tokens=random.choice((5, 24, 1024)),
            batching=random.choice(("ragged", "bucketed", "padded")),
        )
        self.begins = [self._text(random.choice((1, page, 2 * page))) for _ in range(3)]
        self.added = []
        self.aborted = set()
        self.machine.observer = lambda _: self._abort() if random.random() < 0.03 else None

    def run(self, requests=10):
        often = self.random.choice((0.1, 0.3, 0.7))
        while requests or self.machine.busy:
            while requests and self.random.random() < often:
                requests -= 1
                self._add()
            self.machine.step()
            if self.random.random() < 0.04:
                self._abort()

    def _text(self, length):
        return tuple(self.random.randrange(4, 32) for _ in range(length))

    def _add(self):
        prompt = self.random.choice(self.begins) + self._text(self.random.choice((0, 1, 3, 8, 20)))
        params = any_params(self.random)
        method = self.random.choice(METHODS)
        said = alone(prompt, tuple(params.items()))
        self.added += zip(self.machine.add(prompt, SamplingParams(**params, **method)), said, strict=True)

    def _abort(self):
        alive = [request for request, _ in self.added if request.finish_reason is None]
        if alive:
            request = self.random.choice(alive)
            self.aborted.add(request)
            self.machine.abort(request)


@pytest.mark.parametrize("seed", range(16))
def test_everybody_says_what_he_says_alone_and_no_page_is_lost(seed):
    scenario = Scenario(seed)
    with scenario.machine.recording() as forwards:
        scenario.run()
    assert_idle(scenario.machine)
    counted = 0
    for request, expected in scenario.added:
        counted += request.stats.forwards + request.stats.prefill_forwards
        assert request.error is None
        if request in scenario.aborted:
            assert tuple(request.emitted) == expected.token_ids[: len(request.emitted)]
            continue
        found = request.completion()
        assert (found.token_ids, found.text) == (expected.token_ids, expected.text)
        assert (found.finish_reason, found.stop_reason) == (expected.finish_reason, expected.stop_reason)
        assert "".join(chunk.text for chunk in request.inbox) == found.text
        if request.method.name == "ar":
            assert found.stats.forwards == found.stats.query_tokens == len(found.token_ids) - 1
    assert counted <= sum(forward.requests for forward in forwards)


class Looking(Heedful):
    """Keeps whether what follows may be planned ahead, as it is told."""

    def decide(self, view):
        self.runs_ahead = view.runs_ahead
        return self._policy.decide(view)


@pytest.mark.parametrize(
    ("how", "batching", "ahead"),
    [({}, "ragged", True), ({"temperature": 1.0, "top_p": 0.9}, "ragged", False), ({}, "bucketed", False)],
)
def test_policies_are_told_whether_what_follows_may_be_planned_ahead(how, batching, ahead):
    """Who waits for the host's picks keeps everyone from it."""
    machine, policy = padded_engine(FakeBackbone(*SCRIPTS), decode), Looking(Fixed(8))
    machine.plan_by(policy, batching)
    machine.add(SCRIPTS[0].prompt, SamplingParams(max_tokens=20))
    machine.add(SCRIPTS[1].prompt, SamplingParams(max_tokens=20, **how))
    machine.step()
    assert policy.runs_ahead is ahead
