"""Options of `recguide adapt` become its configuration; what it cannot read is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from recguide.training.adapt import AdaptResult
from recguide.training.config import JOINT_OPTIMISER, AdaptConfig, BlockConfig, LoraConfig, OptimiserConfig


@pytest.fixture
def configured(cli, monkeypatch):
    """Runs the verb with the stages left out; returns the configuration that they would get."""
    seen: list[AdaptConfig] = []

    def run(config: AdaptConfig, _on_progress: object) -> AdaptResult:
        seen.append(config)
        return AdaptResult(config.output, True, (), {})

    monkeypatch.setattr("recguide.training.adapt.adapt", run)

    def call(*options: str) -> AdaptConfig:
        result = cli("adapt", "toy", "--prompts", "p.jsonl", "--output", "out", "--json", *options)
        assert result.exit_code == 0, result.stderr
        return seen.pop()

    return call


def test_without_options_the_defaults_are_those_of_the_configuration(configured):
    config = configured("--device", "cpu")
    assert (config.model, config.prompts, config.output) == ("toy", Path("p.jsonl"), Path("out"))
    assert config.train.lora == LoraConfig()
    assert config.train.blocks == BlockConfig()
    assert config.train.optimiser == OptimiserConfig()
    assert config.joint is None
    assert configured("--device", "cuda").continuation.lanes > config.continuation.lanes


def test_options_reach_every_part(configured):
    config = configured(
        *("--measure", "a=x.jsonl", "--measure", "b=y.jsonl", "--seed", "7", "--mask-token", "3"),
        *("--temperatures", "0,1", "--lanes", "5", "--rank", "8", "--rank-pattern", "down_proj=4"),
        *("--steps", "9", "--tokens", "256", "--blocks", "8:1,16:2", "--optimiser", "muon", "--lr", "0.5"),
        *("--schedule", "wsd", "--max-seconds", "30", "--start-from", "first", "--share", "code=0.5"),
    )
    assert (config.start, config.shares) == (Path("first"), {"code": 0.5})
    assert config.measure == {"a": Path("x.jsonl"), "b": Path("y.jsonl")}
    assert (config.train.seed, config.continuation.seed, config.mask_token_id) == (7, 7, 3)
    assert (config.continuation.temperatures, config.continuation.lanes) == ((0.0, 1.0), 5)
    assert (config.train.lora.rank, config.train.lora.rank_pattern) == (8, {"down_proj": 4})
    assert (config.train.steps, config.train.clean_tokens, config.train.noisy_tokens) == (9, 256, 256)
    assert (config.train.blocks.sizes, config.train.max_seconds) == ({8: 1.0, 16: 2.0}, 30)
    assert config.train.optimiser == OptimiserConfig(kind="muon", lr=0.5, schedule="wsd")


def test_a_joint_run_has_rates_of_its_own(configured):
    config = configured("--joint", "--alpha-diffusion", "0.2")
    assert config.joint is not None
    assert config.joint.alpha == 0.2
    assert config.train.optimiser == JOINT_OPTIMISER


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--measure", "file", "measure"),
        ("--blocks", "8", "blocks"),
        ("--share", "code=2", "shares"),
        ("--blocks", "8.5:1", "blocks"),
        ("--rank-pattern", "down_proj=many", "rank_pattern"),
        ("--temperatures", "0,warm", "temperatures"),
        ("--rank", "0", "rank"),
        ("--optimiser", "sgd", "optimiser"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(cli, option, value, message):
    result = cli("adapt", "toy", "--prompts", "p.jsonl", "--output", "out", option, value)
    assert result.exit_code == 2
    assert message in result.stderr
