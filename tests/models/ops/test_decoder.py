"""A whole decoder with its adapter on the kernels, in the interpreter, against the same in PyTorch."""

from __future__ import annotations

import weakref

import pytest
import torch
from tests.tiny import CPU, causal_mask, dense_attend, tiny_adapter, tiny_config

pytest.importorskip("triton")

from recguide.core import ParameterError
from recguide.models.decoder import Decoder
from recguide.models.folding import fold
from recguide.models.ops.choice import ops_for
from recguide.models.ops.exact import ExactOps
from recguide.models.ops.fast import FastOps
from recguide.models.ops.torch_ops import TorchOps

CONFIG = tiny_config("nemotron_labs_diffusion", hidden_size=32, intermediate_size=48)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's; test_gpu has a GPU's")
@pytest.mark.parametrize("use", ["none", "mixed", "all"])
@pytest.mark.parametrize("ops", [FastOps(CONFIG.norm_eps), ExactOps(CONFIG.norm_eps)])
def test_kernels_and_pytorch_agree(ops, use):
    plain = Decoder(CONFIG, torch.float32, CPU)
    plain.randomise(0)
    kernels = Decoder(CONFIG, torch.float32, CPU, ops)
    kernels.randomise(0)
    for weight in kernels.layers.parameters():
        if weight.dim() == 2:
            weight.data = weight.data.t().contiguous().t()  # as they lie on a GPU
    adapter = tiny_adapter(CONFIG, dtype=torch.float32)
    fold(adapter, kernels)
    tokens = torch.arange(7)
    on = None if use == "all" else tokens >= 4
    attend = dense_attend(causal_mask(7))
    found = [
        decoder.logits(
            decoder.hidden(
                tokens,
                tokens,
                attend,
                adapter=None if use == "none" else adapter,
                on=on,
                masked=tokens == 5,
            )
        )
        for decoder in (plain, kernels)
    ]
    assert (found[0] - found[1]).abs().max() < 1e-4 * found[0].abs().max()


def test_nothing_is_held_of_a_forward_that_is_over():
    decoder = Decoder(CONFIG, torch.float32, CPU)
    decoder.randomise(0)
    tokens, made = torch.arange(7), []
    project = decoder.ops.project
    decoder.ops.project = lambda *given: made.append(project(*given)) or made[-1]
    hidden = decoder.hidden(tokens, tokens, dense_attend(causal_mask(7)))
    assert len({each.data_ptr() for each in made}) == 1
    whole = weakref.ref(made[0])
    made.clear()
    decoder.logits(hidden)
    assert whole() is None


def test_a_cpu_computes_with_pytorch_and_promises_no_exactness():
    assert isinstance(ops_for(CONFIG, torch.bfloat16, CPU), TorchOps)
    with pytest.raises(ParameterError, match=r"exact: .*cpu"):
        ops_for(CONFIG, torch.float32, CPU, exact=True)
