"""What runs ahead of the host changes nobody's text, whatever happens meanwhile."""

from __future__ import annotations

import pytest
from tests.engine.device import padded_engine
from tests.fake import EOS, FakeBackbone, Script, decode, encode, run

from recguide.core import FinishReason, SamplingParams
from recguide.engine.errors import OutOfMemory
from recguide.engine.rooms import Limits

ANSWER = tuple(encode("the quick brown fox jumps over the lazy dog, and then it naps in the warm sun."))
SCRIPTS = [Script((200 + at, *encode("Say it: ")), ANSWER[at:]) for at in range(4)]
SMALL = Limits(tokens=16, requests=8, length=256)


def assert_idle(machine):
    pool = machine.runner.pool
    assert not machine.busy
    assert pool.used_pages == 0
    assert pool.free_pages + pool.cached_pages == pool.pages


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
