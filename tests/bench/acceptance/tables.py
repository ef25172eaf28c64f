"""Slot tables for tests, and a picker that answers zeros."""

from __future__ import annotations

import torch
from torch import Tensor

from recguide.core import CANDIDATES, Vocabulary
from recguide.speculation.picks import Picks
from recguide.speculation.slots import INERT, SlotTable

VOCABULARY = Vocabulary(size=512, eos=(11, 2), mask=100, think=(12, 13))
SILENT = {11, 2, 100, 12, 13}


def table(seed, start, slot, draft) -> SlotTable:
    """[W] lists or tensors that broadcast."""
    seed, start, slot, draft = torch.broadcast_tensors(
        *(torch.as_tensor(column) for column in (seed, start, slot, draft))
    )
    return SlotTable(
        seed=seed.long().contiguous(),
        position=(start + slot + (~draft).int()).int(),
        start=start.int().contiguous(),
        slot=slot.int().contiguous(),
        temperature=torch.zeros(len(seed)),
        draft=draft.contiguous(),
    )


def mixed(slots: int, padding: int = 0, seed: int = 0) -> SlotTable:
    """Random slots of both kinds at positions up to a long prompt's, then padding."""
    generator = torch.Generator().manual_seed(seed)
    draft = torch.rand(slots, generator=generator) < 0.6
    found = table(
        torch.randint(0, 2**63 - 1, (slots,), generator=generator),
        torch.randint(0, 100_000, (slots,), generator=generator),
        torch.randint(0, 64, (slots,), generator=generator),
        draft,
    )
    if padding:
        found.position[-padding:] = INERT
    return found


def zeros(_logits: Tensor, slots: SlotTable, device: str = "cpu") -> Picks:
    count = len(slots)
    real, whole = torch.zeros(count, device=device), torch.zeros(count, dtype=torch.int64, device=device)
    return Picks(
        tokens=whole,
        p1=real,
        p2=real.clone(),
        candidates=torch.zeros(CANDIDATES, count, dtype=torch.int64, device=device),
        entropy=real.clone(),
        logprobs=real.clone(),
        bad=torch.zeros(count, dtype=torch.bool, device=device),
    )
