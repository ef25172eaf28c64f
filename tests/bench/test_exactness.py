"""The rule that tells a tie from a bug, on numbers small enough to check by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide.bench.exactness import (
    TOLERANCES,
    Divergence,
    Forced,
    Verdict,
    compare,
    first_difference,
    follow,
    gaps,
    judge,
    tolerance,
)
from recguide.core import ParameterError, SamplingParams, Vocabulary
from recguide.speculation.noise import gumbel

VOCABULARY = Vocabulary(size=6, eos=(0,), mask=5)
GREEDY = SamplingParams(seed=0)
LOGITS = torch.tensor([0.0, 3.0, 2.5, 1.0, -1.0, 9.0], dtype=torch.float64)


def gap(logits, params, prompt, history, token, vocabulary):
    """Of one token after `history`."""
    return gaps(logits[None], params, prompt, (*history, token), [len(history)], vocabulary)[0]


def at(gap: float, later: float = 0.0) -> Divergence:
    return Divergence(3, 1, 2, gap, later)


def forced(difference: float) -> Forced:
    return Forced(difference, 0, 20.0)


@pytest.mark.parametrize(
    ("differences", "divergence", "verdict"),
    [
        ([0.0], None, Verdict.IDENTICAL),
        ([0.1], None, Verdict.IDENTICAL),
        ([0.11], None, Verdict.BUG),
        ([float("inf")], None, Verdict.BUG),
        ([float("nan")], None, Verdict.BUG),
        ([0.1, 0.1], at(0.2), Verdict.TIE),
        ([0.1, 0.1], at(0.21), Verdict.BUG),
        ([0.1, 0.11], at(0.0), Verdict.BUG),
        ([0.11, 0.1], at(0.0), Verdict.BUG),
        ([0.0, 0.0], at(0.1, later=0.2), Verdict.TIE),
        ([0.0, 0.0], at(0.1, later=0.3), Verdict.BUG),
        ([0.0], at(float("inf")), Verdict.BUG),
    ],
)
def test_a_tie_needs_every_logit_within_epsilon_and_the_gap_within_two(differences, divergence, verdict):
    assert judge(0.1, [forced(difference) for difference in differences], divergence) is verdict


def test_precisions_are_ordered_and_unknown_ones_refused():
    order = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    assert sorted(TOLERANCES, key=lambda dtype: TOLERANCES[dtype].relative) == list(order)
    with pytest.raises(ParameterError, match="dtype"):
        tolerance(torch.int8)


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_first_difference(one, other):
    position = first_difference(one, other)
    if position is None:
        assert one == other
    else:
        assert one[:position] == other[:position]
        assert one[position : position + 1] != other[position : position + 1]


def test_compare_finds_the_largest_difference_and_where():
    single = torch.tensor([[1.0, -8.0], [2.0, 3.0], [0.0, float("-inf")]])
    layout = single.clone()
    layout[1, 0] += 0.25
    layout[0, 1] -= 0.125
    assert compare(layout, single) == Forced(0.25, 1, 8.0)
    layout[2, 1] = 0.0
    assert compare(layout, single).difference == float("inf")
    layout[2, 1] = float("nan")
    assert compare(layout, single).difference == float("inf")


def test_a_greedy_gap_is_the_difference_of_logits():
    assert gap(LOGITS, GREEDY, (2,), (), 1, VOCABULARY) == 0.0
    assert gap(LOGITS, GREEDY, (2,), (), 2, VOCABULARY) == pytest.approx(0.5, abs=1e-9)
    assert gap(LOGITS, GREEDY, (2,), (), 4, VOCABULARY) == pytest.approx(4.0, abs=1e-9)


def test_a_token_that_the_request_forbids_has_an_infinite_gap():
    assert gap(LOGITS, GREEDY, (2,), (), 5, VOCABULARY) == float("inf")  # the mask token
    no_end = SamplingParams(seed=0, min_tokens=3)
    assert gap(LOGITS, no_end, (2,), (), 0, VOCABULARY) == float("inf")


def test_a_gap_counts_penalties_and_bias():
    biased = SamplingParams(seed=0, logit_bias={2: 0.75}, presence_penalty=1.0)
    # token 1: 3.0, token 2: 2.5 + 0.75; after token 2 was emitted: 2.25
    assert gap(LOGITS, biased, (3,), (), 1, VOCABULARY) == pytest.approx(0.25, abs=1e-9)
    assert gap(LOGITS, biased, (3,), (2,), 2, VOCABULARY) == pytest.approx(0.75, abs=1e-9)


@settings(deadline=None, max_examples=6)
@given(st.integers(0, 2**40), st.floats(0.1, 3.0))
def test_a_sampled_gap_is_that_of_perturbed_logits(seed, temperature):
    params = SamplingParams(temperature=temperature, seed=seed)
    position = torch.tensor([4])
    noise = gumbel(torch.tensor([seed]), position, torch.arange(6)).double()[0]
    perturbed = (LOGITS + temperature * noise)[:5]  # the mask token is out
    best = float(perturbed.max())
    for token in range(1, 5):
        expected = best - float(perturbed[token])
        assert gap(LOGITS, params, (1, 2, 3), (1,), token, VOCABULARY) == pytest.approx(expected, abs=1e-5)


def test_a_token_just_outside_a_filter_has_the_gap_to_it():
    top_2 = SamplingParams(temperature=1.0, seed=11, top_k=2)
    near = LOGITS.clone()
    near[3] = near[2] - 1e-6
    needed = gap(near, top_2, (1,), (), 3, VOCABULARY)
    assert 1e-6 <= needed < 10.0


def test_follow_lists_every_token_that_plain_decoding_would_not_have_picked():
    logits = torch.stack([LOGITS, LOGITS, LOGITS])
    found = follow(logits, GREEDY, (2,), (1, 2, 1), VOCABULARY)
    assert [(one.position, one.expected, one.got) for one in found] == [(1, 1, 2)]
    assert found[0].gap == pytest.approx(0.5, abs=1e-9)
