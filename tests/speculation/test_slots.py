"""The table of wanted slots: what the host writes is what the device reads, in one block of words."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recguide.core import RecGuideError, SamplingParams, Vocabulary
from recguide.speculation.picks import PickRow, pick
from recguide.speculation.slots import INERT, SlotRun, SlotTable, torch_picker

RUNS = st.builds(
    SlotRun,
    start=st.integers(0, 2**31 - 100),
    first=st.integers(0, 8),
    length=st.integers(0, 5),
    seed=st.integers(0, 2**63 - 1),
    temperature=st.sampled_from([0.0, 1e-4, 0.7, 100.0]),
    draft=st.booleans(),
)


def table_of(runs, slots):
    words = np.full(SlotTable.words(slots), 77, dtype=np.int32)
    SlotTable.fill(words, slots, runs)
    return SlotTable.over(torch.from_numpy(words), slots)


@given(st.lists(RUNS, max_size=5), st.integers(0, 4))
def test_a_table_says_what_its_runs_say(runs, padding):
    used = sum(run.length for run in runs)
    padding += used == 0
    table = table_of(runs, used + padding)
    wanted = [(run, run.first + i) for run in runs for i in range(run.length)]
    assert len(table) == used + padding
    assert table.seed[:used].tolist() == [run.seed for run, _ in wanted]
    assert table.slot[:used].tolist() == [slot for _, slot in wanted]
    assert table.start[:used].tolist() == [run.start for run, _ in wanted]
    assert table.draft[:used].tolist() == [run.draft for run, _ in wanted]
    assert table.temperature[:used].tolist() == [float(np.float32(run.temperature)) for run, _ in wanted]
    assert table.position.tolist() == [
        *(run.start + slot + (0 if run.draft else 1) for run, slot in wanted),
        *[INERT] * padding,
    ]
    assert SlotTable.words(used + padding) % 2 == 0


def test_a_table_has_room_for_its_slots_only():
    with pytest.raises(RecGuideError, match="3 wanted and room for 2"):
        table_of([SlotRun(0, 0, 3, 0, 0.0, False)], 2)


@pytest.mark.parametrize("temperature", [0.0, 1e-4, 0.8])
def test_the_torch_picker_picks_what_pick_picks(temperature):
    vocabulary = Vocabulary(50, eos=(2,), mask=3)
    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(1))
    runs = [SlotRun(9, 0, 3, 5, temperature, False), SlotRun(12, 1, 2, 5, temperature, True)]
    found = torch_picker(vocabulary)(logits, table_of(runs, 7))
    params = SamplingParams(temperature=temperature, seed=5)
    rows = [
        PickRow(params, (), (), (), position=10, count=3, draft=False),
        PickRow(params, (), (), (), position=13, count=2, draft=True),
    ]
    expected = pick(logits[:5], rows, vocabulary)
    for name in ("tokens", "p1", "p2", "candidates", "entropy", "logprobs", "bad"):
        assert torch.equal(getattr(found, name)[..., :5], getattr(expected, name))
        assert not getattr(found, name)[..., 5:].any()
