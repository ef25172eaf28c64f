"""A request may be aborted at any moment: everything it held is free once, and nobody else notices."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.device import device_engine, padded_engine
from tests.fake import FakeBackbone, Script, Slip, decode, encode
from tests.fake import engine as host_engine

from recguide.core import FinishReason, SamplingParams

ANSWER = tuple(encode("the quick brown fox jumps over the lazy dog, and then it naps in the warm sun."))
SCRIPTS = [
    Script(
        tuple(encode(f"{at}: say it")[: 3 + 4 * at] * (1 + 3 * (at == 2))),
        ANSWER[at:],
        {at * 3 + slip: Slip(second_right=slip % 2 == 0) for slip in (20, 23, 31, 47)},
    )
    for at in range(4)
]
METHODS = ("ar", "linear", "tidar", "recguide")
CONFIG = {"page_size": 4, "kv_cache_tokens": 160, "max_running": 4, "max_batch_tokens": 24}


def on_host():
    return host_engine(*SCRIPTS, **CONFIG)


def beside_device():
    return device_engine(FakeBackbone(*SCRIPTS), decode, **CONFIG)


def in_buckets():
    return padded_engine(FakeBackbone(*SCRIPTS), decode, **CONFIG)


ADDED = st.tuples(
    st.just("add"),
    st.integers(0, 3),
    st.sampled_from(METHODS),
    st.integers(1, 40),
    st.integers(1, 2),
    st.booleans(),
)
STEPPED = st.tuples(st.just("step"), st.integers(1, 4))
ABORTED = st.tuples(st.sampled_from(["abort", "abort in a report"]), st.integers(0, 30))


class Run:
    """Does what it is told, and knows what every request should say."""

    def __init__(self, machine):
        self.machine = machine
        self.requests = []
        self.scripts = {}
        self.aborted = set()
        self.next_report = []
        machine.observer = self._report

    def do(self, what, *how):
        {"add": self._add, "step": self._step, "abort": self._abort, "abort in a report": self._plan}[what](
            *how
        )

    def finish(self):
        while self.machine.busy:
            self._step(1)
        pool = self.machine.runner.pool
        assert pool.used_pages == 0
        assert pool.free_pages + pool.cached_pages == pool.pages
        for request in self.requests:
            if request in self.aborted:
                assert request.finish_reason is FinishReason.ABORT
            else:
                assert request.finish_reason is FinishReason.LENGTH
                assert tuple(request.emitted) == self.scripts[request].answer[: request.params.max_tokens]
                chunks = list(request.inbox)
                assert "".join(chunk.text for chunk in chunks) == decode(request.emitted)
                assert [chunk.completion is not None for chunk in chunks][-1:] == [True]
            assert tuple(request.emitted) == self.scripts[request].answer[: len(request.emitted)]
            assert request.table.pages == []

    def _add(self, script, method, tokens, n, plain):
        block = {} if method == "ar" else {"block_size": 8}
        more = {} if plain else {"logprobs": 1}
        params = SamplingParams(max_tokens=tokens, method=method, n=n, **block, **more)
        for request in self.machine.add(SCRIPTS[script].prompt, params):
            self.requests.append(request)
            self.scripts[request] = SCRIPTS[script]

    def _step(self, count):
        for _ in range(count):
            self.machine.step()

    def _abort(self, which):
        if not self.requests:
            return
        request = self.requests[which % len(self.requests)]
        if request.finish_reason is None:
            self.aborted.add(request)
        self.machine.abort(request)
        self.machine.abort(request)  # once more changes nothing

    def _plan(self, which):
        self.next_report.append(which)

    def _report(self, _):
        while self.next_report:
            self._abort(self.next_report.pop())


@pytest.mark.parametrize("make", [on_host, beside_device, in_buckets])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(ADDED, ADDED, STEPPED, STEPPED, ABORTED), min_size=3, max_size=25))
def test_any_order_of_requests_steps_and_aborts(make, orders):
    run = Run(make())
    for order in orders:
        run.do(*order)
    run.finish()


@pytest.mark.parametrize("make", [on_host, in_buckets])
def test_a_prefill_can_be_aborted_at_each_chunk_and_asked_again_at_once(make):
    """As may happen a thousand times in a row when a client retries."""
    script = Script((200, *range(65, 125)), ANSWER)
    for chunks in range(9):
        machine = make()
        machine._backbone._scripts[200] = script
        params = SamplingParams(max_tokens=20, method="recguide", block_size=8)
        for _ in range(5):
            (dropped,) = machine.add(script.prompt, params)
            for _ in range(chunks):
                machine.step()
            machine.abort(dropped)
        (kept,) = machine.add(script.prompt, params)
        while machine.busy:
            machine.step()
        assert kept.completion().token_ids == ANSWER[:20]
        assert machine.runner.pool.used_pages == 0


def test_queued_requests_whose_clients_left_are_never_run():
    machine = host_engine(*SCRIPTS, max_running=4)
    params = SamplingParams(max_tokens=4, method="ar")
    waiting = [machine.add(SCRIPTS[1].prompt, params)[0] for _ in range(200)]
    machine.step()
    for request in waiting[4:]:
        machine.abort(request)
    while machine.busy:
        machine.step()
    assert machine._backbone.forwards == 4
    assert not any(request.emitted for request in waiting[4:])
