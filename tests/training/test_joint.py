"""Joint training: its loss against a plain construction, and a checkpoint that drafts by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training import tiny

from recguide.models.checkpoint import load_weights
from recguide.models.decoder import Decoder
from recguide.models.families import read_config
from recguide.training.config import JointConfig, OptimiserConfig, TrainConfig
from recguide.training.joint import JointTrainer, joint_step, save_joint

TRAIN = TrainConfig(
    steps=30, clean_tokens=256, noisy_tokens=256, optimiser=OptimiserConfig(lr=3e-3, weight_decay=0.1)
)
JOINT = JointConfig(block_size=8, alpha=0.3)


def test_the_loss_is_that_of_a_plain_construction():
    backbone = tiny.backbone()
    corpus = tiny.corpus(backbone, 4)
    members = np.arange(4)
    step = joint_step(corpus, members, 256, 8, np.random.default_rng(0))
    trainer = JointTrainer(backbone, corpus, TRAIN, JOINT, tiny.MASK)
    loss, _, _ = trainer.loss(step)
    total, count, first = 0.0, 0, 0
    for text in range(4):
        tokens, prompt = corpus.text(text).tolist(), int(corpus.prompt_lengths[text])
        n = len(tokens)
        here = slice(first, first + n)
        hidden = tiny.decoder_logits(backbone, tokens)
        for i in range(prompt, n):
            total -= hidden[i - 1].log_softmax(-1)[tokens[i]].item()
            count += 1
        masked = step.masked[here].tolist()
        assert not any(masked[:prompt])
        for start in range(0, n, 8):
            block = range(start, min(start + 8, n))
            row = [*tokens[:start], *(tiny.MASK if masked[i] else tokens[i] for i in block)]
            mask = torch.ones(len(row), len(row), dtype=torch.bool).tril()
            mask[start:, start:] = True
            attend = tiny.causal(mask)
            out = backbone.decoder.hidden(torch.tensor(row), torch.arange(len(row)), attend)
            logits = backbone.decoder.logits(out)
            for i in block:
                if masked[i]:
                    weight = step.weight[first + i].item()
                    total -= 0.3 * weight * logits[i].log_softmax(-1)[tokens[i]].item()
                    count += 1
        first += n
    assert loss.item() == pytest.approx(total / count, rel=1e-4)


def test_masked_shares_are_uniform():
    backbone = tiny.backbone()
    corpus = tiny.corpus(backbone, 6)
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(300):
        step = joint_step(corpus, np.array([0]), 256, 8, rng)
        prompt, n = int(corpus.prompt_lengths[0]), int(corpus.lengths[0])
        shares.append(step.masked[prompt:n].float().mean().item())
    assert np.mean(shares) == pytest.approx(0.5, abs=0.06)
    assert np.std(shares) > 0.2


def test_a_run_lowers_both_losses_and_leaves_a_checkpoint(tmp_path: Path):
    backbone = tiny.backbone()
    corpus = tiny.corpus(backbone, 16)
    trainer = JointTrainer(backbone, corpus, TRAIN, JOINT, tiny.MASK)
    fixed = joint_step(corpus, np.arange(5), 256, 8, np.random.default_rng(1))
    before = trainer.loss(fixed)
    seen: list[int] = []
    trainer.run(lambda step, *_: seen.append(step))
    after = trainer.loss(fixed)
    assert seen == [10, 20, 30]
    assert all(a.item() < 0.9 * b.item() for a, b in zip(after, before, strict=True))
    source = tmp_path / "source"
    source.mkdir()
    tiny.write_config(source)
    target = tmp_path / "target"
    save_joint(trainer, source, target, tiny.MASK, 8)
    config = read_config(target)
    assert config.native_drafts
    assert (config.mask_token_id, config.block_size) == (tiny.MASK, 8)
    loaded = Decoder(config, torch.float32, torch.device("cpu"))
    load_weights(loaded, target)
    tokens, attend = torch.arange(12) + 4, tiny.causal(torch.ones(12, 12, dtype=torch.bool))
    a = loaded.hidden(tokens, torch.arange(12), attend)
    b = backbone.decoder.hidden(tokens, torch.arange(12), attend)
    torch.testing.assert_close(a, b)
