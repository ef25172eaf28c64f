import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.speculation import slow_picks

from recguide.core import SamplingParams
from recguide.speculation.filters import filters, kept

OFF = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}


def params(temperature=1.0, **settings_):
    return SamplingParams(temperature=temperature, seed=0, **(OFF | settings_))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    width=st.sampled_from([5, 70, 700]),
    spread=st.sampled_from([0.0, 0.5, 3.0, 10.0]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1]),
    top_k=st.sampled_from([0, 1, 3, 63, 64, 65, 600, 10**6]),
    min_p=st.sampled_from([0.0, 1e-3, 0.1, 0.9]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
)
def test_filters_equal_the_slow_ones(seed, width, spread, top_p, top_k, min_p, temperature):
    """Logits lie on a grid, so ties are frequent."""
    z = torch.randn(width, generator=torch.Generator().manual_seed(seed)) * spread
    z = (z * 4).round() / 4
    z[1] = float("-inf")
    asked = params(temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    expected = slow_picks.filtered([value / temperature for value in z.tolist()], asked)
    found = kept(z, asked).tolist()
    assert found[: len(expected)] == expected
    # What neither keeps a finite chance may differ: tokens that were banned, at the very end.
    assert all(z[token] == float("-inf") for token in found[len(expected) :])


@pytest.mark.parametrize(("top_p", "count"), [(0.25, 1), (0.2500001, 2), (0.5, 2), (0.75, 3), (0.99, 4)])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, count):
    assert kept(torch.zeros(4), params(top_p=top_p)).tolist() == list(range(count))


def test_the_most_likely_token_always_stays():
    z = torch.tensor([0.0, 5.0, 5.0])
    for asked in (params(top_p=1e-6), params(top_k=1), params(min_p=0.999999)):
        assert kept(z, asked)[0] == 1


def test_a_wide_flat_row_is_settled_by_id():
    z = torch.zeros(40_000)
    assert kept(z, params(top_k=1000)).tolist() == list(range(1000))
    assert kept(z, params(top_p=0.5)).tolist() == list(range(20_000))


@pytest.mark.parametrize("name", OFF)
def test_filters_says_whether_any_is_on(name):
    assert not filters(params())
    assert filters(params(**{name: 1 if name == "top_k" else 0.5}))
