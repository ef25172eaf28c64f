"""Continuations are what plain decoding writes, whatever lanes they ran in, and files are resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.training import tiny

from recguide.core import CheckpointError
from recguide.training import lane_attention
from recguide.training.config import ContinuationConfig
from recguide.training.continuations import chunk_file, chunks, read_continuations, write_continuations


def plain_greedy(backbone, prompt: list[int], new: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + new:
        logits = tiny.decoder_logits(backbone, tokens)[-1]
        logits[tiny.MASK] = float("-inf")
        tokens.append(int(logits.argmax()))
        if tokens[-1] == tiny.END:
            break
    return tokens[len(prompt) :]


@pytest.mark.parametrize("query_scale", [False, True])
def test_greedy_equals_plain_decoding(query_scale: bool):
    backbone = tiny.backbone(query_scale=query_scale)
    asked = tiny.prompts(13)
    written = {w.index: w for w in tiny.lanes(backbone, 4, 20).write(asked, 0.0, 0)}
    assert sorted(written) == list(range(13))
    for index, prompt in enumerate(asked):
        assert list(written[index].tokens) == plain_greedy(backbone, prompt, 20)


def test_chances_are_the_models_probabilities():
    backbone = tiny.backbone()
    asked = tiny.prompts(3)
    for written in tiny.lanes(backbone, 2, 12).write(asked, 0.7, 5):
        prompt = asked[written.index]
        logits = tiny.decoder_logits(backbone, [*prompt, *written.tokens])
        logits[:, tiny.MASK] = float("-inf")
        probabilities = logits.softmax(-1)[len(prompt) - 1 : -1]
        expected = probabilities.gather(1, torch.tensor(written.tokens)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(written.chances), expected, atol=2e-3)


def test_sampling_follows_the_seed_and_the_temperature():
    backbone = tiny.backbone()
    asked = tiny.prompts(6)

    def run(temperature: float, seed: int):
        return sorted(
            (w.index, w.tokens) for w in tiny.lanes(backbone, 3, 12).write(asked, temperature, seed)
        )

    assert run(1.0, 1) == run(1.0, 1)
    assert run(1.0, 1) != run(1.0, 2)
    assert run(1e-4, 1) == run(0.0, 2)


def test_missing_files_alone_are_written_again(tmp_path: Path):
    backbone = tiny.backbone()
    asked = [*tiny.prompts(11), [5] * 40]
    config = ContinuationConfig(
        temperatures=(0.0, 0.7), max_new_tokens=12, max_prompt_tokens=16, lanes=4, chunk=5, seed=3
    )
    lanes = tiny.lanes(backbone, 4, 12)
    write_continuations(lanes, asked, config, tmp_path)
    whole = read_continuations(tmp_path, asked, config)
    assert len(whole) == 22  # the prompt of 40 tokens is left out of both passes
    assert len(chunks(len(asked), config)) == 6
    kept = chunk_file(tmp_path, 0.0, 0).stat().st_mtime_ns
    chunk_file(tmp_path, 0.7, 1).unlink()
    write_continuations(tiny.lanes(backbone, 4, 12), asked, config, tmp_path)
    assert chunk_file(tmp_path, 0.0, 0).stat().st_mtime_ns == kept
    again = read_continuations(tmp_path, asked, config)
    assert (again.tokens == whole.tokens).all()
    assert (again.offsets == whole.offsets).all()
    assert sorted(set(whole.temperatures.tolist())) == pytest.approx([0.0, 0.7])
    with pytest.raises(CheckpointError, match="continues other prompts"):
        read_continuations(tmp_path, [*asked[:-2], [7, 7, 7], asked[-1]], config)


def test_the_kernel_agrees_with_its_definition():
    pytest.importorskip("triton")
    from recguide.training.lane_kernel import lane_attention as kernel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(*size, generator=generator).to(device)
        for size in ((5, 9, 64), (5, 150, 3, 64), (5, 150, 3, 64))
    )
    lengths = torch.tensor([1, 64, 65, 150, 17], device=device)
    expected = lane_attention.reference(q, k, v, lengths)
    torch.testing.assert_close(kernel(q, k, v, lengths), expected, atol=2e-5, rtol=1e-4)


def test_the_definition_ignores_what_lies_behind_a_length():
    q, k, v = torch.randn(2, 4, 8), torch.randn(2, 6, 2, 8), torch.randn(2, 6, 2, 8)
    lengths = torch.tensor([3, 6])
    changed = k.clone()
    changed[0, 3:] = 100.0
    same = lane_attention.reference(q, changed, v, lengths)
    assert torch.equal(same, lane_attention.reference(q, k, v, lengths))
