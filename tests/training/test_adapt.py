"""The whole of `adapt` on a tiny checkpoint: texts, training, resume, a folder that loads, its card."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import zstandard
from safetensors.torch import save_file
from tests.training import tiny
from tokenizers import Tokenizer, models, pre_tokenizers

from recguide.core import ParameterError
from recguide.models.checkpoint import named_weights
from recguide.models.decoder import Decoder
from recguide.models.loading import load
from recguide.training.adapt import Event, adapt
from recguide.training.config import AdaptConfig, ContinuationConfig, JointConfig, LoraConfig, TrainConfig
from recguide.training.prompts import held_out, limited, read_prompts, shared

WORDS = [f"w{i}" for i in range(58)]
SPECIAL = ["<unk>", "<s>", "</s>", "<spare>", "<used>", "<other>"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user would have it: config, weights, a word-level tokenizer, no chat template."""
    folder = tmp_path_factory.mktemp("tiny")
    vocabulary = {token: index for index, token in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>"})
    )
    decoder = Decoder(tiny.config(), torch.float32, torch.device("cpu"))
    decoder.randomise(3)
    save_file({n: t.contiguous() for n, t in named_weights(decoder).items()}, folder / "model.safetensors")
    tiny.write_config(folder)
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl.zst"
    rows = [
        {
            "prompt": f"<used> w{i % 58} w{i * 7 % 58} w{i * 3 % 58}",
            "source": "odd" if i % 2 else "even",
            "licence": "CC-BY-4.0" if i % 2 else "CC0",
        }
        for i in range(40)
    ]
    text = "\n".join(json.dumps(row) for row in rows)
    file.write_bytes(zstandard.ZstdCompressor().compress(text.encode()))
    return file


def config(checkpoint: Path, prompts: Path, folder: Path, **train: object) -> AdaptConfig:
    return AdaptConfig(
        model=str(checkpoint),
        prompts=prompts,
        output=folder,
        device="cpu",
        held_out=2,
        measure={"again": prompts},
        measure_limit=3,
        continuation=ContinuationConfig(max_new_tokens=24, max_prompt_tokens=8, lanes=8, chunk=15),
        train=TrainConfig(
            steps=12,
            clean_tokens=256,
            noisy_tokens=256,
            eval_every=0,
            lora=LoraConfig(rank=4),
            **train,  # type: ignore[arg-type]
        ),
    )


def test_an_interrupted_run_ends_as_one_that_was_not(checkpoint: Path, prompts: Path, tmp_path: Path):
    whole = adapt(config(checkpoint, prompts, tmp_path / "whole"))
    assert whole.finished
    assert set(whole.history[-1].acceptance) == {"even", "odd"}
    assert set(whole.measured) == {"again"}
    first = adapt(config(checkpoint, prompts, tmp_path / "parts", max_seconds=0.0))
    assert not first.finished
    stages: list[str] = []
    second = adapt(config(checkpoint, prompts, tmp_path / "parts"), lambda event: stages.append(event.stage))
    assert second.finished
    assert set(stages) == {"training"}  # nothing was written or tokenised again
    a, b = (load(str(checkpoint), adapter=str(tmp_path / name)).adapter for name in ("whole", "parts"))
    assert a is not None
    assert b is not None
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y)
    assert a.mask_token_id == 5  # the highest special token that no prompt holds and that ends no text


def test_the_card_credits_the_prompts_and_shows_the_curve(checkpoint: Path, prompts: Path, tmp_path: Path):
    events: list[Event] = []
    adapt(config(checkpoint, prompts, tmp_path / "out"), events.append)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| odd | CC-BY-4.0 | 20 |" in card
    assert "| even | CC0 | 20 |" in card
    assert "| again |" in card
    assert "teacher-forced" in card
    pytest.importorskip("matplotlib")
    assert "curve.png" in card
    assert (tmp_path / "out" / "curve.png").stat().st_size > 1000
    assert {event.stage.split(" (")[0] for event in events} == {"writing continuations", "training"}


def test_a_second_run_goes_on_from_the_first_with_shares_of_the_tasks(
    checkpoint: Path, prompts: Path, tmp_path: Path
):
    first = config(checkpoint, prompts, tmp_path / "first")
    adapt(first)
    again = replace(
        config(checkpoint, prompts, tmp_path / "second"), start=tmp_path / "first", shares={"odd": 0.5}
    )
    result = adapt(again)
    assert set(result.history[-1].acceptance) == {"even", "odd"}
    card = (tmp_path / "second" / "README.md").read_text()
    assert "| continued from | first (" in card
    assert "| even | CC0 | 20 |" in card
    assert "| odd | CC-BY-4.0 | 20 |" not in card
    with pytest.raises(ParameterError, match="joint"):
        replace(again, joint=JointConfig())


def test_a_joint_run_leaves_a_checkpoint_that_drafts(checkpoint: Path, prompts: Path, tmp_path: Path):
    asked = replace(
        config(checkpoint, prompts, tmp_path / "joint"), joint=JointConfig(block_size=8), measure={}
    )
    result = adapt(asked)
    assert [entry.step for entry in result.history] == [10, 12]
    model = load(str(tmp_path / "joint"), device="cpu")
    assert model.config.native_drafts
    assert model.vocabulary.mask == 5


def test_prompt_files_are_read_and_refused(tmp_path: Path):
    plain = tmp_path / "a.jsonl"
    plain.write_text('{"prompt": "x", "source": "s", "task": "t"}\n\n{"prompt": "y"}\n')
    read = read_prompts(plain)
    assert [(p.text, p.source, p.task, p.licence) for p in read] == [
        ("x", "s", "t", "unknown"),
        ("y", "prompts", "prompts", "unknown"),
    ]
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_prompts(packed) == read
    for text in ("{", '{"prompt": 3}', ""):
        plain.write_text(text)
        with pytest.raises(ParameterError, match="prompts"):
            read_prompts(plain)
    with pytest.raises(ParameterError, match="cannot be read"):
        read_prompts(tmp_path / "missing.jsonl")


def test_a_limit_is_spread_over_sources_and_tasks_are_held_out(prompts: Path):
    read = read_prompts(prompts)
    few = limited(read, 10, 0)
    assert sum(prompt.source == "odd" for prompt in few) == 5
    assert limited(read, 10, 0) == few
    held = held_out(read, 100, 0)
    assert len(held) == 4  # a tenth of each task at most
    assert held_out(read, 1, 0) <= held


def test_shares_are_nested_and_keep_what_is_held_out(prompts: Path):
    read = read_prompts(prompts)
    held = held_out(read, 2, 0)
    small, large = (shared(read, {"odd": share}, held, 0) for share in (0.2, 0.7))
    assert held < set(small) < set(large) < set(range(40))
    assert sum(read[index].task == "even" for index in small) == 20
    assert shared(read, {}, held, 0) == list(range(40))
    with pytest.raises(ParameterError, match="'poems'"):
        shared(read, {"poems": 0.5}, held, 0)
