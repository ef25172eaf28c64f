"""How a forward's output reaches the host: into pinned memory, and one wait for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Landing:
    """An output on its way.

    Attributes:
        words: [n] int32 of the host, valid until the next forward is launched.
        event: after which they are there; None if they are.
        first: whether a graph was captured for it, or will be for the next one like it: it took longer than
            such a forward does.
    """

    words: NDArray[np.int32]
    event: torch.cuda.Event | None = None
    first: bool = False

    def wait(self) -> NDArray[np.int32]:
        """The words, once the forward is done."""
        if self.event is not None:
            self.event.synchronize()
        return self.words


class Landings:
    """Host memory for two outputs in turn: one is read while the next may already arrive."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._memory = [torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=torch.int32)]
        self._events = [torch.cuda.Event(), torch.cuda.Event()] if self._on_gpu else []
        self._turn = 0

    def fetch(self, output: Tensor) -> Landing:
        """Begins to copy output words [n] int32 to the host."""
        if not self._on_gpu:
            return Landing(output.numpy())
        self._turn = turn = 1 - self._turn
        if len(output) > len(self._memory[turn]):
            self._memory[turn] = pinned_words(len(output))
        words = self._memory[turn][: len(output)]
        words.copy_(output, non_blocking=True)
        self._events[turn].record()
        return Landing(words.numpy(), self._events[turn])

    def brought(self, words: NDArray[np.int32]) -> Landing:
        """What a graph writes to pinned words [n] int32 by itself, each time to the same ones."""
        self._turn = 1 - self._turn
        self._events[self._turn].record()
        return Landing(words, self._events[self._turn])


def pinned_words(count: int) -> Tensor:
    """Uninitialised int32 words of the host that a GPU may write, in whatever mode it is asked for."""
    with torch.inference_mode(mode=False):
        return torch.empty(count, dtype=torch.int32, pin_memory=True)
