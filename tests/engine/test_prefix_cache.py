"""What is known of a text's beginning is not computed again, and nobody can tell but by the statistics."""

from __future__ import annotations

from itertools import pairwise
from time import monotonic

import pytest
import torch
from tests import fake
from tests.engine.device import padded_engine
from tests.engine.test_equality import decode, model

from recguide.core import Row, SamplingParams
from recguide.engine.engine import Engine, EngineConfig

METHODS = ("ar", "linear", "tidar", "recguide", "diffusion")
PAGE = 4
TEXT = tuple(range(4, 25))


def engine(**config):
    return Engine(model("llama"), decode, EngineConfig(page_size=PAGE, kv_cache_tokens=512, **config))


def params(method="recguide", **more):
    block = {} if method == "ar" else {"block_size": 8}
    return SamplingParams(max_tokens=20, method=method, ignore_eos=True, **block, **more)


def one(machine, prompt, wanted):
    (completion,) = fake.complete(machine, [prompt], wanted)
    return completion


def cold(prompt, wanted):
    return one(engine(prefix_cache=False), prompt, wanted)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 7}])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("length", [1, 4, 5, 21])
def test_a_second_identical_prompt_takes_all_whole_pages_but_runs_its_last_token(length, method, sampling):
    machine, prompt = engine(), TEXT[:length]
    expected = cold(prompt, params(method, **sampling))
    for hits in (0, (length - 1) // PAGE * PAGE):
        completion = one(machine, prompt, params(method, **sampling))
        assert completion.token_ids == expected.token_ids
        assert completion.stats.prefix_hit_tokens == hits
        assert completion.stats.prefill_forwards == 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_text_that_goes_on_from_an_earlier_one_is_that_of_a_cold_start(method, cut):
    """What rounds rejected never becomes part of what others find (the earlier text ends within a block)."""
    machine = engine()
    first = one(machine, TEXT, params(method))
    prompt = (*TEXT, *first.token_ids[: len(first.token_ids) - cut], 9, 8, 7)
    completion = one(machine, prompt, params(method))
    assert completion.token_ids == cold(prompt, params(method)).token_ids
    committed = len(TEXT) + len(first.token_ids) - 1
    shared = min(committed, len(TEXT) + len(first.token_ids) - cut)
    assert completion.stats.prefix_hit_tokens == shared // PAGE * PAGE


def test_the_tree_knows_committed_tokens_alone():
    machine = engine()
    (request,) = machine.add(TEXT, params("linear"))
    fake.run(machine)
    known = machine._tree.find((*TEXT, *request.emitted, *range(30)))
    committed = [*TEXT, *request.emitted[:-1]]
    assert [token for node in known for token in node.key] == committed[: len(committed) // PAGE * PAGE]
    assert machine.runner.pool.cached_pages == len(known)


@pytest.mark.parametrize("method", METHODS)
def test_pages_that_are_found_hold_what_a_prefill_would_write(method):
    """Bug reports tell of rejected slots' keys that stay behind; here all committed ones are compared."""
    machine = engine()
    (request,) = machine.add(TEXT, params(method))
    while machine.busy:
        machine.step()
        if request.finish_reason is None:
            assert_as_prefilled(machine, request.committed, request.table.pages)
    known = machine._tree.find(request.committed)
    whole = request.committed[: len(known) * PAGE]
    assert_as_prefilled(machine, whole, [node.page for node in known])


@pytest.mark.parametrize("method", METHODS)
def test_what_goes_on_from_a_known_beginning_is_read_in_one_piece(method):
    machine = engine()
    one(machine, TEXT, params(method))
    requests = [machine.add((*TEXT[:17], at), params(method))[0] for at in (3, 4)]
    while machine.busy:
        machine.step()
        for request in requests:
            pages = request.table.pages
            if request.finish_reason is None:
                assert request.stats.prefix_hit_tokens == 16
                assert all(after == page + 1 for page, after in pairwise(pages))
                assert_as_prefilled(machine, request.committed, pages)


def test_an_engine_that_was_made_where_nothing_is_differentiated_runs_elsewhere():
    """Threads differ in that, and tensors remember it."""
    with torch.inference_mode():
        machine = engine()
    one(machine, TEXT, params())
    prompt = (*TEXT[:17], 3)
    assert one(machine, prompt, params()).token_ids == cold(prompt, params()).token_ids


def assert_as_prefilled(machine, tokens, pages):
    fresh = Engine(model("llama"), decode, EngineConfig(page_size=PAGE, kv_cache_tokens=512)).runner
    table = list(range(len(pages)))
    fresh.forward([Row(0, 0, tuple(tokens), causal=True, wanted=())], [table])
    for ours, theirs in (
        (machine.runner._cache.keys, fresh._cache.keys),
        (machine.runner._cache.values, fresh._cache.values),
    ):
        found = torch.stack([ours[:, slot(pages, i)] for i in range(len(tokens))])
        expected = torch.stack([theirs[:, slot(table, i)] for i in range(len(tokens))])
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def slot(pages, position):
    return pages[position // PAGE] * PAGE + position % PAGE


def test_a_prompt_is_shared_as_soon_as_it_is_cached():
    machine = engine()
    (first,) = machine.add(TEXT, params())
    machine.step()
    (second,) = machine.add((*TEXT[:10], 3, 3), params())
    fake.run(machine)
    assert (first.stats.prefix_hit_tokens, second.stats.prefix_hit_tokens) == (0, 8)
    assert second.completion().token_ids == cold((*TEXT[:10], 3, 3), params()).token_ids


def test_choices_prefill_their_prompt_once():
    machine = engine()
    wanted = params(n=4, temperature=1.0, seed=3)
    choices = fake.complete(machine, [TEXT], wanted)
    assert [choice.stats.prefix_hit_tokens for choice in choices] == [0, 20, 20, 20]
    apart = fake.complete(engine(prefix_cache=False), [TEXT], wanted)
    assert [choice.token_ids for choice in choices] == [choice.token_ids for choice in apart]
    assert len({choice.token_ids for choice in choices}) > 1


@pytest.mark.parametrize(
    "make",
    [
        engine,
        lambda **config: padded_engine(
            model("llama"), decode, page_size=PAGE, **{"kv_cache_tokens": 512, **config}
        ),
    ],
)
def test_texts_stay_the_same_while_pages_are_evicted(make):
    """Many texts with common beginnings through a cache that holds a few of them."""
    machine = make() if make is engine else make(kv_cache_tokens=120)
    prompts = [(*TEXT[: 5 + 3 * (at % 5)], *(at % 7 + 5,) * (at % 3)) for at in range(15)]
    expected = [cold(prompt, params("linear")).token_ids for prompt in prompts]
    for some in (prompts[:6], prompts[6:7], prompts[7:]):
        completions = fake.complete(machine, some, params("linear"))
        at = prompts.index(some[0])
        assert [each.token_ids for each in completions] == expected[at : at + len(some)]
    pool = machine.runner.pool
    assert pool.free_pages + pool.cached_pages == pool.pages


def test_switched_off_it_keeps_nothing():
    machine = engine(prefix_cache=False)
    for _ in range(2):
        assert one(machine, TEXT, params()).stats.prefix_hit_tokens == 0
    assert machine.runner.pool.free_pages == machine.runner.pool.pages


class Poisoned(fake.FakeBackbone):
    """Gives NaN for one prompt as long as it is ill."""

    ill = True

    def _logits(self, batch, index):
        logits = super()._logits(batch, index)
        row = batch.rows[int(batch.row[index])]
        mine = self._told[int(batch.row[index])].prompt[0] == 201
        return logits * float("nan") if self.ill and mine and row.start > 12 else logits


def test_what_a_model_failed_is_not_offered_to_others():
    script = fake.Script((201, *fake.encode("Say it: ")), tuple(fake.encode("the quick brown fox jumps")))
    backbone = Poisoned(script)
    machine = Engine(backbone, fake.decode, EngineConfig(page_size=PAGE))
    (failed,) = machine.add(script.prompt, params("linear"))
    fake.run(machine)
    assert "NaN" in str(failed.error)
    assert machine.runner.pool.free_pages == machine.runner.pool.pages
    backbone.ill = False
    (well,) = machine.add(script.prompt, params("linear"))
    fake.run(machine)
    assert (well.stats.prefix_hit_tokens, well.completion().token_ids) == (0, script.answer[:20])


def test_a_deadline_costs_others_nothing_of_what_is_known():
    machine = engine()
    (late,) = machine.add(TEXT, params(), deadline=0.0)
    (early,) = machine.add(TEXT, params(), deadline=monotonic() + 1e6)
    fake.run(machine)
    assert late.error is not None
    assert early.error is None
    (late,) = machine.add(TEXT, params(), deadline=monotonic() + 1e6)
    machine.step()
    machine._deadlines.add(late, 0.0)
    fake.run(machine)
    assert late.error is not None
    assert one(machine, TEXT, params()).stats.prefix_hit_tokens == 20


def test_hits_add_up_in_statistics():
    machine = engine()
    completions = [one(machine, TEXT, params()) for _ in range(3)]
    total = completions[0].stats
    for before, after in pairwise(completions):
        assert after.stats.prefix_hit_tokens >= before.stats.prefix_hit_tokens
        total.add(after.stats)
    assert total.prefix_hit_tokens == 40
