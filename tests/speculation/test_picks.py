"""Picks against a slow reference, and what makes speculation exact: they depend on nothing but their slot."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.speculation import slow_picks

from recguide.core import ParameterError, SamplingParams, Vocabulary
from recguide.speculation.noise import LuckyTokens, gumbel
from recguide.speculation.picks import BadLogits, PickRow, pick, validate

SIZE = 24
VOCABULARY = Vocabulary(SIZE, eos=(2, 5), mask=7, think=(10, 11))
TOKENS = st.integers(0, SIZE - 1)


@st.composite
def sampling(draw):
    """Parameters whose edits are exact in fp32 on a grid of quarters: both sides see the same ties."""
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0, 3.0])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.4])),
        top_k=draw(st.sampled_from([0, 0, 1, 5])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.07])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 2.0, 0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.5, -0.25])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.5, -0.5])),
        logit_bias=draw(st.dictionaries(TOKENS, st.sampled_from([-100.0, -2.0, 1.5, 100.0]), max_size=3)),
        seed=draw(st.integers(0, 2**63 - 1)),
        max_tokens=50,
        min_tokens=draw(st.sampled_from([0, 0, 2, 5, 50])),
        stop_token_ids=draw(st.lists(TOKENS, max_size=2)),
        ignore_eos=draw(st.booleans()),
        thinking_budget=draw(st.sampled_from([None, None, 0, 3, 5])),
    )


@st.composite
def pick_rows(draw):
    params = draw(sampling())
    history = draw(st.lists(TOKENS, max_size=6))
    count = draw(st.integers(1, 5))
    draft = draw(st.booleans())
    prompt = draw(st.lists(TOKENS, min_size=1, max_size=6))
    if draw(st.booleans()):
        prompt = [*prompt, 10]
    return PickRow(
        params=params,
        prompt=prompt,
        history=history,
        extra=() if draft else draw(st.lists(TOKENS, min_size=count - 1, max_size=count + 2)),
        position=len(prompt) + len(history),
        count=count,
        draft=draft,
    )


def grid(slots, seed, width=SIZE):
    z = torch.randn(slots, width, generator=torch.Generator().manual_seed(seed)) * 3
    return (z * 4).round() / 4


def slots_of(rows):
    """(row, prompt, history, position) of every slot, histories written out."""
    for row in rows:
        for i in range(row.count):
            yield row, row.prompt, [*row.history, *row.extra[:i]], row.position + i


@settings(max_examples=250, deadline=None)
@given(st.lists(pick_rows(), min_size=1, max_size=4), st.integers(0, 10**6))
def test_picks_equal_the_slow_ones(rows, seed):
    rows = [row if not row.draft else replace(row, count=1) for row in rows]
    logits = grid(sum(row.count for row in rows), seed)
    before = logits.clone()
    tokens = pick(logits, rows, VOCABULARY).tokens.tolist()
    assert torch.equal(logits, before)
    for z, token, (row, prompt, history, position) in zip(
        logits.tolist(), tokens, slots_of(rows), strict=True
    ):
        assert token == slow_picks.pick(z, row.params, VOCABULARY, prompt, history, position)


@settings(max_examples=100, deadline=None)
@given(st.lists(pick_rows(), min_size=2, max_size=4), st.integers(0, 10**6))
def test_a_pick_does_not_depend_on_its_batch(rows, seed):
    logits = grid(sum(row.count for row in rows), seed)
    together = pick(logits, rows, VOCABULARY)
    start = 0
    for row in rows:
        end = start + row.count
        alone = pick(logits[start:end], [row], VOCABULARY)
        assert torch.equal(alone.tokens, together.tokens[start:end])
        assert torch.equal(alone.candidates, together.candidates[:, start:end])
        for name in ("p1", "p2", "entropy"):
            torch.testing.assert_close(getattr(alone, name), getattr(together, name)[start:end])
        start = end


@settings(max_examples=100, deadline=None)
@given(pick_rows(), st.integers(0, 10**6))
def test_verifying_a_block_picks_what_plain_steps_pick(row, seed):
    """The slots of a causal row, one by one with the history written out, as a draft row or a causal one."""
    row = replace(row, draft=False, extra=[*row.extra, *[3] * row.count][: row.count])
    logits = grid(row.count, seed)
    together = pick(logits, [row], VOCABULARY).tokens.tolist()
    for i in range(row.count):
        step = replace(
            row, history=[*row.history, *row.extra[:i]], extra=(), position=row.position + i, count=1
        )
        assert pick(logits[i : i + 1], [step], VOCABULARY).tokens.tolist() == [together[i]]
        assert pick(logits[i : i + 1], [replace(step, draft=True)], VOCABULARY).tokens.tolist() == [
            together[i]
        ]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_wide_vocabulary_in_any_batch(temperature):
    """Wide enough for every short cut; the same tokens alone, together, and with lucky tokens known."""
    vocabulary = Vocabulary(49_152, eos=(2,), mask=16)
    z = torch.randn(6, 49_152, generator=torch.Generator().manual_seed(1)) * 3
    z += 4 * (z / 3).clamp(min=2.5).sub(2.5)
    z[:, 16] = 100.0
    params = SamplingParams(temperature=temperature, seed=4)
    row = PickRow(params, (1, 2), (), (), 2, 6, draft=False)
    tokens = pick(z, [row], vocabulary).tokens
    luck = LuckyTokens(49_152)
    for i in range(6):
        alone = replace(row, position=2 + i, count=1, draft=i % 2 == 0)
        assert pick(z[i : i + 1], [alone], vocabulary, luck).tokens.item() == tokens[i]
        luck.at(4, 2 + i)
        assert pick(z[i : i + 1], [alone], vocabulary, luck).tokens.item() == tokens[i]
    removed = z.double()
    removed[:, 16] = -math.inf
    if temperature:
        positions = torch.arange(2, 8)
        removed = removed / temperature + gumbel(torch.tensor([4] * 6), positions, torch.arange(49_152))
    assert torch.equal(tokens, removed.argmax(1))


def plain(**settings_):
    return SamplingParams(**settings_)


def causal(params, prompt=(1,), history=(), extra=(), count=1):
    return PickRow(params, prompt, history, extra, len(prompt) + len(history), count, draft=False)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_slots_no_picks(temperature):
    row = replace(causal(plain(temperature=temperature, seed=1)), count=0)
    for rows in ([], [row]):
        found = pick(torch.empty(0, SIZE), rows, VOCABULARY)
        assert found.tokens.shape == found.p1.shape == found.entropy.shape == (0,)


def test_greedy_takes_the_lowest_of_equals_and_never_the_mask():
    logits = torch.zeros(1, SIZE)
    logits[0, [7, 9, 20]] = torch.tensor([5.0, 3.0, 3.0])
    assert pick(logits, [causal(plain())], VOCABULARY).tokens.tolist() == [9]
    assert pick(logits, [causal(plain())], replace(VOCABULARY, mask=None)).tokens.tolist() == [7]


def test_min_tokens_counts_slot_by_slot():
    logits = torch.zeros(6, SIZE)
    logits[:, 2] = 9.0
    logits[:, 3] = 5.0
    row = causal(plain(min_tokens=5), history=(8, 8), extra=(8,) * 5, count=6)
    assert pick(logits, [row], VOCABULARY).tokens.tolist() == [3, 3, 3, 2, 2, 2]
    ignoring = causal(plain(min_tokens=5, ignore_eos=True), history=(8, 8), extra=(8,) * 5, count=6)
    assert pick(logits, [ignoring], VOCABULARY).tokens.tolist() == [2] * 6


def test_penalties_grow_inside_a_block():
    """A token of the block weighs on the slots after it and not on its own."""
    logits = torch.zeros(4, SIZE)
    logits[:, 3] = 1.0
    row = causal(plain(presence_penalty=2.0), extra=(8, 3, 8), count=4)
    assert pick(logits, [row], VOCABULARY).tokens.tolist() == [3, 3, 0, 0]
    row = causal(plain(frequency_penalty=0.75), extra=(3, 3, 3), count=4)
    assert pick(logits, [row], VOCABULARY).tokens.tolist() == [3, 3, 0, 0]


def test_only_repetition_looks_at_the_prompt():
    logits = torch.zeros(1, SIZE)
    logits[0, 3], logits[0, 4] = 1.0, 0.75
    prompt = (3, 3)
    assert pick(logits, [causal(plain(repetition_penalty=2.0), prompt)], VOCABULARY).tokens.item() == 4
    assert pick(logits, [causal(plain(presence_penalty=2.0), prompt)], VOCABULARY).tokens.item() == 3
    assert pick(logits, [causal(plain(frequency_penalty=2.0), prompt)], VOCABULARY).tokens.item() == 3


@pytest.mark.parametrize(
    ("prompt", "history", "extra", "expected"),
    [
        ((1, 10), (), (8,) * 5, [3, 3, 3, 11, 3, 3]),
        ((1, 10), (8,), (8,) * 5, [3, 3, 11, 3, 3, 3]),
        ((1, 10), (), (8, 8, 8, 11, 8), [3, 3, 3, 11, 3, 3]),
        ((1, 10), (11,), (8,) * 5, [3] * 6),
        ((1, 10), (), (8, 11, 8, 8, 8), [3] * 6),
        ((10, 1, 11), (), (8,) * 5, [3] * 6),
        ((10, 11, 10, 1), (), (8,) * 5, [3, 3, 3, 11, 3, 3]),
        ((1, 1), (), (8,) * 5, [3] * 6),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_thinking_is_closed_once(prompt, history, extra, expected, temperature):
    logits = torch.zeros(6, SIZE)
    logits[:, 3] = 50.0
    row = causal(plain(thinking_budget=3, temperature=temperature, seed=1), prompt, history, extra, 6)
    assert pick(logits, [row], VOCABULARY).tokens.tolist() == expected


def test_the_closing_token_comes_even_if_it_was_banned():
    logits = torch.zeros(1, SIZE)
    params = plain(thinking_budget=0, stop_token_ids=(11,), min_tokens=5, logit_bias={11: -100.0})
    assert pick(logits, [causal(params, (10,))], VOCABULARY).tokens.item() == 11


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_logits_name_their_rows(value):
    logits = torch.zeros(5, SIZE)
    logits[3, 6] = value
    rows = [
        causal(plain(), count=2, extra=(1,)),
        causal(plain(), count=1),
        causal(plain(), count=2, extra=(1,)),
    ]
    with pytest.raises(BadLogits, match=r"rows \[2\]") as caught:
        pick(logits, rows, VOCABULARY)
    assert caught.value.rows == (2,)


def test_a_row_without_any_finite_logit_is_bad():
    with pytest.raises(BadLogits):
        pick(torch.full((1, SIZE), -math.inf), [causal(plain())], VOCABULARY)


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("logit_bias", plain(logit_bias={SIZE: 1.0})),
        ("logit_bias", plain(logit_bias={-1: 1.0})),
        ("logit_bias", plain(logit_bias={VOCABULARY.mask: 1.0})),
        ("stop_token_ids", plain(stop_token_ids=(SIZE,))),
        ("thinking_budget", plain(thinking_budget=4)),
    ],
)
def test_validate_names_the_field(field, params):
    with pytest.raises(ParameterError) as caught:
        validate(params, replace(VOCABULARY, think=None))
    assert caught.value.parameter == field


def test_validate_passes_what_fits():
    validate(plain(logit_bias={0: 1.0, SIZE - 1: -1.0}, stop_token_ids=(3,), thinking_budget=0), VOCABULARY)
