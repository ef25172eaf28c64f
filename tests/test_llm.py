"""The offline API: callers share one engine, and each gets its own text, whole and in order."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
import pytest
from tests.tiny import write_checkpoint

from recguide.core import FinishReason, ParameterError, SamplingParams
from recguide.llm import LLM

PROMPTS = ("Once", "In a hole in the ground there lived", "x")
PARAMS = SamplingParams(max_tokens=30, ignore_eos=True, block_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("llm") / "tiny", "nemotron_labs_diffusion")


@pytest.fixture(scope="module")
def shared(folder):
    return LLM(str(folder), device="cpu", dtype="float64", kv_cache_tokens=2048)


@pytest.fixture
def llm(shared):
    """Idle before and after each test, with every page free."""
    assert_idle(shared)
    yield shared
    assert_idle(shared)


def assert_idle(llm):
    assert not llm.engine.busy
    assert used_pages(llm) == 0


def used_pages(llm):
    return llm.engine.runner.pool.used_pages


def alone(llm, prompt, params=PARAMS):
    return llm.generate(prompt, params)[0].completions


def assert_whole(chunks, completions):
    """Chunks of a stream add up to the completions, choice by choice."""
    for expected in completions:
        mine = [chunk for chunk in chunks if chunk.index == expected.index]
        assert "".join(chunk.text for chunk in mine) == expected.text
        assert sum((chunk.token_ids for chunk in mine), ()) == expected.token_ids
        assert len(sum((chunk.origins for chunk in mine), ())) == len(expected.token_ids)
        assert [chunk.completion is not None for chunk in mine] == [False] * (len(mine) - 1) + [True]
        last = mine[-1].completion
        assert (last.text, last.token_ids) == (expected.text, expected.token_ids)
        assert last.finish_reason is expected.finish_reason
    assert {chunk.index for chunk in chunks} == {completion.index for completion in completions}


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_adds_up_to_what_generate_returns(llm, n):
    params = SamplingParams(max_tokens=20, temperature=1.0, seed=3, n=n, block_size=4)
    assert_whole(list(llm.stream(PROMPTS[0], params)), alone(llm, PROMPTS[0], params))


def test_a_stream_says_something_before_its_end(llm):
    chunks = list(llm.stream(PROMPTS[0], PARAMS))
    assert len(chunks) > 2
    assert chunks[0].completion is None


def test_two_interleaved_streams_each_get_their_whole_text(llm):
    first, second = llm.stream(PROMPTS[0], PARAMS), llm.stream(PROMPTS[1], PARAMS)
    pairs = list(zip_longest(first, second))
    assert len(pairs) > 2
    for prompt, chunks in zip(PROMPTS, zip(*pairs, strict=True), strict=False):
        assert_whole([chunk for chunk in chunks if chunk is not None], alone(llm, prompt))


def test_a_stream_that_is_read_late_has_lost_nothing(llm):
    """Another caller runs the engine to its own end first."""
    late, early = llm.stream(PROMPTS[0], PARAMS), llm.stream(PROMPTS[1], PARAMS)
    chunks = [next(late)]
    assert_whole(list(early), alone(llm, PROMPTS[1]))
    assert_whole([*chunks, *late], alone(llm, PROMPTS[0]))


def test_generate_works_while_a_stream_is_open(llm):
    expected = [alone(llm, prompt) for prompt in PROMPTS]
    stream = llm.stream(PROMPTS[0], PARAMS)
    chunks = [next(stream)]
    seen = []
    generations = llm.generate(PROMPTS[1:], PARAMS, progress=lambda done, total: seen.append((done, total)))
    assert [generation.text for generation in generations] == [each[0].text for each in expected[1:]]
    assert seen[-1] == (2, 2)
    assert_whole([*chunks, *stream], expected[0])


def test_closing_a_stream_early_frees_its_pages_and_the_other_goes_on(llm):
    closed, kept = llm.stream(PROMPTS[1], PARAMS), llm.stream(PROMPTS[0], PARAMS)
    next(closed)
    chunks = [next(kept), next(kept)]
    held = used_pages(llm)
    closed.close()
    assert used_pages(llm) < held
    assert_whole([*chunks, *kept], alone(llm, PROMPTS[0]))


def test_a_refused_prompt_takes_the_call_back_and_leaves_a_stream_alone(llm):
    stream = llm.stream(PROMPTS[0], PARAMS)
    chunks = [next(stream)]
    with pytest.raises(ParameterError, match="99999"):
        llm.generate([[104, 105], [99999]], PARAMS)
    assert_whole([*chunks, *stream], alone(llm, PROMPTS[0]))


def test_an_interrupted_call_frees_everything(llm):
    def interrupt(_done, _total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, [SamplingParams(max_tokens=n) for n in (2, 9, 9)], progress=interrupt)
    assert_idle(llm)


@pytest.mark.parametrize(
    "prompts", [["text", 104], [104, "text"], [[104], 105], [104, [105]], [["text"]], [None]]
)
def test_prompts_of_mixed_kinds_are_refused(llm, prompts):
    with pytest.raises(ParameterError) as error:
        llm.generate(prompts, PARAMS)
    assert error.value.parameter == "prompts"


def test_texts_and_token_ids_may_stand_side_by_side(llm):
    ids = llm.tokenizer.encode(PROMPTS[1])
    text, tokens = llm.generate([PROMPTS[0], ids], PARAMS)
    assert (text.prompt, tokens.prompt) == (PROMPTS[0], None)
    assert tokens.prompt_token_ids == tuple(ids)
    assert tokens.text == alone(llm, PROMPTS[1])[0].text


def test_no_prompts_are_no_generations(llm):
    assert llm.generate([]) == []
    assert llm.generate([], []) == []
    assert llm.generate((), PARAMS, progress=pytest.fail) == []


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_list_of_params_of_another_length_is_refused(llm, count):
    with pytest.raises(ParameterError, match=f"{count} sets for 3 prompts") as error:
        llm.generate(PROMPTS, [PARAMS] * count)
    assert error.value.parameter == "params"


def test_params_go_to_their_own_prompts(llm):
    each = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (3, 1, 7)]
    generations = llm.generate(PROMPTS, each)
    assert [len(generation.token_ids) for generation in generations] == [3, 1, 7]
    assert [generation.prompt for generation in generations] == list(PROMPTS)


def test_numpy_integers_are_token_ids(llm):
    ids = llm.tokenizer.encode(PROMPTS[1])
    expected = alone(llm, ids)[0].token_ids
    numbers = np.array(ids)
    for prompts in (list(numbers), numbers, [list(numbers)], [numbers], [np.int32(i) for i in ids]):
        (generation,) = llm.generate(prompts, PARAMS)
        assert generation.token_ids == expected
        assert generation.prompt_token_ids == tuple(ids)
        assert {type(token) for token in generation.prompt_token_ids} == {int}


def test_a_stream_takes_numpy_integers_too(llm):
    ids = llm.tokenizer.encode(PROMPTS[1])
    for prompt in (list(np.array(ids)), np.array(ids)):
        assert_whole(list(llm.stream(prompt, PARAMS)), alone(llm, ids))


@pytest.mark.parametrize("prompt", [[104, "text"], ["text"], [[104]], None])
def test_a_stream_refuses_what_is_no_prompt(llm, prompt):
    with pytest.raises(ParameterError, match="prompt"):
        next(llm.stream(prompt, PARAMS))


def test_chat_goes_through_the_template(llm):
    messages = [{"role": "system", "content": "Rhyme."}, {"role": "user", "content": "Hi"}]
    for thinking in (False, True):
        generation = llm.chat(messages, PARAMS, enable_thinking=thinking)
        text = llm.tokenizer.decode(generation.prompt_token_ids, skip_special_tokens=False)
        assert text == (
            "<|im_start|>system\nRhyme.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
            + ("<think>\n" if thinking else "<think></think>")
        )
        assert generation.completions[0].finish_reason is FinishReason.LENGTH
        assert generation.text == alone(llm, list(generation.prompt_token_ids))[0].text


def test_chat_names_what_the_template_does_not_know(llm):
    with pytest.raises(ParameterError, match="shouting"):
        llm.chat([{"role": "user", "content": "Hi"}], PARAMS, shouting=True)


def test_exactness_that_cannot_be_promised_is_refused_by_name(folder):
    with pytest.raises(ParameterError, match="GPU") as error:
        LLM(str(folder), device="cpu", exact=True)
    assert error.value.parameter == "exact"


def test_progress_counts_choices_up_to_all_of_them(llm):
    seen = []
    each = [SamplingParams(max_tokens=n, n=2, temperature=1.0, seed=n, ignore_eos=True) for n in (2, 12, 30)]
    llm.generate(PROMPTS, each, progress=lambda done, total: seen.append((done, total)))
    done = [count for count, _ in seen]
    assert {total for _, total in seen} == {6}
    assert done == sorted(set(done))
    assert len(done) >= 3
    assert done[-1] == 6
