"""A token's bits under exact operations, alone and in any company."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.ops.tensors import Maker

pytest.importorskip("triton")

from recguide.models.ops.exact import ExactOps, split_tile

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPES = [torch.bfloat16, torch.float16, torch.float32] if GPU else [torch.float32, torch.float16]
OPS = ExactOps(1e-5)
HIDDEN, INNER = 80, 96


def results(make, x, y, on):
    """All operations on tokens x [N, hidden], y [N, inner]; `on` False for none."""
    adapted = on is not False
    qkv, gate_up, down = make.matrix(HIDDEN, 112), make.matrix(HIDDEN, 2 * INNER), make.matrix(INNER, HIDDEN)
    norm = make.tensor(HIDDEN)
    deltas = [make.delta(matrix, (matrix.shape[1],)) if adapted else None for matrix in (qkv, gate_up, down)]
    touched = on if adapted else None
    normed = OPS.norm(x, norm)
    return (
        normed,
        OPS.project(normed, qkv, deltas[0], touched),
        OPS.gated(normed, gate_up, deltas[1], touched),
        *OPS.residual(x, y, down, norm, deltas[2], touched),
        OPS.logits(normed, make.matrix(HIDDEN, 128).t()),
    )


@settings(max_examples=8, deadline=None)
@given(
    others=st.integers(1, 80),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_a_tokens_bits_do_not_depend_on_its_company(others, dtype, seed, data):
    make = Maker(dtype, DEVICE, seed)
    count = others + 1
    x, y = make.tensor(count, HIDDEN), make.tensor(count, INNER)
    place = data.draw(st.integers(0, others))
    together = results(make, x, y, False)
    alone = results(make, x[place : place + 1], y[place : place + 1], False)
    for whole, one in zip(together, alone, strict=True):
        assert torch.equal(whole[place], one[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_mixed_forwards_are_the_plain_and_the_merged_ones(dtype):
    make = Maker(dtype, DEVICE)
    x, y, on = make.tensor(19, HIDDEN), make.tensor(19, INNER), torch.arange(19, device=DEVICE) >= 7
    plain, merged, mixed = (results(make, x, y, use) for use in (False, None, on))
    for a, b, both in zip(plain, merged, mixed, strict=True):
        assert torch.equal(both, torch.where(on[:, None], b, a))


def test_the_cut_depends_on_the_matrix_alone():
    assert split_tile(14336, 4096).split > split_tile(4096, 14336).split >= 1
