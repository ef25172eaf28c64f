"""Verify must pass what is right and, above all, be able to fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.toy import toy_model
from torch import Tensor

from recguide.bench.exactness import Verdict
from recguide.bench.prompts import EXACTNESS, REPEATED
from recguide.bench.replay import Text, laid_out, single
from recguide.bench.verify import Settings, verify
from recguide.core import Attend, PackedBatch, ParameterError, SamplingParams
from recguide.llm import LLM
from recguide.speculation.methods import METHODS, method_named

SMALL = Settings(methods=("linear", "recguide"), block_sizes=(5,), max_tokens=12)
PROMPTS = [list(b"What is it?"), list(b"x"), list(b"river " * 20)]


class Wrong:
    """A model whose forward is spoilt on the way out; everything else is the model's."""

    def __init__(self) -> None:
        self._model = toy_model()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, batch: PackedBatch, attend: Attend) -> Tensor:
        logits = self._model.forward(batch, attend)
        causal = batch.causal[batch.wanted]
        return self.spoil(logits, batch, causal)

    def spoil(self, logits: Tensor, batch: PackedBatch, causal: Tensor) -> Tensor:
        raise NotImplementedError


class DraftsLeak(Wrong):
    """Causal logits change a little as soon as a draft row runs in the same forward."""

    def spoil(self, logits: Tensor, batch: PackedBatch, causal: Tensor) -> Tensor:
        leaks = causal & bool((~batch.causal).any())
        return logits + 1e-6 * leaks[:, None] * torch.arange(logits.shape[1])


class SlotsShift(Wrong):
    """Causal slots after the first prefer another token."""

    def spoil(self, logits: Tensor, batch: PackedBatch, causal: Tensor) -> Tensor:
        late = causal & (batch.slot[batch.wanted] > 0) & (batch.prefix[batch.wanted] > 0)
        spoilt = logits.clone()
        spoilt[late, 65] += 100.0
        return spoilt


class Rounds(Wrong):
    """Logits as an honest low precision gives them: noise that depends on the layout."""

    size = 1e-12

    def spoil(self, logits: Tensor, batch: PackedBatch, causal: Tensor) -> Tensor:
        del causal
        return logits + self.size * torch.sin(len(batch.tokens) + torch.arange(logits.shape[1]).double())


def llm(model: Any) -> LLM:
    return LLM(model, kv_cache_tokens=2048)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_methods_pass_on_a_right_model(temperature):
    names = tuple(method.name for method in METHODS if method.verifies)
    settings = Settings(methods=names, block_sizes=(1, 2, 8), temperatures=(temperature,), max_tokens=12)
    machine = llm(toy_model())
    report = verify(machine, PROMPTS, settings)
    assert report.passed
    assert report.count(Verdict.IDENTICAL) == len(report.cases) == len(PROMPTS) * (1 + 3 * 3)
    assert max(case.difference for case in report.cases) < 1e-12
    assert machine.engine.runner.pool.used_pages == 0


@pytest.mark.parametrize("wrong", [DraftsLeak, SlotsShift])
def test_a_wrong_model_is_a_bug(wrong):
    report = verify(llm(wrong()), PROMPTS[:2], SMALL)
    assert not report.passed
    assert report.count(Verdict.BUG) > 0
    assert all(case.verdict is Verdict.IDENTICAL for case in report.cases if case.method == "ar")


def test_a_leak_too_small_to_change_a_token_is_still_a_bug():
    report = verify(llm(DraftsLeak()), PROMPTS, Settings(methods=("recguide",), max_tokens=8))
    assert {case.verdict for case in report.cases if case.method == "recguide"} == {Verdict.BUG}
    assert all(case.divergence is None for case in report.cases)


def test_a_divergence_tells_where_and_by_how_much():
    report = verify(
        llm(SlotsShift()), PROMPTS[:1], Settings(methods=("linear",), block_sizes=(4,), temperatures=(0.0,))
    )
    (case,) = [case for case in report.cases if case.verdict is Verdict.BUG]
    assert case.difference == pytest.approx(100.0)
    assert case.divergence is not None
    assert case.divergence.got == 65
    assert case.divergence.gap > 0


def test_rounding_is_no_bug():
    report = verify(llm(Rounds()), PROMPTS[:2], SMALL)
    assert report.count(Verdict.BUG) == 0
    assert max(case.difference for case in report.cases) > 0


def test_too_many_ties_fail():
    report = verify(llm(toy_model()), PROMPTS[:1], Settings(methods=("linear",), max_tokens=4))
    tie = report.cases[-1]
    changed = type(report)(
        report.prompts,
        report.dtype,
        0.4,
        (*report.cases[:2], type(tie)(*[*_values(tie)[:4], Verdict.TIE, *_values(tie)[5:]])),
        report.totals,
    )
    assert changed.count(Verdict.TIE) == 1
    assert changed.passed
    strict = type(report)(report.prompts, report.dtype, 0.3, changed.cases, report.totals)
    assert not strict.passed


def _values(case: object) -> list[object]:
    return [getattr(case, name) for name in case.__slots__]  # type: ignore[attr-defined]


def test_methods_without_a_verdict_are_refused():
    with pytest.raises(ParameterError, match="diffusion"):
        Settings(methods=("diffusion",))
    with pytest.raises(ParameterError, match="method"):
        Settings(methods=("magic",))


@pytest.mark.parametrize("method", ["linear", "tidar", "recguide"])
@pytest.mark.parametrize("block", [1, 2, 5, 16])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_replay_has_a_logit_for_every_token(method, block, length):
    machine = llm(toy_model())
    text = Text(PROMPTS[0], list(range(60, 60 + length)), SamplingParams(seed=0))
    reference = single(machine.engine.runner, text)
    replayed = laid_out(machine.engine.runner, text, method_named(method), block)
    assert reference.shape == replayed.shape == (length, 258)
    torch.testing.assert_close(replayed, reference, atol=1e-12, rtol=0)


def test_built_in_prompts_hold_the_one_that_caught_bugs_elsewhere():
    assert REPEATED in EXACTNESS
    assert len(REPEATED.split()) == 48
    assert len(set(REPEATED.split())) == 1
    assert len(EXACTNESS) >= 8
