import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide.speculation.leaders import BLOCK, first_largest, leaders


@pytest.mark.parametrize("width", [7, BLOCK, 10 * BLOCK, 16 * BLOCK, 1000, 64 * BLOCK])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_leaders_are_the_largest(width, count):
    z = torch.randn(3, width, generator=torch.Generator().manual_seed(width))
    values, ids = leaders(z, count)
    assert torch.equal(values, z.sort(dim=1, descending=True).values[:, :count])
    assert torch.equal(z.gather(1, ids), values)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([9, 8 * BLOCK, 40 * BLOCK]), st.integers(1, 4))
def test_ties_rise_by_id_and_the_first_largest_is_the_lowest(seed, width, count):
    z = torch.randint(0, 4, (2, width), generator=torch.Generator().manual_seed(seed)).float()
    values, ids = leaders(z, count)
    assert torch.equal(z.gather(1, ids), values)
    assert ((values.diff() < 0) | (ids.diff() > 0)).all()
    peak, first = first_largest(z)
    assert peak.tolist() == z.amax(1).tolist()
    assert first.tolist() == [row.index(max(row)) for row in z.tolist()]


@pytest.mark.parametrize("width", [9, 4 * BLOCK])
def test_nan_is_not_overlooked(width):
    z = torch.zeros(2, width)
    z[1, 5] = float("nan")
    peak, _ = first_largest(z)
    assert peak.isnan().tolist() == [False, True]
