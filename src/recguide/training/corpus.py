"""The texts of a training run in two flat arrays, and the file they are kept in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recguide.core import CheckpointError

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Corpus:
    """`S` texts, prompt and response, laid end to end.

    Attributes:
        tokens: [T] int32.
        chances: [T] float16, probability that the model gave to each response token; 1 in prompts.
        offsets: [S + 1] int64, where each text begins.
        prompt_lengths: [S] int32.
        prompts: [S] int32, index of the prompt in the prompt file.
        temperatures: [S] float32.
    """

    tokens: Ints
    chances: NDArray[np.float16]
    offsets: NDArray[np.int64]
    prompt_lengths: Ints
    prompts: Ints
    temperatures: NDArray[np.float32]

    def __len__(self) -> int:
        return self.prompt_lengths.shape[0]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    @property
    def response_lengths(self) -> NDArray[np.int64]:
        return self.lengths - self.prompt_lengths

    @classmethod
    def of(
        cls,
        texts: Sequence[Sequence[int]],
        prompt_lengths: Sequence[int],
        prompts: Sequence[int] | None = None,
        temperatures: Sequence[float] | None = None,
        chances: Sequence[Sequence[float]] | None = None,
    ) -> Corpus:
        """From whole texts; `chances` are those of the response tokens."""
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        offsets = np.concatenate((np.zeros(1, np.int64), lengths.cumsum()))
        flat = np.ones(int(offsets[-1]), dtype=np.float16)
        for text, chance in enumerate(chances or ()):
            flat[offsets[text] + prompt_lengths[text] : offsets[text + 1]] = chance
        return cls(
            tokens=np.concatenate(
                [np.asarray(text, dtype=np.int32) for text in texts] or [np.zeros(0, np.int32)]
            ),
            chances=flat,
            offsets=offsets,
            prompt_lengths=np.asarray(prompt_lengths, dtype=np.int32),
            prompts=np.asarray(range(len(texts)) if prompts is None else prompts, dtype=np.int32),
            temperatures=np.asarray(
                [0.0] * len(texts) if temperatures is None else temperatures, dtype=np.float32
            ),
        )

    def text(self, index: int) -> Ints:
        """Tokens of one text, prompt included."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def select(self, keep: NDArray[np.bool_] | NDArray[np.int64]) -> Corpus:
        """The texts chosen by mask or by index, in that order."""
        chosen = np.flatnonzero(keep) if keep.dtype == np.bool_ else keep.astype(np.int64)
        lengths = self.lengths[chosen]
        source = ragged_ranges(self.offsets[chosen], lengths)
        return Corpus(
            tokens=self.tokens[source],
            chances=self.chances[source],
            offsets=np.concatenate((np.zeros(1, np.int64), lengths.cumsum())),
            prompt_lengths=self.prompt_lengths[chosen],
            prompts=self.prompts[chosen],
            temperatures=self.temperatures[chosen],
        )

    def save(self, file: Path) -> None:
        """Writes the file whole or not at all."""
        part = file.with_suffix(".part")
        with part.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **{name: getattr(self, name) for name in _FIELDS})
        part.replace(file)

    @classmethod
    def load(cls, file: Path) -> Corpus:
        """Raises CheckpointError if the file is damaged."""
        try:
            with np.load(file, allow_pickle=False) as stored:
                fields: dict[str, Any] = {name: stored[name] for name in _FIELDS}
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise CheckpointError(
                f"{file} is no saved corpus ({error}); delete it to write it again"
            ) from error
        return cls(**fields)


_FIELDS = ("tokens", "chances", "offsets", "prompt_lengths", "prompts", "temperatures")


def join(parts: Sequence[Corpus]) -> Corpus:
    """One corpus of several."""
    lengths = np.concatenate([part.lengths for part in parts])
    return Corpus(
        tokens=np.concatenate([part.tokens for part in parts]),
        chances=np.concatenate([part.chances for part in parts]),
        offsets=np.concatenate((np.zeros(1, np.int64), lengths.cumsum())),
        prompt_lengths=np.concatenate([part.prompt_lengths for part in parts]),
        prompts=np.concatenate([part.prompts for part in parts]),
        temperatures=np.concatenate([part.temperatures for part in parts]),
    )


def ragged_ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """start, start + 1, … for each (start, length), end to end."""
    total = int(lengths.sum())
    before = lengths.cumsum() - lengths
    return np.arange(total, dtype=np.int64) + np.repeat(starts - before, lengths)
