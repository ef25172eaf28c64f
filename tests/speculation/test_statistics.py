import math
from dataclasses import replace

import pytest
import torch

from recguide.core import SamplingParams, Vocabulary
from recguide.speculation.noise import gumbel
from recguide.speculation.picks import PickRow, logprobs, pick

SIZE = 30
VOCABULARY = Vocabulary(SIZE, eos=(2, 5), mask=7)


def draft(temperature, slots, draft=True, **rest):
    params = SamplingParams(temperature=temperature, seed=3, **rest)
    return PickRow(params, (1,), (), (), 1, slots, draft)


def test_slots_whose_statistics_nobody_reads_get_their_tokens_alone():
    logits = random_logits(8)
    asked = [
        draft(t, 1, draft=drafts, **edits)
        for t in (0.0, 0.7)
        for drafts in (True, False)
        for edits in ({}, {"logit_bias": {3: 9.0}})
    ]
    told = pick(logits, asked, VOCABULARY)
    for unread in (range(8), range(0, 8, 2), range(1, 8, 2)):
        some = [replace(row, statistics=i not in unread) for i, row in enumerate(asked)]
        found = pick(logits, some, VOCABULARY)
        assert torch.equal(found.tokens, told.tokens)
        for name in ("p1", "p2", "candidates", "entropy", "logprobs"):
            expected = getattr(told, name).clone()
            expected[..., list(unread)] = 0
            assert torch.equal(getattr(found, name), expected), name


def random_logits(slots):
    return torch.randn(slots, SIZE, generator=torch.Generator().manual_seed(slots)) * 2


def without_mask(z):
    z = z.double().clone()
    z[:, 7] = -math.inf
    return z


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.3}])
def test_draft_statistics_are_those_of_the_noisy_softmax(temperature, filters):
    logits = random_logits(200)
    found = pick(logits, [draft(temperature, 200, **filters)], VOCABULARY)
    seeds = torch.full((200,), 3)
    noise = gumbel(seeds, torch.arange(1, 201), torch.arange(SIZE))
    p = (without_mask(logits) + temperature * noise).softmax(1)
    for i in range(200):
        token = int(found.tokens[i])
        others = {other: float(p[i, other]) for other in range(SIZE) if other != token}
        assert float(found.p1[i]) == pytest.approx(float(p[i, token]), rel=1e-4)
        assert float(found.p2[i]) == pytest.approx(max(others.values()), rel=1e-4)
        allowed = {other: value for other, value in others.items() if other not in (2, 5, 7)}
        best = sorted(allowed, key=allowed.__getitem__, reverse=True)
        assert found.candidates[:, i].tolist() == best[:2]
    assert not found.entropy.any()


def test_p2_may_be_end_of_sequence_but_no_candidate_is():
    z = torch.zeros(1, SIZE)
    z[0, [3, 2, 7, 5, 9, 8]] = torch.tensor([9.0, 8.0, 20.0, 7.0, 6.0, 5.0])
    found = pick(z, [draft(0.0, 1)], VOCABULARY)
    total = float(without_mask(z).logsumexp(1))
    assert found.tokens.item() == 3
    assert found.p2.item() == pytest.approx(math.exp(8 - total), rel=1e-5)
    assert found.candidates.tolist() == [[9], [8]]


def test_equal_candidates_come_in_the_order_of_their_tokens():
    z = torch.zeros(1, SIZE)
    z[0, [4, 8, 6]] = torch.tensor([9.0, 5.0, 5.0])
    assert pick(z, [draft(0.0, 1)], VOCABULARY).candidates.tolist() == [[6], [8]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("left", [1, 2, 3])
def test_candidates_of_a_nearly_empty_vocabulary_are_tokens(left, temperature):
    """Where too few are left, any token is tried in vain."""
    z = torch.full((20, SIZE), -math.inf)
    z[:, [9, 11, 13][:left]] = 1.0
    found = pick(z, [draft(temperature, 20)], VOCABULARY)
    for picked, *candidates in zip(found.tokens.tolist(), *found.candidates.tolist(), strict=True):
        others = {9, 11, 13}.intersection([9, 11, 13][:left]) - {picked}
        assert set(candidates[: left - 1]) == others
        assert all(0 <= candidate < SIZE for candidate in candidates)


def test_edits_count_and_filters_do_not():
    z = torch.zeros(1, SIZE)
    z[0, [3, 4]] = torch.tensor([9.0, 8.5])
    free = pick(z, [draft(0.0, 1)], VOCABULARY)
    banned = pick(z, [draft(0.0, 1, logit_bias={4: -100.0})], VOCABULARY)
    assert banned.p1.item() > free.p1.item() + 0.2
    narrow = pick(z, [draft(1.0, 1, top_k=1)], VOCABULARY)
    wide = pick(z, [draft(1.0, 1)], VOCABULARY)
    assert narrow.tokens.item() == wide.tokens.item() == 3
    assert narrow.p1.item() == wide.p1.item() < 0.99


def test_entropy_is_of_raw_logits_without_the_mask():
    logits = random_logits(6)
    logits[:, 7] = 30.0
    logits[:, 8] = -math.inf
    row = draft(0.7, 6, draft=False, logit_bias={3: 50.0}, top_k=1)
    found = pick(logits, [row], VOCABULARY)
    p = without_mask(logits).softmax(1)
    expected = torch.special.entr(p).sum(1).float()
    torch.testing.assert_close(found.entropy, expected, rtol=1e-5, atol=1e-6)
    assert found.entropy.dtype == torch.float32
    assert not found.p1.any()
    assert not found.p2.any()


def test_certainty_has_no_entropy():
    logits = torch.zeros(1, SIZE)
    logits[0, 3] = 500.0
    assert pick(logits, [draft(0.0, 1, draft=False)], VOCABULARY).entropy.item() == 0.0


def test_logprobs_are_raw():
    """The mask token counts and nothing is edited or tempered."""
    logits = random_logits(3)
    logits[1, 7] = 20.0
    expected = logits.log_softmax(1)
    found = logprobs(logits, torch.tensor([4, 4, 7]), 3)
    for i, token in enumerate((4, 4, 7)):
        assert found[i].logprob == pytest.approx(float(expected[i, token]), abs=1e-5)
        values, ids = expected[i].topk(3)
        assert list(found[i].top) == ids.tolist()
        assert list(found[i].top.values()) == pytest.approx(values.tolist(), abs=1e-5)


def test_no_top_logprobs_are_an_empty_mapping():
    assert [entry.top for entry in logprobs(random_logits(2), torch.tensor([1, 2]), 0)] == [{}, {}]


@pytest.mark.parametrize("is_draft", [True, False])
@pytest.mark.parametrize("mask", [7, None])
def test_picks_know_their_raw_log_probability(is_draft, mask):
    logits = random_logits(5)
    logits[2, 7] = 30.0
    row = draft(0.7, 5, draft=is_draft, logit_bias={3: 50.0})
    found = pick(logits, [row], Vocabulary(SIZE, eos=(2, 5), mask=mask))
    expected = logits.log_softmax(1).gather(1, found.tokens[:, None]).squeeze(1)
    torch.testing.assert_close(found.logprobs, expected, rtol=1e-5, atol=1e-5)
