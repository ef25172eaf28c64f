"""The kernels' operations against PyTorch's in double precision, in the interpreter and on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.ops.tensors import Maker
from tests.tiny import tiny_config

pytest.importorskip("triton")

from recguide.models.config import QueryScale
from recguide.models.kernels import launch
from recguide.models.kernels.multiply import Detour, Tile, multiply, multiply_beside, outer_product
from recguide.models.kernels.tensors import empty_rows
from recguide.models.ops import fast
from recguide.models.ops.exact import ExactOps
from recguide.models.ops.fast import FastOps
from recguide.models.ops.tiles import MOST_TOKENS
from recguide.models.ops.torch_ops import TorchOps
from recguide.models.rotary import inverse_frequencies, query_scale

EPS = 1e-5
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPES = [torch.bfloat16, torch.float16] if GPU else [torch.float32, torch.float16]
"""The interpreter's products of bfloat16 are garbage; a GPU's of float32 are nobody's."""
SMALL_TILE = Tile(outputs=16, tokens=16, depth=16)


def close(found, exact, dtype):
    """Within a few roundings of numbers near 1."""
    assert (found.double() - exact).abs().max() < 4 * torch.finfo(dtype).eps * (1 + exact.abs().max())


def gated(product):
    gates, ups = product.chunk(2, -1)
    return torch.nn.functional.silu(gates) * ups


@settings(max_examples=15, deadline=None)
@given(
    tokens=st.integers(1, 40),
    inputs=st.integers(1, 6).map(lambda n: 16 * n),
    outputs=st.integers(1, 5).map(lambda n: 16 * n),
    split=st.integers(1, 3),
    depth=st.sampled_from([16, 32, 64]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 100),
)
def test_products_of_any_size(tokens, inputs, outputs, split, depth, dtype, seed):
    make = Maker(dtype, DEVICE, seed)
    x, matrix = make.tensor(tokens, inputs), make.matrix(inputs, outputs)
    tile = Tile(outputs=32, tokens=16, depth=depth, split=split)
    y = multiply(x, matrix, tile)
    assert y.dtype == (torch.float32 if split > 1 else dtype)
    close(y.sum(0) if split > 1 else y, x.double() @ matrix.double(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 5, 33])
def test_gates_and_logits(tokens, dtype):
    make = Maker(dtype, DEVICE)
    x, matrix = make.tensor(tokens, 48), make.matrix(48, 2 * 80)
    exact = x.double() @ matrix.double()
    close(multiply(x, matrix, SMALL_TILE, gated=True), gated(exact), dtype)
    logits = multiply(x, matrix, SMALL_TILE, out_dtype=torch.float32)
    assert logits.dtype == torch.float32
    close(logits, exact, torch.float32 if dtype == torch.float32 else torch.float16)
    assert multiply(x[:0], matrix, SMALL_TILE).shape == (0, 160)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("split", [1, 3])
def test_touched_tokens_take_other_weights_or_more_and_the_rest_nothing(split, is_gated, dtype):
    if is_gated and split > 1:
        pytest.skip("gates are not split")
    make = Maker(dtype, DEVICE)
    x, matrix, on = make.tensor(21, 96), make.matrix(96, 64), torch.arange(21, device=DEVICE) >= 7
    delta = make.delta(matrix, (16, 48))
    tile = replace(SMALL_TILE, split=split)
    low = multiply(x, delta.folded.inner, replace(tile, split=2))
    plain = multiply(x, matrix, tile, gated=is_gated)
    dual = multiply(x, matrix, tile, gated=is_gated, detour=Detour(on, merged=delta.folded.merged))
    for some in (on, make.tensor(21) > 0):
        extra = multiply(
            x, matrix, tile, gated=is_gated, detour=Detour(some, low=low, outer=delta.folded.outer)
        )
        assert torch.equal(extra[..., ~some, :], plain[..., ~some, :])
        both = some & on
        sums = [y[..., both, :].sum(0) if split > 1 else y[both] for y in (extra, dual)]
        close(sums[0], sums[1].double(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("tokens", [5, 48, 300])
@pytest.mark.parametrize("split", [1, 3])
def test_from_the_first_touched_token_on_all_take_other_weights(tokens, split, is_gated, dtype):
    """Wherever that is, and whatever stands behind the touched ones: it is padding."""
    if is_gated and split > 1:
        pytest.skip("gates are not split")
    make = Maker(dtype, DEVICE)
    token = torch.arange(tokens, device=DEVICE)
    x, matrix = make.tensor(tokens, 96), make.matrix(96, 64)
    other = make.delta(matrix, (64,)).folded.merged
    tile = replace(SMALL_TILE, split=split)
    plain = multiply(x, matrix, tile, gated=is_gated)
    merged = multiply(x, other, tile, gated=is_gated)
    for first in {0, 1, 3, 16 % tokens, tokens // 2, tokens - 1, tokens}:
        on = (token >= first) & (token < max(first + 1, tokens - 2))
        dual = multiply(x, matrix, tile, gated=is_gated, detour=Detour(on, merged=other))
        assert torch.equal(dual, torch.where((token >= first)[:, None], merged, plain))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [16, 64])
@pytest.mark.parametrize("ahead", [1, 2, 9])
def test_asking_for_weights_early_changes_nothing(ahead, outputs, dtype):
    """Also where there are fewer rows or inputs than asked for, and of both matrices."""
    make = Maker(dtype, DEVICE)
    x, matrix, on = make.tensor(21, 96), make.matrix(96, 80), torch.arange(21, device=DEVICE) >= 7
    delta = make.delta(matrix, (80,))
    tile = Tile(outputs, tokens=16, depth=16)
    for options in ({}, {"gated": True}, {"detour": Detour(on, merged=delta.folded.merged)}):
        early = multiply(x, matrix, replace(tile, ahead=ahead), **options)
        assert torch.equal(early, multiply(x, matrix, tile, **options))
    for early, late in zip(
        multiply_beside(x, matrix, delta.folded.inner, replace(tile, ahead=ahead)),
        multiply_beside(x, matrix, delta.folded.inner, tile),
        strict=True,
    ):
        assert torch.equal(early, late)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("rank", [5, 100])
def test_an_inner_product_beside_leaves_the_other_as_it_is(rank, split, dtype):
    make = Maker(dtype, DEVICE)
    x, matrix, on = make.tensor(21, 96), make.matrix(96, 80), make.tensor(21) > 0
    delta = make.delta(matrix, (80,), rank=rank)
    tile = replace(SMALL_TILE, split=split)
    y, low = multiply_beside(x, matrix, delta.folded.inner, tile)
    assert torch.equal(y, multiply(x, matrix, tile, out_dtype=torch.float32))
    close(low.sum(0), x.double() @ delta.folded.inner.double(), dtype)
    added = outer_product(low, delta.folded.outer, on)
    assert not added[~on].any()
    exact = x.double() @ delta.folded.inner.double() @ delta.folded.outer.double()
    close(added[on], exact[on], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 5, 80])
def test_what_lies_past_the_last_token_reaches_no_result(tokens, dtype):
    make = Maker(dtype, DEVICE)
    x, matrix = make.tensor(tokens, 48), make.matrix(48, 32)
    roomy = empty_rows(x, tokens, 48)
    whole = torch.as_strided(roomy, (-(-tokens // 64) * 64, 48), (48, 1))
    whole.fill_(float("nan"))
    roomy.copy_(x)
    tile = Tile(outputs=16, tokens=16 if tokens < 16 else 128, depth=16)
    assert torch.equal(multiply(roomy, matrix, tile), multiply(x, matrix, tile))
    tile = replace(tile, split=2)
    assert torch.equal(multiply(roomy, matrix, tile), multiply(x, matrix, tile))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [3, 80, 150])
@pytest.mark.parametrize("small_bytes", [0, 2**30])
def test_untouched_tokens_of_a_mixed_forward_are_those_of_a_plain_one(
    small_bytes, tokens, dtype, monkeypatch
):
    monkeypatch.setattr(fast, "SMALL_BYTES", small_bytes)
    make, ops = Maker(dtype, DEVICE), FastOps(EPS)
    matrix, norm = make.matrix(96, 64), make.tensor(64)
    x, y = make.tensor(tokens, 64), make.tensor(tokens, 96)
    on = torch.arange(tokens, device=DEVICE) >= tokens // 3
    delta = make.delta(matrix, (64,))
    plain = ops.residual(x, y, matrix, norm, None, None)
    mixed = ops.residual(x, y, matrix, norm, delta, on)
    merged = x.double() + y.double() @ delta.folded.merged.double()
    for a, b in zip(plain, mixed, strict=True):
        if tokens > MOST_TOKENS and small_bytes:  # the library's product, and our own of both matrices
            close(b[~on], a[~on].double(), dtype)
        else:
            assert torch.equal(a[~on], b[~on])
    close(mixed[0][on], merged[on], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [24, 64, 1000])
def test_rows(size, dtype):
    make = Maker(dtype, DEVICE)
    x, weight = make.tensor(7, size), make.tensor(size)
    partials = torch.stack([Maker(torch.float32, DEVICE, i).tensor(7, size) for i in range(3)])
    torch_ops = TorchOps(size, EPS, torch.float64, torch.device(DEVICE))
    close(launch.norm(x, weight, EPS), torch_ops.norm(x.double(), weight.double()), dtype)
    total, normed = launch.summed_norm(x, partials, weight, EPS)
    close(total, x.double() + partials.double().sum(0), dtype)
    assert torch.equal(launch.summed_norm(x, partials[:2], weight, EPS, partials[2])[0], total)
    close(normed, torch_ops.norm(total.double(), weight.double()), dtype)
    pairs = make.tensor(7, 2 * size)
    close(launch.silu_gate(pairs), gated(pairs.double()), dtype)


def _layer(ops, make, tokens, on, hidden, inner):
    """What a layer asks of its operations, adapter included, on the widths of a small model."""
    adapted = on is not False
    touched = on if adapted else None
    qkv, output = make.matrix(hidden, hidden + 64), make.matrix(hidden, hidden)
    gate_up, down = make.matrix(hidden, 2 * inner), make.matrix(inner, hidden)
    x, norm = make.tensor(tokens, hidden), make.tensor(hidden)
    splits = {
        "qkv": (hidden, 32, 32),
        "output": (hidden,),
        "gate_up": (inner, inner),
        "down": (hidden,),
    }
    matrices = {"qkv": qkv, "output": output, "gate_up": gate_up, "down": down}
    deltas = {name: make.delta(matrices[name], splits[name]) if adapted else None for name in splits}
    normed = ops.norm(x, norm)
    y = ops.project(normed, qkv, deltas["qkv"], touched)[:, :hidden].contiguous()
    x, normed = ops.residual(x, y, output, norm, deltas["output"], touched)
    gates = ops.gated(normed, gate_up, deltas["gate_up"], touched)
    x, normed = ops.residual(x, gates, down, norm, deltas["down"], touched)
    return x, normed, ops.logits(normed, make.matrix(hidden, 160).t())


@pytest.mark.parametrize(
    ("ops", "tokens", "use", "small_bytes"),
    [
        (FastOps(EPS), 1, "none", 0),
        (FastOps(EPS), 17, "all", 0),
        (FastOps(EPS), 17, "mixed", 0),
        (FastOps(EPS), 17, "mixed", 2**30),
        *((FastOps(EPS), 80, use, 0) for use in ("none", "mixed")),
        *((FastOps(EPS), 200, use, 0) for use in ("none", "mixed", "all")),
        (FastOps(EPS), 200, "mixed", 2**30),
        *((ExactOps(EPS), 17, use, 0) for use in ("none", "mixed", "all")),
    ],
)
def test_a_layer_is_pytorchs(ops, tokens, use, small_bytes, monkeypatch):
    """Below and above the tokens that take our own products, whichever way deltas are added."""
    monkeypatch.setattr(fast, "SMALL_BYTES", small_bytes)
    dtype, hidden = DTYPES[0], 96
    make = Maker(dtype, DEVICE)
    on = {"none": False, "mixed": torch.arange(tokens, device=DEVICE) >= tokens // 3, "all": None}[use]
    found = _layer(ops, make, tokens, on, hidden, 128)
    reference = TorchOps(hidden, EPS, dtype, torch.device(DEVICE))
    expected = _layer(reference, make, tokens, on, hidden, 128)
    for y, wanted in zip(found, expected, strict=True):
        assert y.dtype == wanted.dtype
        assert (y.float() - wanted.float()).abs().max() < 40 * torch.finfo(dtype).eps * wanted.abs().max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [None, QueryScale(beta=0.1, original_max_positions=100)])
def test_rotations(scale, dtype):
    positions = torch.tensor([0, 1, 99, 100, 777, 262143], dtype=torch.int32, device=DEVICE)
    config = tiny_config("llama", head_dim=24)
    frequencies = inverse_frequencies(config.rope, 24).to(DEVICE, torch.float32)
    found = launch.rotation(positions, frequencies, 0.7, scale, dtype)
    angles = (positions[:, None].float() * frequencies).double()
    cos, sin = 0.7 * angles.cos(), 0.7 * angles.sin()
    close(found.cos, torch.cat((cos, cos), -1)[:, None], dtype)
    close(found.sin, torch.cat((-sin, sin), -1)[:, None], dtype)
    assert found.half == 12
    if scale is None:
        assert found.query_scale is None
    else:
        close(found.query_scale, query_scale(scale, positions)[:, None, None], dtype)
