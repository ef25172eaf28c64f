"""Log-probabilities of a prompt's own tokens, whatever its chunks, the cache and preemption."""

from __future__ import annotations

import pytest
import torch
from tests import fake
from tests.engine.device import device_engine, padded_engine
from tests.engine.test_equality import decode, model
from tests.tiny import causal_logits

from recguide.core import FinishReason, ParameterError, SamplingParams
from recguide.engine import scheduler
from recguide.engine.engine import Engine, EngineConfig

TEXT = tuple(range(4, 25))


def engine(**config):
    return Engine(model("llama"), decode, EngineConfig(page_size=4, **config))


def expected(prompt, top):
    """[(logprob, {id: logprob})] of every token after the first, from one forward over the whole prompt."""
    values = causal_logits(model("llama"), torch.tensor(prompt)).log_softmax(-1)
    found = []
    for row, token in zip(values[:-1], prompt[1:], strict=True):
        best, ids = row.topk(top)
        found.append((row[token].item(), dict(zip(ids.tolist(), best.tolist(), strict=True))))
    return found


def assert_scores(scores, prompt, top):
    assert len(scores) == len(prompt) - 1
    for score, (logprob, best) in zip(scores, expected(prompt, top), strict=True):
        assert score.logprob == pytest.approx(logprob, abs=1e-9)
        assert score.top == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("method", ["ar", "recguide", "diffusion"])
@pytest.mark.parametrize("max_tokens", [0, 1, 12])
def test_every_token_but_the_first_has_its_own(max_tokens, method):
    machine = engine()
    wanted = SamplingParams(max_tokens=max_tokens, prompt_logprobs=3, method=method)
    (completion,) = fake.complete(machine, [TEXT], wanted)
    assert_scores(completion.prompt_logprobs, TEXT, 3)
    assert completion.finish_reason is FinishReason.LENGTH
    if max_tokens:
        plain = SamplingParams(max_tokens=max_tokens, method=method)
        (without,) = fake.complete(engine(), [TEXT], plain)
        assert completion.token_ids == without.token_ids
        assert without.prompt_logprobs is None
    else:
        assert (completion.token_ids, completion.text) == ((), "")


@pytest.mark.parametrize("config", [{"max_batch_tokens": 5}, {"max_running": 1}, {"kv_cache_tokens": 96}])
def test_chunks_company_and_preemption_change_nothing(config):
    prompts = [TEXT[: 21 - 4 * at] for at in range(5)]
    wanted = SamplingParams(max_tokens=24, prompt_logprobs=0, block_size=8)
    for completion, prompt in zip(fake.complete(engine(**config), prompts, wanted), prompts, strict=True):
        assert_scores(completion.prompt_logprobs, prompt, 0)


def test_a_forward_is_asked_about_no_more_tokens_than_allowed(monkeypatch):
    monkeypatch.setattr(scheduler, "SCORED_TOKENS", 6)
    machine = device_engine(model("llama"), decode)
    wanted = SamplingParams(max_tokens=0, prompt_logprobs=1)
    requests = [machine.add(TEXT, wanted)[0] for _ in range(3)]
    plain = machine.add(TEXT, SamplingParams(max_tokens=4, method="ar"))[0]
    with machine.recording() as forwards:
        fake.run(machine)
    assert max(forward.wanted for forward in forwards) <= 6 + 1
    for request in requests:
        assert_scores(request.completion().prompt_logprobs, TEXT, 1)
    assert len(plain.emitted) == 4


@pytest.mark.parametrize("make", [device_engine, padded_engine])
def test_they_are_the_same_beside_a_device(make):
    machine = make(model("llama"), decode)
    wanted = SamplingParams(max_tokens=8, prompt_logprobs=2)
    (completion,) = fake.complete(machine, [TEXT], wanted)
    assert_scores(completion.prompt_logprobs, TEXT, 2)


def test_known_beginnings_are_run_again_where_they_are_asked_about_and_known_to_others():
    machine = engine()
    wanted = SamplingParams(max_tokens=0, prompt_logprobs=0)
    for _ in range(2):
        (completion,) = fake.complete(machine, [TEXT], wanted)
        assert_scores(completion.prompt_logprobs, TEXT, 0)
        assert completion.stats.prefix_hit_tokens == 0
    (completion,) = fake.complete(machine, [TEXT], SamplingParams(max_tokens=4))
    assert completion.stats.prefix_hit_tokens == 20


def test_the_last_chunk_of_a_stream_carries_them():
    machine = engine()
    (request,) = machine.add(TEXT, SamplingParams(max_tokens=0, prompt_logprobs=1))
    emitted = machine.step()
    ((_, chunk),) = emitted
    assert (chunk.text, chunk.token_ids) == ("", ())
    assert_scores(chunk.completion.prompt_logprobs, TEXT, 1)
    assert request.inbox == type(request.inbox)([chunk])


def test_a_prompt_of_one_token_has_none():
    (completion,) = fake.complete(engine(), [TEXT[:1]], SamplingParams(max_tokens=0, prompt_logprobs=1))
    assert completion.prompt_logprobs == ()


def test_nothing_to_emit_is_refused_without_a_question():
    with pytest.raises(ParameterError, match="prompt_logprobs") as error:
        SamplingParams(max_tokens=0)
    assert error.value.parameter == "max_tokens"


class Broken(fake.FakeBackbone):
    def _logits(self, batch, index):
        logits = super()._logits(batch, index)
        position = batch.rows[int(batch.row[index])].prefix + int(batch.slot[index])
        return logits * float("nan") if position == 3 else logits


def test_nan_among_them_fails_the_request():
    script = fake.Script(TEXT, tuple(fake.encode("and so on")))
    machine = Engine(Broken(script), fake.decode, EngineConfig())
    (asked,) = machine.add(TEXT, SamplingParams(max_tokens=4, prompt_logprobs=0))
    (plain,) = machine.add(TEXT, SamplingParams(max_tokens=4))
    fake.run(machine)
    assert "NaN" in str(asked.error)
    assert plain.completion().token_ids == script.answer[:4]
