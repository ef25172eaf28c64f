import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.speculation import slow_picks

from recguide.core import SamplingParams
from recguide.speculation.field import Field
from recguide.speculation.filters import filters, kept

OFF = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}


def params(temperature=1.0, **settings_):
    return SamplingParams(temperature=temperature, seed=0, **(OFF | settings_))


def kept_of(z, asked, mask=None):
    """Kept tokens of one slot, which stands between two others with other filters."""
    field = Field(torch.stack([torch.arange(len(z)).float(), z, z.flip(0)]), mask)
    others = params(0.4, top_k=2), params(1.0, top_p=0.7)
    found = kept(field, torch.arange(3), [others[0], asked, others[1]])
    (alone,) = kept(Field(z[None], mask), torch.arange(1), [asked])
    assert torch.equal(found[1], alone)
    return alone.tolist()


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
    found = kept_of(z, asked)
    # Tokens that were banned may or may not hang on at the end.
    alive = [token for token in expected if z[token] > float("-inf")]
    assert found[: len(alive)] == alive
    assert all(token >= width or z[token] == float("-inf") for token in found[len(alive) :])


@pytest.mark.parametrize(("top_p", "count"), [(0.25, 1), (0.2500001, 2), (0.5, 2), (0.75, 3), (0.99, 4)])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, count):
    assert kept_of(torch.zeros(4), params(top_p=top_p)) == list(range(count))


def test_the_most_likely_token_always_stays():
    z = torch.tensor([0.0, 5.0, 5.0])
    for asked in (params(top_p=1e-6), params(top_k=1), params(min_p=0.999999)):
        assert kept_of(z, asked)[0] == 1


def test_a_wide_flat_row_is_settled_by_id():
    z = torch.zeros(40_000)
    assert kept_of(z, params(top_k=1000)) == list(range(1000))
    assert kept_of(z, params(top_p=0.5)) == list(range(20_000))


def test_the_mask_token_is_not_kept_and_has_no_mass():
    z = torch.zeros(5)
    z[1] = 30.0
    assert kept_of(z, params(top_p=0.5), mask=1) == [0, 2]
    assert kept_of(z, params(top_k=3), mask=1) == [0, 2, 3]


@pytest.mark.parametrize("name", OFF)
def test_filters_says_whether_any_is_on(name):
    assert not filters(params())
    assert filters(params(**{name: 1 if name == "top_k" else 0.5}))
