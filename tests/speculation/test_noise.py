"""Noise against published and checked-in vectors, and as what it claims to be: Gumbel and stateless."""

import math

import pytest
import torch
from scipy.stats import chisquare, kstest
from tests.speculation import slow_picks

from recguide.speculation.noise import (
    LARGEST,
    LUCK,
    LUCK_WORD,
    SMALLEST,
    LuckyTokens,
    first_words,
    gumbel,
    gumbel_of,
    philox,
    vocabulary_words,
)

# Known answers of the Random123 distribution for philox4x32 with 10 rounds: counter, key, output.
KNOWN = [
    (
        (0x00000000,) * 4,
        (0x00000000,) * 2,
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

# Sampling seed, position, token → first word, G. Whoever changes one of these changes every sampled text.
VECTORS = [
    (0, 0, 0, 0x6627E8D5, 0.6748404365727088),
    (0, 0, 1, 0x6AD0C5EC, 0.6161976504332256),
    (1, 0, 0, 0xE3E80670, -0.7928268051157538),
    (1, 1, 0, 0xAC08141B, -0.10861795775730064),
    (42, 17, 100, 0xE4902E59, -0.8034769675638528),
    (42, 17, 131071, 0x162C219D, 2.4013750072420024),
    (4294967296, 5, 5, 0x78054CE1, 0.4577987198613531),
    (9223372036854775807, 4095, 49151, 0xB5114302, -0.20586618156777065),
    (123456789012345678, 262143, 16, 0xE405AA17, -0.794694001128551),
    (20240917, 1000, 2, 0x765E0784, 0.477086384175896),
]


def word(value):
    return torch.tensor([value])


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(counter, key, expected):
    out = philox(tuple(map(word, counter)), tuple(map(word, key)))
    assert tuple(int(x) for x in out) == expected


@pytest.mark.parametrize(("seed", "position", "token", "first", "value"), VECTORS)
def test_vectors(seed, position, token, first, value):
    assert int(first_words(word(seed), word(position), word(token))) == first
    assert gumbel(word(seed), word(position), word(token)).item() == pytest.approx(value, abs=1e-12)


def test_vectors_agree_with_python_integers():
    for seed, position, token, first, value in VECTORS:
        assert slow_picks.philox((position, token, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))[0] == first
        assert slow_picks.noise(seed, position, token) == pytest.approx(value, abs=1e-12)


def test_ends_of_the_range():
    words = torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1])
    values = gumbel_of(words)
    assert values.isfinite().all()
    assert (values.diff() < 0).all()
    assert values[0].item() == pytest.approx(LARGEST, abs=1e-12) == pytest.approx(33 * math.log(2), abs=1e-9)
    assert values[-1].item() == pytest.approx(SMALLEST, abs=1e-12)
    assert pytest.approx(-math.log(33 * math.log(2)), abs=1e-9) == SMALLEST
    assert gumbel_of(torch.tensor([LUCK_WORD])).item() == pytest.approx(LUCK, abs=1e-12)


def test_large_w_keeps_its_complement():
    """Where fp32 would round w to 1 and G to −∞, neighbours still differ."""
    words = torch.arange(2**32 - 64, 2**32)
    assert torch.unique(gumbel_of(words)).numel() == 64


@pytest.mark.parametrize(
    ("seed", "position"), [(0, 0), (2**63 - 1, 2**20), (123456789012345678, 999), (7, 2**32 - 1)]
)
def test_whole_vocabulary_at_once(seed, position):
    tokens = torch.arange(5000)
    room = torch.empty(5, 5000, dtype=torch.int64)
    expected = first_words(word(seed), word(position), tokens)
    assert torch.equal(vocabulary_words(seed, position, tokens, room), expected)


def test_shapes():
    seeds, positions = torch.tensor([1, 2]), torch.tensor([5, 5])
    shared = gumbel(seeds, positions, torch.arange(3))
    own = gumbel(seeds, positions, torch.tensor([[0, 1, 2], [0, 1, 2]]))
    assert shared.shape == (2, 3)
    assert shared.dtype == torch.float64
    assert torch.equal(shared, own)
    assert not torch.equal(shared[0], shared[1])


def test_it_is_uniform_underneath_and_gumbel_on_top():
    words = first_words(torch.tensor([[11]]), torch.arange(40)[:, None], torch.arange(5000)).flatten()
    bins = torch.bincount(words >> 26, minlength=64)
    assert chisquare(bins.numpy()).pvalue > 1e-4
    low = torch.bincount(words & 63, minlength=64)
    assert chisquare(low.numpy()).pvalue > 1e-4
    assert kstest(gumbel_of(words[:20000]).numpy(), "gumbel_r").pvalue > 1e-4


def test_neighbouring_counters_are_unrelated():
    seeds = torch.tensor([3, 4])
    g = gumbel(seeds, torch.tensor([100, 100]), torch.arange(20000))
    later = gumbel(seeds, torch.tensor([101, 101]), torch.arange(20000))
    for a, b in ((g[0], g[1]), (g[0], later[0]), (g[0, 1:], g[0, :-1])):
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.03


def test_lucky_tokens_are_exactly_those_beyond_luck():
    luck = LuckyTokens(3000)
    ids, noise = luck.at(5, 17)
    whole = gumbel(word(5), word(17), torch.arange(3000))[0]
    assert ids.tolist() == (whole > LUCK).nonzero().squeeze(1).tolist()
    assert noise.tolist() == whole[ids].tolist()


def test_lucky_tokens_are_remembered_up_to_a_limit():
    luck = LuckyTokens(200, positions=2)
    first = luck.at(1, 1)
    assert luck.at(1, 1) is first
    luck.at(1, 2)
    luck.at(2, 1)
    assert (1, 1) not in luck
    assert (1, 2) in luck
    assert (2, 1) in luck
    assert luck.at(1, 1)[1].tolist() == first[1].tolist()
