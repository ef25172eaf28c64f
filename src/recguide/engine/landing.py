"""How a forward's output reaches the host: one copy into pinned memory, one wait for it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Landing:
    """Host memory for one output at a time."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None
        self._memory = torch.empty(0, dtype=torch.int32)

    def fetch(self, output: Tensor) -> Tensor:
        """Begins to copy output words [n] int32 to the host; they are there after `wait`."""
        if self._event is None:
            return output
        if len(output) > len(self._memory):
            self._memory = torch.empty(len(output), dtype=torch.int32, pin_memory=True)
        words = self._memory[: len(output)]
        words.copy_(output, non_blocking=True)
        self._event.record()
        return words

    def wait(self, words: Tensor) -> NDArray[np.int32]:
        """The words, once the forward is done. The next output overwrites them."""
        if self._event is not None:
            self._event.synchronize()
        return words.numpy()
