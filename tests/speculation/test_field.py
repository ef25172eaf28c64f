import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide.speculation.field import BLOCK, Field, HostField

KINDS = st.sampled_from([Field, HostField])
WIDTHS = st.sampled_from([1, 9, BLOCK, 3 * BLOCK + 1, 20 * BLOCK])


def grid(slots, width, seed):
    """Logits with many ties."""
    return torch.randint(-3, 3, (slots, width), generator=torch.Generator().manual_seed(seed)).float()


def without(z, mask):
    z = z.clone()
    if mask is not None:
        z[:, mask] = float("-inf")
    return z


@settings(max_examples=100, deadline=None)
@given(KINDS, st.integers(0, 10**6), WIDTHS, st.data())
def test_reads_equal_those_of_a_copy_without_the_mask(kind, seed, width, data):
    mask = data.draw(st.none() | st.integers(0, width - 1))
    z = grid(3, width, seed)
    before = z.clone()
    field, copy = kind(z, mask), without(z, mask)

    peaks, tokens = field.first()
    assert peaks.tolist() == copy.amax(1).tolist()
    assert tokens.tolist() == [row.index(max(row)) for row in copy.tolist()]

    count = data.draw(st.integers(1, width))
    slots = torch.tensor([0, 2])
    values, leaders = field.leaders(slots, count)
    assert torch.equal(values, copy[slots].sort(dim=1, descending=True).values[:, :count])
    finite = values.isfinite()
    assert torch.equal(copy[slots].gather(1, leaders.clamp(max=width - 1))[finite], values[finite])
    assert ((values.diff() < 0) | (leaders.diff() > 0)).all()

    assert torch.equal(field.row(1), copy[1])
    every = torch.arange(width)
    assert torch.equal(field.at(slots[:, None], every), copy[slots])
    assert torch.equal(z, before)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), WIDTHS, st.data())
def test_a_host_reads_the_same_as_arrays(seed, width, data):
    mask = data.draw(st.none() | st.integers(0, width - 1))
    z = grid(3, width, seed)
    field, copy = HostField(z, mask), without(z, mask)
    assert field.at_least(1, 1.0).tolist() == (copy[1] >= 1.0).nonzero().squeeze(1).tolist()
    assert field.of(1, np.arange(width)).tolist() == copy[1].tolist()
    values, tokens = field.leading([2, 0], 1)
    assert values.tolist() == copy[[2, 0]].amax(1, keepdim=True).tolist()
    assert tokens[:, 0].tolist() == field.first()[1][[2, 0]].tolist()


def test_pieces_cover_the_slots_once():
    z = torch.randn(9, 3 * 2**15)
    field = Field(z, None)
    for slots in (torch.arange(2, 7), torch.tensor([0, 3, 4, 8])):
        peaks = z[slots].amax(1)
        pieces = [piece.clone() for piece in field.shifted(slots, peaks)]
        assert len(pieces) > 1
        assert torch.equal(torch.cat(pieces), z[slots] - peaks[:, None])


@pytest.mark.parametrize("kind", [Field, HostField])
@pytest.mark.parametrize("width", [9, 4 * BLOCK])
def test_nan_is_not_overlooked(kind, width):
    z = torch.zeros(2, width)
    z[1, 5] = float("nan")
    peak, _ = kind(z, 3).first()
    assert peak.isnan().tolist() == [False, True]
