"""A run on a tiny model: loss falls, acceptance rises, resume is exact, the adapter is saved whole."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import tiny

from recguide.core import CheckpointError
from recguide.models.adapter_files import load_adapter, save_adapter
from recguide.training.config import BlockConfig, LoraConfig, LossConfig, OptimiserConfig, TrainConfig
from recguide.training.corpus import Corpus
from recguide.training.optimiser import orthogonalise, rate
from recguide.training.trainer import Trainer

CONFIG = TrainConfig(
    steps=60,
    clean_tokens=384,
    noisy_tokens=256,
    eval_every=0,
    seed=4,
    lora=LoraConfig(rank=8),
    blocks=BlockConfig(sizes={8: 1, 16: 1}, continuation_share=0.2),
    loss=LossConfig(hard=0.7),
    optimiser=OptimiserConfig(lr=1e-2, ema=0.9),
)


@pytest.fixture(scope="module")
def backbone():
    return tiny.backbone()


@pytest.fixture(scope="module")
def corpus(backbone) -> Corpus:
    return tiny.corpus(backbone, 32)


def counting(starts: range) -> Corpus:
    """Texts that count upwards: what follows a seed is certain, however far ahead."""
    return Corpus.of([[4 + (start + i) % 60 for i in range(40)] for start in starts], [4] * len(starts))


def test_loss_falls_and_acceptance_rises(backbone):
    held = counting(range(1, 60, 9))
    config = replace(
        CONFIG, steps=60, loss=LossConfig(hard=1.0), optimiser=replace(CONFIG.optimiser, lr=3e-2)
    )
    texts = counting(range(0, 60, 2))
    trainer = Trainer(backbone, texts, config, tiny.MASK, held_out={"held": held}, blocks_measured=(8, 16))
    before = trainer.measure({"held": held})["held"]
    entries = []
    trainer.run(entries.append)
    after = entries[-1].acceptance["held"]
    assert entries[-1].loss < 0.7 * entries[0].loss
    assert entries[-1].first > 2 * entries[0].first
    assert set(after) == {8, 16}
    assert after[8] > before[8].mean + 0.8
    assert entries[-1].tokens == 60 * 256


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_resume_is_exact(backbone, corpus: Corpus, tmp_path: Path, kind: str):
    config = replace(CONFIG, steps=12, optimiser=replace(CONFIG.optimiser, kind=kind))
    whole = Trainer(backbone, corpus, config, tiny.MASK)
    whole.run()
    file = tmp_path / "run.pt"
    first = Trainer(backbone, corpus, replace(config, max_seconds=0.0), tiny.MASK)
    first.run(checkpoint=file)  # time is up at the first look, after ten steps
    assert first.steps_done == 10
    second = Trainer(backbone, corpus, config, tiny.MASK)
    second.resume(file)
    second.run()
    assert second.steps_done == 12
    for a, b in zip(whole.factors.parameters(), second.factors.parameters(), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(whole.finished().parameters(), second.finished().parameters(), strict=True):
        assert torch.equal(a, b)
    file.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="delete it"):
        second.resume(file)


@pytest.fixture(scope="module")
def checkpoint(backbone, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run that stopped after ten steps."""
    file = tmp_path_factory.mktemp("run") / "checkpoint.pt"
    Trainer(backbone, corpus, replace(CONFIG, steps=10), tiny.MASK).run(checkpoint=file)
    return file


def test_a_resumed_run_may_choose_length_and_rate_anew(backbone, corpus: Corpus, checkpoint: Path):
    slower = replace(CONFIG.optimiser, lr=1e-9, schedule="wsd", decay=0.1, final=0.5)
    config = replace(
        CONFIG, steps=14, max_seconds=60, eval_every=7, checkpoint_every=3, patience=2, optimiser=slower
    )
    trainer = Trainer(backbone, corpus, config, tiny.MASK)
    trainer.resume(checkpoint)
    before = [parameter.detach().clone() for parameter in trainer.factors.parameters()]
    trainer.run()
    assert trainer.steps_done == 14
    assert trainer.history[-1].lr == pytest.approx(rate(13, 14, slower))
    moved = [(a - b).abs().max() for a, b in zip(before, trainer.factors.parameters(), strict=True)]
    assert 0 < max(moved) < 1e-6  # at the rate it was made for, it would move by about 1e-2


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"seed": 5}, "seed 4 (now 5)"),
        ({"noisy_tokens": 384}, "noisy_tokens 256 (now 384)"),
        ({"lora": LoraConfig(rank=4)}, "lora.rank 8 (now 4)"),
        ({"loss": LossConfig(hard=0.7, reach=0.1)}, "loss.reach 0.5 (now 0.1)"),
        ({"blocks": BlockConfig(sizes={8: 1}, continuation_share=0.2)}, "blocks.sizes"),
        ({"optimiser": replace(CONFIG.optimiser, kind="muon")}, "optimiser.kind 'adamw' (now 'muon')"),
        ({"optimiser": replace(CONFIG.optimiser, ema=0.0)}, "optimiser.ema 0.9 (now 0.0)"),
    ],
)
def test_any_other_difference_is_refused_by_name(
    backbone, corpus: Corpus, checkpoint: Path, changes: dict[str, Any], name: str
):
    trainer = Trainer(backbone, corpus, replace(CONFIG, **changes), tiny.MASK)
    with pytest.raises(CheckpointError, match=f"other settings: {re.escape(name)}"):
        trainer.resume(checkpoint)


def test_replayed_acceptance_is_that_of_linear_rounds(backbone, corpus: Corpus):
    """Against a round loop over the decoder with the saved per-token adapter."""
    trainer = Trainer(backbone, corpus, replace(CONFIG, steps=15), tiny.MASK)
    trainer.run()
    held = tiny.corpus(backbone, 5, seed=9)
    measured = trainer.measure({"held": held}, blocks=(8,))["held"][8]
    adapter = trainer.finished().adapter(backbone.decoder.config, tiny.MASK, torch.float32)
    rounds = [a for text in range(5) for a in _rounds(backbone, adapter, held, text, 8)]
    assert list(measured.rounds) == rounds
    assert sum(measured.histogram()) == len(rounds)


def _rounds(backbone, adapter, corpus: Corpus, text: int, block: int) -> list[int]:
    tokens, n = corpus.text(text).tolist(), int(corpus.prompt_lengths[text])
    rounds = []
    while n < len(tokens) - 1:
        draft = _draft(backbone, adapter, tokens[: n + 1], block)
        matched = 0
        while (
            matched < block - 1
            and n + 1 + matched < len(tokens)
            and draft[matched] == tokens[n + 1 + matched]
        ):
            matched += 1
        if n + 1 + matched >= len(tokens):
            break
        rounds.append(matched + 1)
        n += matched + 1
    return rounds


def _draft(backbone, adapter, tokens: list[int], block: int) -> list[int]:
    start, total = len(tokens) - 1, len(tokens) - 1 + block
    mask = torch.ones(total, total, dtype=torch.bool).tril()
    mask[start:, start:] = True
    masked = torch.arange(total) > start
    row = torch.tensor([*tokens, *[tiny.MASK] * (block - 1)])
    hidden = backbone.decoder.hidden(
        row, torch.arange(total), tiny.causal(mask), adapter=adapter, on=slice(start, None), masked=masked
    )
    logits = backbone.decoder.logits(hidden[start + 1 :])
    logits[:, tiny.MASK] = float("-inf")
    return logits.argmax(-1).tolist()


def test_the_saved_adapter_reproduces_the_logits(backbone, corpus: Corpus, tmp_path: Path):
    lora = LoraConfig(rank=4, rank_pattern={"v_proj": 2, "layers.1.mlp.up_proj": 6}, rslora=True)
    trainer = Trainer(backbone, corpus, replace(CONFIG, steps=5, lora=lora), tiny.MASK)
    trainer.run()
    config = backbone.decoder.config
    adapter = trainer.finished().adapter(config, tiny.MASK, torch.float32)
    save_adapter(adapter, tmp_path, base="tiny")
    loaded = load_adapter(tmp_path, config, torch.float32, "cpu")
    tokens, positions = torch.arange(20) + 4, torch.arange(20)
    attend = tiny.causal(torch.ones(20, 20, dtype=torch.bool))
    masked = positions > 5
    a, b = (
        backbone.decoder.hidden(tokens, positions, attend, adapter=x, on=slice(3, None), masked=masked)
        for x in (adapter, loaded)
    )
    assert torch.equal(a, b)
    assert loaded.mask_token_id == tiny.MASK
    untouched = backbone.decoder.hidden(tokens, positions, attend)
    assert not torch.allclose(a[3:], untouched[3:])


def test_rates_rise_hold_and_fall():
    wsd = OptimiserConfig(schedule="wsd", warmup=0.1, decay=0.5, final=0.1)
    rates = [rate(step, 100, wsd) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:51] == [1.0] * 42
    assert rates[-1] == pytest.approx(0.1 + 0.9 / 50)
    cosine = [rate(step, 100, OptimiserConfig(warmup=0.1)) for step in range(100)]
    assert max(cosine) == 1.0
    assert all(a >= b for a, b in pairwise(cosine[10:]))


def test_orthogonalised_matrices_have_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((3, 8, 20), (3, 20, 8)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape), iterations=5))
        assert values.min() > 0.5
        assert values.max() < 1.4
