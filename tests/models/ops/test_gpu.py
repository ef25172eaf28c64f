"""Operations at the sizes of NLD-8B on a GPU: against float32, bit for bit where promised, and in a graph."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tests.models.ops.tensors import Maker
from tests.tiny import causal_mask, dense_attend, tiny_adapter, tiny_config
from torch import Tensor

from recguide.attention.packing import pack
from recguide.core import Row
from recguide.models.adapter import Delta
from recguide.models.adapter_files import named_tensors
from recguide.models.checkpoint import named_weights
from recguide.models.loading import Model
from recguide.models.ops.torch_ops import TorchOps

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HIDDEN, INNER, QKV, VOCABULARY, EPS = 4096, 14336, 6144, 131072, 1e-5


@dataclass(frozen=True)
class Layer:
    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor
    norm: Tensor
    head: Tensor
    delta: Delta


@pytest.fixture(scope="module")
def layer() -> Layer:
    make = Maker(torch.bfloat16, "cuda")
    output = make.matrix(HIDDEN, HIDDEN)
    return Layer(
        qkv=make.matrix(HIDDEN, QKV),
        output=output,
        gate_up=make.matrix(HIDDEN, 2 * INNER),
        down=make.matrix(INNER, HIDDEN),
        norm=make.tensor(HIDDEN).abs() + 0.5,
        head=make.matrix(HIDDEN, VOCABULARY).t(),
        delta=make.delta(output, (HIDDEN,), rank=128),
    )


def run(ops, layer: Layer, x: Tensor, delta: Delta | None = None, on: Tensor | None = None):
    normed = ops.norm(x, layer.norm)
    attended = ops.project(normed, layer.qkv, None, None)[:, :HIDDEN].contiguous()
    x, normed = ops.residual(x, attended, layer.output, layer.norm, delta, on)
    inner = ops.gated(normed, layer.gate_up, None, None)
    x, normed = ops.residual(x, inner, layer.down, layer.norm, None, None)
    return x, normed, ops.logits(normed, layer.head)


def fast_and_exact():
    from recguide.models.ops.exact import ExactOps
    from recguide.models.ops.fast import FastOps

    return {"fast": FastOps(EPS), "exact": ExactOps(EPS)}


@pytest.mark.parametrize("name", ["fast", "exact"])
@pytest.mark.parametrize("use", ["none", "mixed", "all"])
@pytest.mark.parametrize("tokens", [1, 7, 16, 33, 64, 96, 128, 300])
@torch.inference_mode()
def test_a_layer_of_nld_8b(layer: Layer, tokens: int, use: str, name: str):
    x = Maker(torch.bfloat16, "cuda").tensor(tokens, HIDDEN)
    on = torch.arange(tokens, device="cuda") >= tokens - tokens // 3 if use == "mixed" else None
    delta = None if use == "none" else layer.delta
    reference = TorchOps(HIDDEN, EPS, torch.bfloat16, x.device)
    found = run(fast_and_exact()[name], layer, x, delta, on)
    expected = run(reference, layer, x, delta, on)
    for y, wanted in zip(found, expected, strict=True):
        assert y.dtype == wanted.dtype
        assert (y.float() - wanted.float()).norm() < 0.02 * wanted.float().norm()


@pytest.mark.parametrize("tokens", [8, 48, 64, 80, 128, 160])
@torch.inference_mode()
def test_untouched_tokens_of_a_mixed_forward_are_those_of_a_plain_one(layer: Layer, tokens: int):
    fast = fast_and_exact()["fast"]
    x = Maker(torch.bfloat16, "cuda").tensor(tokens, HIDDEN)
    on = torch.arange(tokens, device="cuda") % 3 == 1
    plain, mixed = run(fast, layer, x), run(fast, layer, x, layer.delta, on)
    for a, b in zip(plain, mixed, strict=True):
        assert torch.equal(a[~on], b[~on])
        assert not torch.equal(a[on], b[on])


@torch.inference_mode()
def test_exact_bits_in_any_company(layer: Layer):
    exact = fast_and_exact()["exact"]
    x = Maker(torch.bfloat16, "cuda").tensor(700, HIDDEN)
    whole = run(exact, layer, x)
    for first, last in ((0, 1), (5, 6), (3, 19), (100, 164), (650, 700), (0, 513)):
        part = run(exact, layer, x[first:last])
        for some, all_of_them in zip(part, whole, strict=True):
            assert torch.equal(some, all_of_them[first:last])
    on = torch.arange(700, device="cuda") >= 333
    merged, mixed = run(exact, layer, x, layer.delta), run(exact, layer, x, layer.delta, on)
    for plain, with_delta, both in zip(whole, merged, mixed, strict=True):
        assert torch.equal(both, torch.where(on[:, None], with_delta, plain))


@pytest.mark.parametrize("tokens", [1, 64, 128])
@torch.inference_mode()
def test_a_graph_of_kernels_that_overlap_waits_for_its_inputs(layer: Layer, tokens: int):
    """Eight layers in a row, replayed on new inputs: a kernel that began too early would read old ones."""
    fast = fast_and_exact()["fast"]
    x = Maker(torch.bfloat16, "cuda").tensor(tokens, HIDDEN)

    def chain():
        y = x
        for _ in range(8):
            y = run(fast, layer, y)[1]
        return y

    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain()
    for seed in (1, 2, 3):
        x.copy_(Maker(torch.bfloat16, "cuda", seed).tensor(tokens, HIDDEN))
        graph.replay()
        replayed = out.clone()
        assert torch.equal(replayed, chain())


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("adapted", ["none", "mixed", "all"])
@torch.inference_mode()
def test_a_model_on_the_gpu_is_the_one_on_the_cpu(adapted: str, exact: bool):
    config = tiny_config("nemotron_labs_diffusion", hidden_size=64, intermediate_size=96, head_dim=16)
    here = Model.random(config, dtype=torch.float64, adapter=tiny_adapter(config))
    adapter = tiny_adapter(config, dtype=torch.bfloat16)
    there = Model.random(config, dtype=torch.bfloat16, device="cuda", adapter=adapter.to("cuda"), exact=exact)
    assert here.decoder.ops.folds is False
    assert there.decoder.ops.folds
    for name, weight in named_weights(here.decoder).items():
        weight.copy_(dict(named_weights(there.decoder))[name])
    for name, factor in named_tensors(here.adapter).items():
        factor.copy_(named_tensors(adapter)[name])
    tokens = tuple(torch.randint(0, 32, (9,), generator=torch.Generator().manual_seed(0)).tolist())
    rows = {
        "none": [Row(0, 0, tokens, causal=True, wanted=range(9))],
        "mixed": [
            Row(0, 0, tokens, causal=True, wanted=range(9)),
            Row(0, 0, tokens[:4], causal=False, adapter=True, stem=3, masked=(1, 2), wanted=range(4)),
        ],
        "all": [Row(0, 0, tokens, causal=False, adapter=True, masked=(2, 3), wanted=range(9))],
    }[adapted]
    found = []
    for model, device in ((here, "cpu"), (there, "cuda")):
        batch = pack(rows, [list(range(4))], 8, device)
        attend = dense_attend(causal_mask(len(batch.tokens)).to(device))
        found.append(model.forward(batch, attend).cpu().double())
    assert (found[0] - found[1]).norm() < 0.05 * found[0].norm()
