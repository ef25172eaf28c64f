"""The picker that says what the script says, in torch and as a kernel."""

from __future__ import annotations

import pytest
import torch
from tests.bench.acceptance.tables import VOCABULARY, mixed, zeros

from recguide.bench.acceptance.picker import ReplayPicker
from recguide.bench.acceptance.process import LABEL, fitted
from recguide.bench.acceptance.script import Constants, script
from recguide.core import Vocabulary
from recguide.speculation.slots import SlotTable

PROCESS = fitted("nld-8b").process
WORDS = ("tokens", "candidates")
REALS = ("p1", "p2", "entropy")
LARGE = Vocabulary(size=131_072, eos=(11,), mask=100)


def on(device: str, slots: SlotTable) -> SlotTable:
    names = ("seed", "position", "start", "slot", "temperature", "draft")
    return SlotTable(**{name: getattr(slots, name).to(device) for name in names})


def assert_says_the_script(picks, slots, vocabulary):
    """Wherever there is a slot; padding stays zero."""
    said = script(Constants.of(PROCESS, vocabulary), slots)
    used = slots.position >= 0
    for name in WORDS:
        assert torch.equal(getattr(picks, name).cpu()[..., used], getattr(said, name)[..., used]), name
    for name in REALS:
        torch.testing.assert_close(
            getattr(picks, name).cpu()[used], getattr(said, name)[used], rtol=1e-5, atol=1e-6
        )
    for name in (*WORDS, *REALS):
        assert not getattr(picks, name).cpu()[..., ~used].any(), name


def test_it_overwrites_what_the_real_picker_said():
    asked = []

    def real(logits, slots):
        asked.append(logits)
        return zeros(logits, slots)

    picker = ReplayPicker(real, PROCESS, VOCABULARY)
    logits, slots = torch.randn(40, VOCABULARY.size), mixed(40, padding=5)
    assert_says_the_script(picker(logits, slots), slots, VOCABULARY)
    assert asked[0] is logits
    assert picker.label == LABEL == "replayed acceptance"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without a GPU")
def test_the_kernel_is_the_script():
    pytest.importorskip("triton")
    from recguide.bench.acceptance.kernel import ScriptKernel

    slots = mixed(14, padding=2, seed=3)
    picks = zeros(torch.empty(0), slots)
    ScriptKernel(Constants.of(PROCESS, VOCABULARY), torch.device("cpu"))(slots, picks)
    assert_says_the_script(picks, slots, VOCABULARY)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 64, 500])
def test_under_a_graph_it_is_the_script_whatever_the_table_holds(count):
    picker = ReplayPicker(lambda logits, slots: zeros(logits, slots, "cuda"), PROCESS, LARGE)
    static = on("cuda", mixed(count))
    logits = torch.zeros(count, 8, device="cuda")
    picker(logits, static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        picks = picker(logits, static)
    for seed in (1, 2):
        slots = mixed(count, padding=count // 4, seed=seed)
        for name in ("seed", "position", "start", "slot", "draft"):
            getattr(static, name).copy_(getattr(slots, name))
        graph.replay()
        assert_says_the_script(picks, slots, LARGE)
