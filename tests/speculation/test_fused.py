"""The fused picker against torch's `pick` and against what its statistics are defined as.

Without a GPU the kernels run in Triton's interpreter, on small vocabularies cut into small chunks.
"""

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tests.speculation.test_noise import VECTORS
from tests.speculation.test_race import chi_square

from recguide.core import RecGuideError, Vocabulary
from recguide.speculation import noise
from recguide.speculation.fused import ALIKE, FusedPicker, Split
from recguide.speculation.kernels.noise import first_words, gumbel, rough_gumbel
from recguide.speculation.picks import Picks
from recguide.speculation.slots import SlotRun, SlotTable, torch_picker
from recguide.speculation.step import SettleShape, SettleTable, StepOutput, settle_step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
gpu = [pytest.mark.gpu, pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")]


def table_of(runs, slots=None):
    slots = slots or sum(run.length for run in runs)
    words = np.zeros(SlotTable.words(slots), dtype=np.int32)
    SlotTable.fill(words, slots, runs)
    return SlotTable.over(torch.from_numpy(words).to(DEVICE), slots)


def one_by_one(settings_of_slots):
    """A table of single slots: (temperature, seed, position, draft) each."""
    return table_of([SlotRun(p - (not d), 0, 1, s, t, d) for t, s, p, d in settings_of_slots])


# --- noise --------------------------------------------------------------------------------------------------


@triton.jit
def _noise(seed, position, words, exact, rough, SIZE: tl.constexpr):
    token = tl.arange(0, SIZE)
    k = first_words(tl.load(seed), tl.load(position), token)
    tl.store(words + token, k.to(tl.int64))
    tl.store(exact + token, gumbel(k))
    tl.store(rough + token, rough_gumbel(k))


@triton.jit
def _noise_of(words, exact, rough, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    k = tl.load(words + at).to(tl.uint32)
    tl.store(exact + at, gumbel(k))
    tl.store(rough + at, rough_gumbel(k))


def rooms(size):
    return (
        torch.empty(size, dtype=torch.int64, device=DEVICE),
        torch.empty(size, dtype=torch.float64, device=DEVICE),
        torch.empty(size, dtype=torch.float32, device=DEVICE),
    )


@pytest.mark.parametrize(("seed", "position", "token", "first", "value"), VECTORS)
def test_noise_vectors(seed, position, token, first, value):
    size = 1 << token.bit_length()
    words, exact, _ = rooms(size)
    where = torch.tensor([position], dtype=torch.int32, device=DEVICE)
    _noise[(1,)](torch.tensor([seed], device=DEVICE), where, words, exact, rooms(size)[2], SIZE=size)
    assert int(words[token]) == first
    assert float(exact[token]) == pytest.approx(value, abs=1e-12)
    expected = noise.first_words(torch.tensor([seed]), torch.tensor([position]), torch.arange(size))
    assert torch.equal(words.cpu(), expected)


def test_rough_noise_is_as_close_as_promised_and_exact_noise_closer():
    """At both ends, around the change of method, and in between on all scales."""
    ends = [torch.arange(1024), torch.arange(2**32 - 1024, 2**32), torch.arange(2**27 - 512, 2**27 + 512)]
    words = torch.cat([*ends, (torch.linspace(0, 32, 1024).exp2() - 1).long().clamp(max=2**32 - 1)])
    _, exact, rough = rooms(len(words))
    _noise_of[(1,)](words.to(DEVICE), exact, rough, SIZE=len(words))
    expected = noise.gumbel_of(words)
    assert (exact.cpu() - expected).abs().max() < 1e-14
    assert (rough.cpu() - expected).abs().max() < 2e-5


# --- picks --------------------------------------------------------------------------------------------------


def law(logits, slots, vocabulary, picked):
    """p1, p2, what candidates are worth, entropy and log-probability of each slot by their definitions."""
    found = []
    for z, (t, seed, position, draft), token in zip(logits, slots, picked.tolist(), strict=True):
        raw = z.double().clone()
        logprob = float(raw.log_softmax(0)[token])
        if vocabulary.mask is not None:
            raw[vocabulary.mask] = -math.inf
        if not draft:
            found.append((0.0, 0.0, None, float(torch.special.entr(raw.softmax(0)).sum()), logprob))
            continue
        t = float(np.float32(t))
        tokens = torch.arange(len(z))
        if t:
            raw = raw + t * noise.gumbel(torch.tensor([seed]), torch.tensor([position]), tokens)[0]
        p = raw.softmax(0)
        others = p.clone()
        others[token] = -1.0
        free = others.clone()
        free[list(vocabulary.eos)] = -1.0
        if vocabulary.mask is not None:
            free[vocabulary.mask] = -1.0
        found.append((float(p[token]), float(others.max()), free, 0.0, logprob))
    return found


def check(found, logits, slots, vocabulary):
    """Tokens are `pick`'s, everything else is as defined."""
    picked = torch_picker(vocabulary)(logits, one_by_one(slots)).tokens.cpu()
    assert torch.equal(found.tokens.cpu(), picked)
    expected = law(logits.cpu(), slots, vocabulary, picked)
    for i, (p1, p2, free, entropy, logprob) in enumerate(expected):
        assert float(found.p1[i]) == pytest.approx(p1, rel=1e-4, abs=1e-6)
        assert float(found.p2[i]) == pytest.approx(p2, rel=1e-4, abs=1e-6)
        assert float(found.entropy[i]) == pytest.approx(entropy, rel=1e-4, abs=1e-5)
        assert float(found.logprobs[i]) == pytest.approx(logprob, rel=1e-5, abs=1e-4)
        candidates = found.candidates[:, i].tolist()
        if free is None:
            assert candidates == [0, 0]
            continue
        for candidate in candidates:
            assert 0 <= candidate < len(free)
            if float(free.max()) > 1e-30:
                assert float(free[candidate]) == pytest.approx(float(free.max()), rel=1e-4)
                if slots[i][0] == 0.0 and logits.dtype == torch.float32:  # the lowest of equals
                    assert candidate == int(free.argmax())
            free[candidate] = -1.0
    assert not found.bad.any()


@st.composite
def cases(draw):
    """Logits on a grid of quarters, with ties and banned tokens, and slots of every kind."""
    width = draw(st.sampled_from([2, 3, 17, 64, 65, 150]))
    mask = draw(st.none() | st.integers(0, width - 1))
    ends = draw(st.sets(st.integers(0, width - 1), max_size=min(3, width - 2)))
    count = draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    spread = draw(st.sampled_from([0.0, 1.0, 5.0]))
    z = (torch.randn(count, width, generator=generator) * spread * 4).round() / 4
    if draw(st.booleans()):
        z[torch.rand(count, width, generator=generator) < 0.3] = -math.inf
        # At least one token that may be picked.
        z[:, next(token for token in range(width) if token != mask)] = 1.25
    slots = [
        (
            draw(st.sampled_from([0.0, 0.0, 1e-4, 0.3, 0.7, 1.0, 100.0])),
            draw(st.integers(0, 2**63 - 1)),
            draw(st.integers(1, 2**31 - 1)),
            draw(st.booleans()),
        )
        for _ in range(count)
    ]
    chunk = draw(st.sampled_from([16, 64, 256]))
    return z.to(DEVICE), slots, Vocabulary(width, eos=tuple(ends), mask=mask), Split(chunk, 1)


@settings(max_examples=40, deadline=None)
@given(cases())
def test_tokens_are_those_of_torch_and_statistics_those_of_their_definition(case):
    logits, slots, vocabulary, split = case
    check(FusedPicker(vocabulary, DEVICE, split)(logits, one_by_one(slots)), logits, slots, vocabulary)


def mixed(count, seed=1):
    """Slots of all kinds in turn."""
    kinds = [(0.0, False), (0.8, False), (0.0, True), (0.8, True)]
    return [(kinds[i % 4][0], seed + i // 4, 7 + i, kinds[i % 4][1]) for i in range(count)]


def random_logits(count, width, seed=0, spread=3.0):
    z = torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) * spread
    return (z + 3 * (z / spread).clamp(min=2.0).sub(2.0)).to(DEVICE)


def test_a_pick_depends_on_nothing_but_its_slot():
    """Neither on the chunks, nor on the padding, nor on who else is there."""
    vocabulary = Vocabulary(301, eos=(3, 299), mask=64)
    logits, slots = random_logits(8, 301), mixed(8)
    whole = FusedPicker(vocabulary, DEVICE, Split(512, 1))(logits, one_by_one(slots))
    check(whole, logits, slots, vocabulary)
    runs = [SlotRun(p - (not d), 0, 1, s, t, d) for t, s, p, d in slots]
    wide = torch.cat([logits, torch.full((3, 301), math.nan, device=DEVICE)])
    for found in (
        FusedPicker(vocabulary, DEVICE, Split(32, 1))(logits, one_by_one(slots)),
        FusedPicker(vocabulary, DEVICE, Split(128, 1))(wide, table_of(runs, 11)),
        *(FusedPicker(vocabulary, DEVICE, Split(64, 1))(logits[i:], table_of(runs[i:])) for i in (3, 7)),
    ):
        first = 8 - min(8, len(found.tokens))
        kept = slice(first, None)
        for name in ("tokens", "candidates"):
            assert torch.equal(getattr(found, name)[..., : 8 - first], getattr(whole, name)[..., kept])
        for name in ("p1", "p2", "entropy", "logprobs"):
            torch.testing.assert_close(getattr(found, name)[: 8 - first], getattr(whole, name)[kept])


def test_in_exact_modes_cut_statistics_are_the_same_bits_in_any_company():
    width = 3000
    vocabulary = Vocabulary(width, eos=(3, 2999), mask=64)
    logits, slots = random_logits(8, width), mixed(8)
    runs = [SlotRun(p - (not d), 0, 1, s, t, d) for t, s, p, d in slots]
    together = FusedPicker(vocabulary, DEVICE, ALIKE)(logits, one_by_one(slots))
    for i in range(8):
        alone = FusedPicker(vocabulary, DEVICE, ALIKE)(logits[i : i + 1], table_of(runs[i : i + 1]))
        for name in ("tokens", "candidates", "p1", "p2", "entropy", "logprobs"):
            assert torch.equal(getattr(alone, name)[..., 0], getattr(together, name)[..., i])


def test_padding_slots_are_inert():
    vocabulary = Vocabulary(40, eos=(2,), mask=3)
    logits = torch.full((4, 40), math.nan, device=DEVICE)
    logits[0] = 1.0
    found = FusedPicker(vocabulary, DEVICE, Split(16, 1))(
        logits, table_of([SlotRun(4, 0, 1, 1, 0.5, True)], 4)
    )
    assert not found.bad.any()
    assert not found.tokens[1:].any()
    assert not found.logprobs[1:].any()


@pytest.mark.parametrize("chunk", [32, 256])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_scores_that_fp32_cannot_tell_apart(temperature, chunk):
    """Rivals lifted to within a rounding of the best: only float64 knows who wins."""
    width, count = 200, 4
    t = float(np.float32(temperature))
    g = noise.gumbel(torch.arange(count), torch.arange(1, count + 1), torch.arange(width)).cpu()
    logits = torch.zeros(count, width)
    for i in range(count):
        best = int(g[i].argmax())
        # z of every fifth token makes its score that of the best one, as nearly as fp32 has it.
        rivals = torch.arange(i % 5, width, 5)
        logits[i, rivals] = (t * (g[i, best] - g[i, rivals])).float()
    slots = [(temperature, i, i + 1, i % 2 == 0) for i in range(count)]
    vocabulary = Vocabulary(width, eos=(10,), mask=11)
    logits = logits.to(DEVICE)
    found = FusedPicker(vocabulary, DEVICE, Split(chunk, 1))(logits, one_by_one(slots))
    scores = logits.cpu().double() / t + g
    scores[:, 11] = -math.inf
    assert found.tokens.tolist() == scores.argmax(1).tolist()
    near = (scores > scores.amax(1, keepdim=True) - 1e-5).sum(1)
    assert near.min() > 10
    check(found, logits, slots, vocabulary)


def test_float64_logits():
    vocabulary = Vocabulary(100, eos=(2,), mask=3)
    logits = random_logits(8, 100).double()
    logits[:, 40] = logits.amax(1)
    logits[:, 39] = logits[:, 40] - 1e-12
    found = FusedPicker(vocabulary, DEVICE, Split(64, 1))(logits, one_by_one(mixed(8)))
    check(found, logits, mixed(8), vocabulary)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:All-NaN:RuntimeWarning")
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("draft", [False, True])
def test_bad_slots_are_named_and_their_neighbours_are_well(temperature, draft):
    vocabulary = Vocabulary(50, eos=(2,), mask=3)
    logits = random_logits(6, 50)
    logits[0, 20] = math.nan
    logits[1, 49] = math.inf
    logits[2] = -math.inf
    logits[3, 2] = math.nan
    logits[4, 3] = math.nan  # the mask token's is never looked at by picks
    slots = [(temperature, 1, 5 + i, draft) for i in range(6)]
    found = FusedPicker(vocabulary, DEVICE, Split(32, 1))(logits, one_by_one(slots))
    assert found.bad.tolist() == [True, True, True, True, False, False]
    assert found.tokens[:4].tolist() == [0] * 4
    expected = torch_picker(vocabulary)(logits[4:], one_by_one(slots[4:]))
    assert torch.equal(found.tokens[4:], expected.tokens)


def test_draws_follow_the_softmax():
    z = torch.tensor([2.0, 1.0, 0.0, -1.0, 9.0], device=DEVICE)
    count = 120 if DEVICE == "cpu" else 20_000
    table = table_of([SlotRun(0, 0, count, 23, 1.0, False)])
    tokens = FusedPicker(Vocabulary(5, eos=(1,), mask=4), DEVICE)(z.expand(count, 5), table).tokens
    counts = torch.bincount(tokens.cpu(), minlength=5)
    assert counts[4] == 0
    assert chisquare(counts[:4].numpy(), z[:4].cpu().double().softmax(0).numpy() * count).pvalue > 1e-3


def test_a_table_of_another_size_is_refused():
    with pytest.raises(RecGuideError, match="2 given for 1 slots"):
        FusedPicker(Vocabulary(5, eos=()), DEVICE)(torch.zeros(2, 5, device=DEVICE), one_by_one(mixed(1)))


# --- real sizes, on a GPU -----------------------------------------------------------------------------------

REAL = {131_072: Vocabulary(131_072, eos=(2, 11), mask=100), 49_152: Vocabulary(49_152, eos=(2,), mask=16)}


class TestOnAGpu:
    pytestmark = gpu

    @pytest.mark.parametrize("count", [1, 16, 128])
    @pytest.mark.parametrize("width", REAL)
    @pytest.mark.parametrize("spread", [0.5, 3.0])
    def test_tokens_of_real_vocabularies_are_those_of_torch(self, width, count, spread):
        logits = random_logits(count, width, seed=count, spread=spread)
        table = one_by_one(mixed(count))
        expected = torch_picker(REAL[width])(logits, table)
        for split in (None, Split(1024, 4), Split(4096, 8)):
            found = FusedPicker(REAL[width], DEVICE, split)(logits, table)
            assert torch.equal(found.tokens, expected.tokens)
            torch.testing.assert_close(found.entropy, expected.entropy, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(found.logprobs, expected.logprobs, rtol=1e-4, atol=1e-4)
            greedy = table.temperature == 0
            for name in ("p1", "p2", "candidates"):
                torch.testing.assert_close(
                    getattr(found, name)[..., greedy],
                    getattr(expected, name)[..., greedy],
                    rtol=1e-4,
                    atol=1e-5,
                )

    def test_a_few_slots_of_a_real_vocabulary_by_their_definition(self):
        logits = random_logits(8, 49_152, seed=5)
        found = FusedPicker(REAL[49_152], DEVICE)(logits, one_by_one(mixed(8)))
        check(found, logits, mixed(8), REAL[49_152])

    @pytest.mark.parametrize("temperature", [0.7, 1.0])
    def test_draws_from_a_real_vocabulary_follow_the_softmax(self, temperature):
        z = random_logits(1, 131_072, seed=5)[0]
        table = table_of([SlotRun(0, 0, 3000, 21, temperature, False)])
        tokens = FusedPicker(Vocabulary(131_072, eos=()), DEVICE)(z.expand(3000, -1), table).tokens
        p = (z.cpu().double() / float(np.float32(temperature))).softmax(0)
        assert chi_square(tokens.cpu(), p, 30) > 1e-3

    def test_one_graph_picks_and_settles_whatever_the_table_holds(self):
        """Captured with one table, replayed with others; the host reads one buffer."""
        vocabulary, shape = REAL[49_152], SettleShape(requests=2, block=4, stops=2, branches=2)
        picker = FusedPicker(vocabulary, DEVICE)
        logits = random_logits(16, 49_152)
        words = torch.zeros(SlotTable.words(16) + shape.words, dtype=torch.int32, device=DEVICE)
        out = torch.zeros(shape.output_words(16), dtype=torch.int32, device=DEVICE)

        def step() -> Picks:
            split = SlotTable.words(16)
            picks = picker(logits, SlotTable.over(words[:split], 16))
            settle_step(picks, SettleTable(shape, words[split:]), out)
            return picks

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for seed in (3, 4):
            logits.copy_(random_logits(16, 49_152, seed=seed))
            runs = [SlotRun(5, 0, 4, seed, 0.8, False), SlotRun(9, 0, 4, 1, 0.0, False)]
            host = np.zeros(len(words), dtype=np.int32)
            SlotTable.fill(host[: SlotTable.words(16)], 16, runs)
            words.copy_(torch.from_numpy(host))
            graph.replay()
            table = SlotTable.over(words[: SlotTable.words(16)], 16)
            expected = torch_picker(vocabulary)(logits, table)
            found = StepOutput.read(out.cpu().numpy(), shape, 16)
            assert found.tokens.tolist() == expected.tokens.tolist()
            np.testing.assert_allclose(found.reals[-1], expected.logprobs.cpu().numpy(), rtol=1e-4, atol=1e-4)
