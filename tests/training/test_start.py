"""A run that goes on from a finished adapter: it begins where that one ended, and only where shapes agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import tiny

from recguide.core import CheckpointError, ParameterError
from recguide.models.adapter_files import load_adapter, save_adapter
from recguide.training.config import BlockConfig, LoraConfig, OptimiserConfig, TrainConfig
from recguide.training.start import Start, start_folder
from recguide.training.trainer import Trainer

CONFIG = TrainConfig(
    steps=20,
    clean_tokens=384,
    noisy_tokens=256,
    eval_every=0,
    compiled=False,
    lora=LoraConfig(rank=4, rank_pattern={"v_proj": 2}),
    blocks=BlockConfig(sizes={8: 1, 16: 1}),
    optimiser=OptimiserConfig(kind="muon", lr=1e-2),
)


@pytest.fixture(scope="module")
def backbone():
    return tiny.backbone()


@pytest.fixture(scope="module")
def corpus(backbone):
    return tiny.corpus(backbone, 24)


@pytest.fixture(scope="module")
def finished(backbone, corpus) -> Trainer:
    trainer = Trainer(backbone, corpus, CONFIG, tiny.MASK)
    trainer.run()
    return trainer


@pytest.fixture(scope="module")
def folder(backbone, finished: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("first")
    save_adapter(finished.factors.adapter(backbone.decoder.config, tiny.MASK, torch.float32), where, base="t")
    return where


@pytest.fixture(scope="module")
def start(backbone, folder: Path) -> Start:
    return Start.read(folder, backbone.decoder.config)


def first_loss(trainer: Trainer) -> float:
    return trainer._train(trainer._plan.step(0))[0].item()


def test_it_begins_where_the_other_ended(backbone, corpus, finished: Trainer, start: Start):
    trainer = Trainer(backbone, corpus, replace(CONFIG, seed=0), tiny.MASK, start=start)
    for mine, other in zip(trainer.factors.parameters(), finished.factors.parameters(), strict=True):
        assert torch.equal(mine, other)
    loss = first_loss(trainer)
    assert loss == first_loss(finished)
    assert loss < 0.95 * first_loss(Trainer(backbone, corpus, CONFIG, tiny.MASK))


def test_an_adapter_without_mask_embedding_drafts_with_the_mask_tokens(backbone, corpus, folder: Path):
    adapter = load_adapter(folder, backbone.decoder.config, torch.float32, "cpu")
    adapter.mask_embedding = None
    trainer = Trainer(backbone, corpus, CONFIG, tiny.MASK, start=Start(adapter, "bare", "0"))
    assert torch.equal(trainer.factors.mask_embedding, backbone.embedding[tiny.MASK])


def test_resume_is_exact_and_knows_its_start(backbone, corpus, start: Start, tmp_path: Path):
    config = replace(CONFIG, steps=12)
    whole = Trainer(backbone, corpus, config, tiny.MASK, start=start)
    whole.run()
    file = tmp_path / "checkpoint.pt"
    Trainer(backbone, corpus, replace(config, max_seconds=0.0), tiny.MASK, start=start).run(checkpoint=file)
    second = Trainer(backbone, corpus, config, tiny.MASK, start=start)
    second.resume(file)
    assert second.steps_done == 10
    second.run()
    for a, b in zip(whole.factors.parameters(), second.factors.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(CheckpointError, match=f"start '{start.fingerprint}' \\(now None\\)"):
        Trainer(backbone, corpus, config, tiny.MASK).resume(file)


@pytest.mark.parametrize(
    ("lora", "name", "values"),
    [
        ({"rank": 8}, "rank", ("4", "8")),
        ({"rank_pattern": {}}, "rank", ("2", "4")),
        ({"alpha": 3.0}, "alpha", ("8", "3")),
        ({"targets": ("q_proj", "v_proj")}, "targets", ("up_proj in 2 layers", "q_proj in 2 layers, v_proj")),
    ],
)
def test_another_shape_is_refused_by_name(
    backbone, corpus, start: Start, lora: dict[str, Any], name: str, values: tuple[str, str]
):
    config = replace(CONFIG, lora=replace(CONFIG.lora, **lora))
    with pytest.raises(ParameterError) as caught:
        Trainer(backbone, corpus, config, tiny.MASK, start=start)
    assert caught.value.parameter == name
    assert all(value in str(caught.value) for value in values)


def test_another_mask_token_or_no_folder_is_refused(backbone, corpus, start: Start, tmp_path: Path):
    with pytest.raises(ParameterError, match="mask_token_id"):
        Trainer(backbone, corpus, CONFIG, tiny.MASK + 1, start=start)
    with pytest.raises(ParameterError, match="start"):
        Start.read(tmp_path / "none", backbone.decoder.config)


def test_shipped_is_the_demo_models_own():
    assert (start_folder("shipped") / "adapter_config.json").is_file()
    assert start_folder("here") == Path("here")
