"""Who runs next: streams never stall, nobody starves, and pages go to the oldest."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.fake import FakeBackbone, Script, decode, encode, run

from recguide.core import SamplingParams
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.scheduler import HEADROOM, OVERTAKERS
from recguide.speculation.rows import Phase

ANSWER = tuple(encode("the quick brown fox jumps over the lazy dog, and then it naps in the warm sun. " * 3))


def script(number, length):
    """A prompt of that many tokens, unlike all others from its first one on."""
    return Script((number, *(65 + (at * 7 + number) % 26 for at in range(length - 1))), ANSWER)


def engine(scripts, **config):
    return Engine(FakeBackbone(*scripts), decode, EngineConfig(**{"prefix_cache": False, **config}))


def add(machine, one, tokens=40, **params):
    return machine.add(one.prompt, SamplingParams(max_tokens=tokens, **params))[0]


def steps_of(machine):
    """After each step, the plan of the forward that has just been launched."""
    while machine.busy:
        machine.step()
        yield [] if machine._flight is None else machine._flight.plan


def prefilled(plan):
    """Tokens of each request that the plan prefills."""
    return {
        scheduled.request: scheduled.layout.query_tokens
        for scheduled in plan
        if scheduled.layout.phase is Phase.PREFILL
    }


@pytest.mark.parametrize("method", ["ar", "linear"])
def test_running_streams_are_in_every_forward_while_a_long_prompt_is_prefilled(method):
    block = {} if method == "ar" else {"block_size": 8}
    scripts = [script(at, 10) for at in range(4)]
    long = script(200, 900)
    machine = engine([*scripts, long], max_batch_tokens=64)
    streams = [add(machine, one, 200, method=method, **block) for one in scripts]
    machine.step()
    machine.step()
    late = add(machine, long, 5, method="ar")
    chunks = 0
    for plan in steps_of(machine):
        tokens = prefilled(plan)
        if late in tokens:
            chunks += 1
            assert {scheduled.request for scheduled in plan} == {*streams, late}
            assert sum(scheduled.layout.query_tokens for scheduled in plan) <= 64
            assert tokens[late] >= 16 or late.cached + tokens[late] == 900  # a fourth at least
    assert 15 <= chunks <= 60
    assert late.completion().token_ids == ANSWER[:5]


def test_streams_that_do_not_fit_into_one_forward_take_turns():
    scripts = [script(at, 10) for at in range(7)]
    machine = engine(scripts, max_batch_tokens=32)
    requests = [add(machine, one, 64, method="linear", block_size=8) for one in scripts]
    ran = Counter()
    for plan in steps_of(machine):
        decoding = [scheduled.request for scheduled in plan if scheduled.layout.phase is not Phase.PREFILL]
        if len(machine._scheduler.running) < 7 or prefilled(plan):
            continue
        assert len(decoding) == 4
        ran.update(decoding)
        assert max(ran.values()) - min(ran[request] for request in requests) <= 1


def test_a_long_prompt_neither_holds_up_short_ones_nor_starves():
    long, shorts = script(200, 2000), [script(at, 10) for at in range(30)]
    machine = engine([long, *shorts], max_batch_tokens=64)
    first = add(machine, long, 2)
    waiting, done = list(shorts), []
    previous = 0
    for step, plan in enumerate(steps_of(machine)):
        if step % 2 == 0 and waiting:
            done.append((step, add(machine, waiting.pop(), 1)))
        if first in prefilled(plan):
            assert prefilled(plan)[first] >= 32 or first.cached + prefilled(plan)[first] == 2000
            previous = step
        for arrived, short in done:
            assert short.finish_reason is not None or step - arrived <= 2
    assert previous <= 2000 / 32 + 2
    assert first.completion().token_ids == ANSWER[:2]


def test_the_shortest_of_the_younger_prompts_comes_first():
    scripts = [script(at, length) for at, length in enumerate((300, 200, 20))]
    machine = engine(scripts, max_batch_tokens=64)
    oldest, middle, short = (add(machine, one, 1) for one in scripts)
    machine._launch()
    assert prefilled(machine._flight.plan) == {oldest: 32, middle: 12, short: 20}
    run(machine)


def test_a_single_request_larger_than_a_forward_does_not_keep_others_from_prefill():
    scripts = [script(0, 10), script(1, 40)]
    machine = engine(scripts, max_batch_tokens=7)
    add(machine, scripts[0], 200, method="linear", block_size=16)
    for _ in range(4):
        machine.step()
    late = add(machine, scripts[1], 3)
    for _ in range(40):
        machine.step()
    assert late.completion().token_ids == ANSWER[:3]
    run(machine)


def test_a_request_without_room_lets_a_few_pass_and_then_none():
    large, small = script(200, 400), [script(at, 10) for at in range(60)]
    held = [script(100 + at, 60) for at in range(2)]
    machine = engine([large, *held, *small], kv_cache_tokens=512, page_size=8)
    holding = [add(machine, one, 100, method="ar") for one in held]
    machine.step()
    waits = add(machine, large, 20, method="ar")
    others = [add(machine, one, 3, method="ar") for one in small]
    passed = 0
    while waits.table.pages == []:
        passed = sum(other.finish_reason is not None or bool(other.table.pages) for other in others)
        machine.step()
    assert passed == OVERTAKERS
    assert any(request.finish_reason is None for request in others)
    run(machine)
    assert waits.completion().token_ids == ANSWER[:20]
    assert all(request.completion().token_ids == ANSWER[:100] for request in holding)


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("method", ["ar", "recguide"])
def test_three_times_the_pools_demand_all_finish_with_few_preemptions(method, prefix_cache):
    scripts = [script(at, 12 + at) for at in range(12)]
    pool = 12 * 100 // 3
    machine = engine(scripts, kv_cache_tokens=pool, page_size=8, prefix_cache=prefix_cache)
    block = {} if method == "ar" else {"block_size": 8}
    requests = [add(machine, one, 80, method=method, **block) for one in scripts]
    preempted = 0
    while machine.busy:
        machine.step()
        preempted += any(
            request.table.pages == [] and request.emitted for request in machine._scheduler.waiting
        )
    assert preempted > 0
    for one, request in zip(scripts, requests, strict=True):
        assert request.completion().token_ids == one.answer[:80]
        assert request.completion().stats.tokens == 80
        assert request.stats.preemptions <= len(HEADROOM) + 1
    assert machine._scheduler.preemptions == sum(request.stats.preemptions for request in requests)
    assert machine.runner.pool.used_pages == 0


def test_preempted_samples_go_on_as_they_were():
    scripts = [script(at, 12) for at in range(8)]
    params = {"temperature": 1.0, "seed": 11, "method": "linear", "block_size": 8, "logprobs": 0}
    found = []
    for tokens in (8192, 240):
        machine = engine(scripts, kv_cache_tokens=tokens, page_size=4)
        requests = [add(machine, one, 60, **params) for one in scripts]
        run(machine)
        found.append(
            [(request.completion().token_ids, request.completion().logprobs) for request in requests]
        )
    assert machine._scheduler.preemptions > 0
    assert found[0] == found[1]
