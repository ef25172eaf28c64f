"""The texts an adapter is trained on: the model's own continuations of prompts, in resumable files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from recguide.core import CheckpointError
from recguide.training.config import ContinuationConfig
from recguide.training.corpus import Corpus, join
from recguide.training.lanes import Lanes

OnWritten = Callable[[int, int, int], None]
"""(texts written, texts in all, tokens written since the start)"""


def chunks(count: int, config: ContinuationConfig) -> list[tuple[float, int, range]]:
    """(temperature, number, prompt indices) of every file of a run over `count` prompts."""
    return [
        (temperature, number, range(start, min(start + config.chunk, count)))
        for temperature in config.temperatures
        for number, start in enumerate(range(0, count, config.chunk))
    ]


def chunk_file(folder: Path, temperature: float, number: int) -> Path:
    return folder / f"continuations-t{temperature:g}-{number:04d}.npz"


def write_continuations(
    lanes: Lanes,
    prompts: Sequence[Sequence[int]],
    config: ContinuationConfig,
    folder: Path,
    *,
    part: tuple[int, int] = (0, 1),
    on_written: OnWritten = lambda *_: None,
) -> None:
    """Writes the files that are missing. Prompts longer than `max_prompt_tokens` are left out.

    Args:
        prompts: token ids of each prompt.
        part: (index, count): only every count-th file, for one of several processes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mine = [
        chunk
        for place, chunk in enumerate(chunks(len(prompts), config))
        if place % part[1] == part[0] and not chunk_file(folder, chunk[0], chunk[1]).is_file()
    ]
    total = sum(len(indices) for _, _, indices in mine)
    done = tokens = 0
    for temperature, number, indices in mine:
        # Similar lengths side by side: a refill pads to its longest prompt.
        order = sorted(
            (index for index in indices if 0 < len(prompts[index]) <= config.max_prompt_tokens),
            key=lambda index: len(prompts[index]),
        )
        texts: dict[int, tuple[tuple[int, ...], tuple[float, ...]]] = {}
        seed = int(
            np.random.SeedSequence([config.seed, number, round(temperature * 1000)]).generate_state(1)[0]
        )
        for written in lanes.write([prompts[index] for index in order], temperature, seed):
            texts[order[written.index]] = (written.tokens, written.chances)
            done += 1
            tokens += len(written.tokens)
            if done % 256 == 0:
                on_written(done, total, tokens)
        kept = sorted(texts)
        Corpus.of(
            [[*prompts[index], *texts[index][0]] for index in kept],
            [len(prompts[index]) for index in kept],
            kept,
            [temperature] * len(kept),
            [texts[index][1] for index in kept],
        ).save(chunk_file(folder, temperature, number))
    on_written(done, total, tokens)


def read_continuations(folder: Path, prompts: Sequence[Sequence[int]], config: ContinuationConfig) -> Corpus:
    """All files of a run as one corpus.

    Raises CheckpointError for a missing or damaged one, and for one that was written for other prompts.
    """
    asked = chunks(len(prompts), config)
    return join(
        [
            _read(chunk_file(folder, temperature, number), prompts, chunk)
            for temperature, number, chunk in asked
        ]
    )


def _read(file: Path, prompts: Sequence[Sequence[int]], chunk: range) -> Corpus:
    corpus = Corpus.load(file)
    for text, index in enumerate(corpus.prompts.tolist()):
        start, length = int(corpus.offsets[text]), int(corpus.prompt_lengths[text])
        if index not in chunk or corpus.tokens[start : start + length].tolist() != list(prompts[index]):
            raise CheckpointError(f"{file} continues other prompts; delete it, or use another work folder")
    return corpus
