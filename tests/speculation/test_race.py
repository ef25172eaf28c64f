"""The race against noise for the whole vocabulary, and against the distribution that it should draw from."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from recguide.core import RecGuideError, SamplingParams
from recguide.speculation.field import Field, HostField
from recguide.speculation.noise import LuckyTokens, gumbel
from recguide.speculation.race import LEADERS, Lane, race, race_on_host


def sampling(temperature, seed=9, **rest):
    return SamplingParams(temperature=temperature, seed=seed, **rest)


def run(z, params, positions, luck):
    """The race of all slots of z, without a mask token; the one for accelerators if `luck` is None."""
    lanes = [Lane(i, *lane) for i, lane in enumerate(zip(params, positions, strict=True))]
    return race(Field(z, None), lanes) if luck is None else race_on_host(HostField(z, None), lanes, luck)


def whole(z, params, positions):
    """Winners with noise for every token."""
    tokens = torch.arange(z.shape[1])
    seeds = torch.tensor([slot.seed for slot in params])
    temperatures = torch.tensor([slot.temperature for slot in params], dtype=torch.float64)
    x = z.double() / temperatures[:, None]
    return (x + gumbel(seeds, torch.tensor(positions), tokens)).argmax(1)


def logits(slots, width, spread, seed, skew=0.0):
    """Normal logits, pulled apart by `skew` at the top as a language model's are."""
    z = torch.randn(slots, width, generator=torch.Generator().manual_seed(seed)) * spread
    return z + skew * (z / spread).clamp(min=2.5).sub(2.5) if spread else z


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    width=st.sampled_from([3, 64, 65, 700, 4096]),
    spread=st.sampled_from([0.0, 1.0, 3.0, 8.0]),
    temperature=st.sampled_from([0.05, 0.3, 0.7, 1.0, 2.0, 100.0]),
    position=st.integers(0, 2**20),
)
def test_skipping_hopeless_tokens_changes_nothing(seed, width, spread, temperature, position):
    z = logits(3, width, spread, seed % 1000)
    params = [sampling(temperature, seed)] * 3
    positions = [position, position + 1, position + 2]
    expected = whole(z, params, positions)
    luck = LuckyTokens(width)
    assert torch.equal(run(z, params, positions, luck).winners, expected)
    assert torch.equal(run(z, params, positions, None).winners, expected)
    for at in positions:
        luck.at(seed, at)
    assert torch.equal(run(z, params, positions, luck).winners, expected)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
@pytest.mark.parametrize(("spread", "skew"), [(0.0, 0.0), (2.0, 0.0), (3.0, 4.0)])
def test_skipping_changes_nothing_in_a_wide_vocabulary(temperature, spread, skew):
    z = logits(4, 49_152, spread, 3, skew)
    params, positions = [sampling(temperature)] * 4, [50, 51, 52, 53]
    expected = whole(z, params, positions)
    luck = LuckyTokens(49_152)
    assert torch.equal(run(z, params, positions, luck).winners, expected)
    assert torch.equal(run(z, params, positions, None).winners, expected)
    luck.at(9, 51)
    assert torch.equal(run(z, params, positions, luck).winners, expected)


def test_scores_of_leaders_and_winner_are_reported():
    z = logits(2, 4096, 3.0, 1)
    for luck in (None, LuckyTokens(4096)):
        found = run(z, [sampling(0.5)] * 2, [4, 5], luck)
        for i, position in enumerate((4, 5)):
            noise = gumbel(torch.tensor([9]), torch.tensor([position]), torch.arange(4096))[0]
            scores = z[i].double() / 0.5 + noise
            assert torch.equal(found.scores[i], scores[found.tokens[i]])
            assert found.best[i] == scores.max() == scores[found.winners[i]]
            assert found.tokens[i].tolist() == z[i].topk(LEADERS).indices.tolist()


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    width=st.sampled_from([3, 64, 65, 700, 4096]),
    spread=st.sampled_from([0.0, 1.0, 3.0, 8.0]),
    lanes=st.lists(
        st.builds(
            sampling,
            temperature=st.sampled_from([0.05, 0.7, 1.0, 2.0, 100.0]),
            seed=st.integers(0, 2**63 - 1),
            top_k=st.sampled_from([0, 0, 1, 5, 100]),
            top_p=st.sampled_from([1.0, 1.0, 0.5, 0.99]),
            min_p=st.sampled_from([0.0, 0.0, 0.1]),
        ),
        min_size=1,
        max_size=20,
    ),
    mask=st.sampled_from([None, 1]),
)
def test_a_host_draws_what_an_accelerator_does(seed, width, spread, lanes, mask):
    """Whatever the lanes are filtered by, and whether lucky tokens are known or not."""
    z = logits(len(lanes), width, spread, seed % 1000)
    mine = [Lane(i, params, seed % 2**20 + i) for i, params in enumerate(lanes)]
    expected = race(Field(z, mask), mine)
    luck = LuckyTokens(width)
    for known in ([], mine[::2]):
        for lane in known:
            luck.at(lane.seed, lane.position)
        found = race_on_host(HostField(z, mask), mine, luck)
        assert torch.equal(found.winners, expected.winners)
        assert torch.equal(found.best, expected.best)
        for i, lane in enumerate(mine):
            alone = race_on_host(HostField(z[i : i + 1], mask), [Lane(0, lane.params, lane.position)], luck)
            assert torch.equal(alone.winners, expected.winners[i : i + 1])


def test_banned_tokens_never_win():
    z = torch.full((200, 100), float("-inf"))
    z[:, 70:73] = 0.0
    found = run(z, [sampling(100.0)] * 200, list(range(200)), LuckyTokens(100))
    assert set(found.winners.tolist()) == {70, 71, 72}


def test_the_mask_token_never_wins():
    z = torch.randn(50, 700, generator=torch.Generator().manual_seed(1))
    z[:, 66] = 5.0
    params = [sampling(2.0)] * 50
    lanes = [Lane(i, params[i], i) for i in range(50)]
    found = race(Field(z, 66), lanes).winners
    assert torch.equal(race_on_host(HostField(z, 66), lanes, LuckyTokens(700)).winners, found)
    z[:, 66] = float("-inf")
    assert torch.equal(found, whole(z, params, list(range(50))))


def test_a_missing_seed_is_an_error():
    with pytest.raises(RecGuideError, match="seed"):
        run(torch.zeros(1, 4), [SamplingParams(temperature=1.0)], [0], LuckyTokens(4))


def draws(z, params, count):
    """`count` draws from one row of logits, at as many positions."""
    found = []
    luck = LuckyTokens(len(z), positions=1)
    for start in range(0, count, 50):
        positions = list(range(start, min(start + 50, count)))
        found.append(run(z.expand(len(positions), -1), [params] * len(positions), positions, luck).winners)
    return torch.cat(found)


def chi_square(tokens, probabilities, bins):
    """p-value of drawn tokens over `bins` sets of tokens about equally likely."""
    order = probabilities.argsort(descending=True)
    edges = probabilities[order].cumsum(0)
    which = torch.empty_like(order)
    which[order] = ((edges - probabilities[order] / 2) * bins).long().clamp(max=bins - 1)
    expected = torch.zeros(bins, dtype=torch.float64).scatter_add(0, which, probabilities)
    observed = torch.bincount(which[tokens], minlength=bins)
    full = expected * len(tokens) >= 5
    observed = np.append(observed[full].numpy(), observed[~full].sum())
    expected = np.append(expected[full].numpy(), expected[~full].sum()) * len(tokens)
    keep = expected > 0
    return chisquare(observed[keep], expected[keep] * observed[keep].sum() / expected[keep].sum()).pvalue


WIDTH = 131_072


@pytest.mark.parametrize(("temperature", "count"), [(0.7, 1500), (1.0, 300)])
def test_peaked_draws_follow_the_softmax(temperature, count):
    z = logits(1, WIDTH, 3.0, 5, skew=4.0)[0]
    tokens = draws(z, sampling(temperature, 21), count)
    assert chi_square(tokens, (z.double() / temperature).softmax(0), 30) > 1e-3


def test_flat_draws_follow_the_softmax():
    z = logits(1, WIDTH, 0.5, 6)[0]
    tokens = draws(z, sampling(1.0, 22), 200)
    assert chi_square(tokens, z.double().softmax(0), 20) > 1e-3


def test_the_wrong_temperature_is_noticed():
    """The statistic has teeth: draws at 0.6 are not mistaken for draws at 0.7."""
    z = logits(1, WIDTH, 3.0, 5, skew=4.0)[0]
    tokens = draws(z, sampling(0.6, 21), 1500)
    assert chi_square(tokens, (z.double() / 0.7).softmax(0), 30) < 1e-3


def test_few_tokens_are_drawn_by_their_probabilities():
    z = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0])
    counts = torch.bincount(draws(z, sampling(1.0, 23), 20_000), minlength=5)
    assert chisquare(counts.numpy(), z.double().softmax(0).numpy() * 20_000).pvalue > 1e-3
