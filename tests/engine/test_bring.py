"""A forward's input arrives whole, by a kernel."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from recguide.engine.kernels.bring import bring


@pytest.mark.parametrize("blocks", [1, 3])
def test_whole_blocks_arrive_and_nothing_else_changes(blocks):
    gpu = torch.cuda.is_available()
    source = torch.arange(8 * 4, dtype=torch.int32)
    source = source.pin_memory() if gpu else source
    target = torch.full((8 * 4,), -1, dtype=torch.int32, device="cuda" if gpu else "cpu")
    bring(source[: 8 * blocks], target[: 8 * blocks], 8)
    assert target.tolist() == [*range(8 * blocks), *[-1] * (8 * (4 - blocks))]
