"""What only a GPU can show: the Triton kernel and the compiled step against their plain definitions."""

from __future__ import annotations

import pytest
import torch
from tests.training import tiny

from recguide.models.decoder import Decoder
from recguide.training import lane_attention
from recguide.training.config import BlockConfig, LoraConfig, LossConfig, TrainConfig
from recguide.training.corpus import Corpus
from recguide.training.halves import Halves, load
from recguide.training.loss import DraftLoss, chunk_outcome
from recguide.training.network import Backbone
from recguide.training.steps import StepPlan
from recguide.training.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CLEAN, NOISY = 2048, 1024


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    """The demo model's widths on a few layers, random, in the precision of training."""
    config = tiny.config(
        vocab_size=4096,
        hidden_size=576,
        intermediate_size=1536,
        layers=4,
        heads=9,
        kv_heads=3,
        head_dim=64,
    )
    decoder = Decoder(config, torch.bfloat16, torch.device("cuda"))
    decoder.randomise(0)
    return Backbone.of(decoder)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(60, 400, (40,), generator=generator).tolist()
    texts = [torch.randint(4, 4096, (length,), generator=generator).tolist() for length in lengths]
    return Corpus.of(texts, [length // 3 for length in lengths])


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative, in the Euclidean norm."""
    return ((found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-12)).item()


def test_the_lane_kernel_is_the_reference(backbone: Backbone):
    torch.manual_seed(0)
    shape = backbone.shape
    kernel = lane_attention.best(shape.head_dim, backbone.device)
    assert kernel is not lane_attention.reference
    q = torch.randn(64, shape.heads, shape.head_dim, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(64, 300, shape.kv_heads, shape.head_dim, device="cuda", dtype=torch.bfloat16)
    v = torch.randn_like(k)
    lengths = torch.randint(1, 301, (64,), device="cuda")
    exact = lane_attention.reference(q.double(), k.double(), v.double(), lengths)
    assert distance(kernel(q, k, v, lengths), exact) < 1e-2


def test_compiled_halves_are_those_of_dense_masks(backbone: Backbone, corpus: Corpus):
    config = TrainConfig(
        clean_tokens=CLEAN, noisy_tokens=NOISY, compiled=False, lora=LoraConfig(rank=16), steps=1
    )
    factors = Trainer(backbone, corpus, config, tiny.MASK).factors
    with torch.no_grad():
        for outer in factors.outer:
            outer.normal_(std=0.01)
    step = load(StepPlan(corpus, CLEAN, NOISY, BlockConfig(), 0).step(0), backbone.device, tiny.MASK)

    def run(compiled: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
        halves = Halves(backbone, CLEAN, NOISY, compiled=compiled)
        clean_mask, noisy_mask = halves.masks(step)
        with torch.no_grad():
            _, kept = halves.clean(step, clean_mask)
        hidden = halves.noisy(step, noisy_mask, factors.merged(backbone), factors.mask_embedding, kept)
        weights = torch.linspace(-1, 1, hidden.shape[1], device=hidden.device)
        loss = (hidden.float() * weights).sum()
        return hidden.detach(), list(torch.autograd.grad(loss, list(factors.parameters())))

    (hidden, gradients), (plain, expected) = run(True), run(False)
    assert distance(hidden, plain) < 5e-2
    assert max(distance(a, b) for a, b in zip(gradients, expected, strict=True)) < 0.2


def test_the_compiled_loss_is_the_plain_one(backbone: Backbone):
    torch.manual_seed(0)
    vocab, width = backbone.head.shape
    hidden, teacher = torch.randn(2, 2048, width, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(4, vocab, (2048,), device="cuda")

    def run(function) -> tuple[torch.Tensor, torch.Tensor]:
        slots = hidden.clone().requires_grad_()
        loss = DraftLoss(backbone.head, LossConfig(), tiny.MASK, 1024, function)(slots, teacher, labels).loss
        return loss.detach(), torch.autograd.grad(loss.mean(), slots)[0]

    (loss, gradient), (plain, expected) = (
        run(function) for function in (torch.compile(chunk_outcome, dynamic=False), chunk_outcome)
    )
    assert distance(loss, plain) < 1e-3
    assert distance(gradient, expected) < 2e-2
