"""What fails alone ends alone: no page is lost, nobody else's text changes, and the rest goes on."""

from __future__ import annotations

import math

import pytest
import torch
from tests.engine.device import device_engine, padded_engine
from tests.fake import FakeBackbone, Script, decode, encode, run

from recguide.core import FinishReason, ParameterError, SamplingParams
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.errors import EngineFault, OutOfMemory
from recguide.engine.picking import UnpickableLogits

ANSWER = tuple(encode("the quick brown fox jumps over the lazy dog, and then it naps in the warm sun."))
ILL = 201
SCRIPTS = [Script((200 + at, *encode("Say it: ")), ANSWER[at:]) for at in range(4)]


def host_engine(backbone, decoder, **config):
    return Engine(backbone, decoder, EngineConfig(**config))


MAKES = (host_engine, device_engine, padded_engine)


def params(**more):
    return SamplingParams(max_tokens=30, method="recguide", block_size=8, **more)


def assert_well(requests):
    """All but the ill one have said what they always say."""
    for script, request in zip(SCRIPTS, requests, strict=False):
        if script.prompt[0] != ILL:
            assert request.error is None
            assert request.completion().token_ids == script.answer[:30]


def assert_idle(machine):
    pool = machine.runner.pool
    assert not machine.busy
    assert pool.used_pages == 0
    assert pool.free_pages + pool.cached_pages == pool.pages
    pool.give(pool.take(pool.pages))


# --- NaN ----------------------------------------------------------------------------------------------------


class NanIn(FakeBackbone):
    """Gives NaN to the ill script's rows of one kind."""

    def __init__(self, kind, *scripts):
        super().__init__(*scripts)
        self._kind = kind

    def _logits(self, batch, index):
        row = batch.rows[int(batch.row[index])]
        script = self._told[int(batch.row[index])]
        kind = "prefill" if row.start == 0 else "verify" if row.causal else "branch" if row.stem else "draft"
        logits = super()._logits(batch, index)
        return logits * math.nan if script.prompt[0] == ILL and kind == self._kind else logits


@pytest.mark.parametrize("kind", ["prefill", "draft", "verify", "branch"])
def test_nan_anywhere_fails_the_request_that_has_it(kind):
    machine = host_engine(NanIn(kind, *SCRIPTS), decode)
    requests = [machine.add(script.prompt, params())[0] for script in SCRIPTS]
    run(machine)
    assert isinstance(requests[1].error, UnpickableLogits)
    assert requests[1].finish_reason is FinishReason.ABORT
    assert bool(requests[1].emitted) == (kind != "prefill")
    assert_well(requests)
    assert_idle(machine)


# --- memory -------------------------------------------------------------------------------------------------


class OutIn(FakeBackbone):
    """Finds no memory where the ill script prefills, or, with `decoding`, for anything of it."""

    error: Exception = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    decoding = False

    def forward(self, batch, attend):
        for row, script in zip(batch.rows, self.scripts_of(batch, attend), strict=True):
            ill = script.prompt[0] == ILL
            if ill and (row.prefix > 0) == self.decoding:
                raise self.error
        return super().forward(batch, attend)


LACKS = (
    OutIn.error,
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory: 8 bytes"),
    MemoryError(),
)


@pytest.mark.parametrize("error", LACKS, ids=["cuda", "cpu", "python"])
@pytest.mark.parametrize("make", MAKES)
def test_a_prefill_without_memory_fails_alone(make, error):
    backbone = OutIn(*SCRIPTS)
    backbone.error = error
    machine = make(backbone, decode)
    early = machine.add(SCRIPTS[0].prompt, params())[0]
    for _ in range(3):
        machine.step()
    ill = machine.add((ILL, *range(60)), params())[0]
    others = [machine.add(script.prompt, params())[0] for script in SCRIPTS[2:]]
    run(machine)
    assert isinstance(ill.error, OutOfMemory)
    assert ill.finish_reason is FinishReason.ABORT
    assert "61 tokens" in str(ill.error)
    assert_well([early, ill, *others])
    assert_idle(machine)


@pytest.mark.parametrize("make", MAKES)
def test_decoding_without_memory_ends_one_after_another_until_it_fits(make):
    backbone = OutIn(*SCRIPTS)
    backbone.decoding = True
    machine = make(backbone, decode)
    requests = [machine.add(script.prompt, params())[0] for script in SCRIPTS]
    run(machine)
    assert isinstance(requests[1].error, OutOfMemory)
    for script, request in zip(SCRIPTS, requests, strict=True):
        if request.error is None:
            assert request.completion().token_ids == script.answer[:30]
    assert_idle(machine)


def test_what_a_forward_had_begun_that_found_no_memory_is_over_before_the_next(monkeypatch):
    """It may still be reading the memory that the next one is filled into."""
    runner, done = host_engine(FakeBackbone(*SCRIPTS), decode).runner, list[str]()
    runner._device = torch.device("cuda")
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: done.append(name))
    runner.tidy()
    assert done == ["synchronize", "empty_cache"]


# --- anything else ------------------------------------------------------------------------------------------


class BrokenAfter(FakeBackbone):
    def __init__(self, forwards, *scripts):
        super().__init__(*scripts)
        self._left = forwards

    def forward(self, batch, attend):
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return super().forward(batch, attend)


@pytest.mark.parametrize("forwards", range(5))
@pytest.mark.parametrize("make", MAKES)
def test_a_fault_of_the_engine_fails_all_and_it_takes_no_more(make, forwards):
    machine = make(BrokenAfter(forwards, *SCRIPTS), decode, max_running=2)
    requests = [machine.add(script.prompt, params())[0] for script in SCRIPTS]
    with pytest.raises(EngineFault, match="illegal memory access"):
        run(machine)
    assert not machine.busy
    assert machine.runner.pool.used_pages == 0
    for request in requests:
        assert request.error is machine.fault
        assert request.finish_reason is FinishReason.ABORT
    with pytest.raises(EngineFault):
        machine.add(SCRIPTS[0].prompt, params())
    with pytest.raises(EngineFault):
        machine.step()


# --- lengths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_prompt_near_the_limit_is_taken_or_refused_with_both_numbers(over):
    machine = host_engine(FakeBackbone(SCRIPTS[0]), decode, max_model_len=40, kv_cache_tokens=48)
    prompt = (*SCRIPTS[0].prompt, *ANSWER)[: 40 + over]
    if over < 0:
        (request,) = machine.add(prompt, SamplingParams(max_tokens=1))
        run(machine)
        assert len(request.emitted) == 1
        with pytest.raises(ParameterError, match=r"39 tokens and 2 more.*limit of 40") as error:
            machine.add(prompt, SamplingParams(max_tokens=2))
        assert error.value.parameter == "max_tokens"
    else:
        with pytest.raises(
            ParameterError, match=f"has {40 + over} tokens, .*limit of 40 it may have 39"
        ) as error:
            machine.add(prompt, SamplingParams(max_tokens=1))
        assert error.value.parameter == "prompt"
    if over == 0:
        (request,) = machine.add(prompt, SamplingParams(max_tokens=0, prompt_logprobs=0))
        run(machine)
        assert len(request.prompt_logprobs) == 39
    assert_idle(machine)
