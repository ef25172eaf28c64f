"""The simulator: nothing is lost or made up, and time is the cost table's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.guidance.worlds import clock, table, view

from recguide.core import ParameterError
from recguide.guidance.batching import BATCHINGS, batching_named, bucketed, padded, ragged
from recguide.guidance.explore import explore
from recguide.guidance.fixed import Fixed
from recguide.guidance.host import Host
from recguide.guidance.ideal import ideal_cost
from recguide.guidance.load import Load
from recguide.guidance.oracle import Oracle
from recguide.guidance.paper import Paper
from recguide.guidance.price import Price
from recguide.guidance.records import RoundRecord, Rounds
from recguide.guidance.simulation import simulate
from recguide.guidance.trace_file import MalformedTrace, read_trace, write_trace
from recguide.guidance.trace_traffic import TraceTraffic
from recguide.guidance.traffic import WIDEST, Drafted
from recguide.guidance.view import Branches, Outcome, Plan, View


class Coins:
    """Every drafted slot is wrong with one probability; a candidate is right three times in five."""

    def __init__(self, hazard=0.1, *, length=64, seed=0):
        self.length, self._hazard, self._seed = length, hazard, seed
        self._draws = {}

    def seat(self, seat, text):
        random = np.random.default_rng((self._seed, text))
        self._draws[seat] = random.random((2, self.length + WIDEST, WIDEST))
        return self.length

    def draft(self, seats, positions, block):
        draws = np.stack(
            [self._draws[s][:, p, :block] for s, p in zip(seats.tolist(), positions.tolist(), strict=True)],
            axis=1,
        )
        right = draws[0] >= self._hazard
        margins = np.where(right | (draws[1] < 0.2), 0.9, 0.1)
        return Drafted(right, margins, np.where(~right & (draws[1] > 0.4), 1, 0))

    def entropy(self, seats, _, slots):
        return np.full((len(seats), slots), 0.3)


@dataclass
class Watched:
    """Asks another policy and keeps what was said."""

    policy: object
    name: str = "watched"
    seen: list[tuple[View, Plan, Outcome]] = field(default_factory=list)

    def decide(self, view):
        return self.policy.decide(view)

    def ahead(self, view):
        return self.policy.ahead(view)

    def prepare(self, view):
        self.policy.prepare(view)

    def observe(self, view, plan, outcome):
        self.seen.append((view, plan, outcome))
        self.policy.observe(view, plan, outcome)

    def timed(self, view, plan, ms, waited_ms, *, late=False):
        self.policy.timed(view, plan, ms, waited_ms, late=late)


def policies(at):
    return {
        "ar": Fixed(1),
        "fixed": Fixed(8),
        "paper": Paper(table(), at),
        "price": Price(table(), at),
        "oracle": Oracle(at),
    }


NAMES = tuple(policies(clock()))
OPEN = {"arrivals_per_s": 400.0, "warm_up": 0.0}


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("name", NAMES)
def test_every_text_is_emitted_whole_and_no_more(name, batching):
    watched = Watched(policies(clock())[name])
    if name == "oracle":
        watched = policies(clock())[name]
    tally = simulate(Coins(), watched, clock(), Load(seats=4, texts=12, **OPEN), batching_named(batching))
    assert tally.tokens == 12 * 64
    assert len(tally.rates) == 12


@pytest.mark.parametrize("name", NAMES)
def test_it_is_deterministic(name):
    def run():
        tally = simulate(Coins(), policies(clock())[name], clock(), Load(seats=6, texts=18), ragged)
        return tally.tokens, tally.ms, tally.blocks, tally.reused, tally.prices

    assert run() == run()


def test_plain_decoding_takes_what_the_table_says():
    at = clock(fixed=5, each=0.02, prefix_ms=1e-4, pair_ms=1e-6)
    tally = simulate(Coins(), Fixed(1), at, Load(seats=8, texts=24, prefix=0, warm_up=0.0), ragged)
    prefix = 8 * 31.5
    ms = 5 + 0.02 * 8 + 1e-4 * prefix + 1e-6 * prefix
    assert tally.throughput == pytest.approx(8e3 / ms, rel=1e-3)


def test_a_fixed_block_emits_its_mean_acceptance_every_other_forward():
    hazard, block = 0.1, 8
    tally = simulate(
        Coins(hazard, length=400), Fixed(block), clock(), Load(seats=8, texts=24, prefix=0), ragged
    )
    mean = (1 - (1 - hazard) ** block) / hazard
    assert tally.tokens / tally.forwards / 8 == pytest.approx(mean / 2, rel=0.04)
    assert tally.query_tokens / tally.forwards / 8 == pytest.approx(block, rel=0.02)


def test_the_overlap_saves_the_drafts_that_it_reuses():
    watched = Watched(Paper(table(), clock()))
    tally = simulate(Coins(length=256), watched, clock(), Load(seats=1, texts=6, warm_up=0.0), ragged)
    rounds = sum(tally.verified.values())
    assert tally.forwards == rounds + tally.blocks.total()
    assert tally.reused.total() + tally.blocks.total() == rounds
    assert tally.reused["continuation"] <= tally.branches["continuation"]
    assert tally.reused["correction 1"] > 0


@pytest.mark.parametrize("name", ["paper", "price"])
def test_plans_never_reach_past_a_text_and_views_tell_the_truth(name):
    watched = Watched(policies(clock(free=256))[name])
    simulate(Coins(), watched, clock(free=256), Load(seats=3, texts=9, **OPEN), ragged)
    for seen, plan, outcome in watched.seen:
        assert ((plan.block > 0) ^ (plan.verified > 0)).all()
        assert (np.maximum(plan.block, plan.verified) <= seen.remaining).all()
        assert (plan.verified <= np.maximum(1, seen.draft)).all()
        assert (outcome.acceptance <= plan.verified).all()
        assert ((outcome.acceptance > 0) == (plan.verified > 0)).all()
        slot, of = plan.branches.slot, plan.branches.request
        assert (slot + plan.branches.block <= seen.remaining[of]).all()


def test_no_bucket_starves():
    waits = []

    def watching(view, plan, waited):
        waits.append(int(waited.max()))
        return bucketed(view, plan, waited)

    policy = Paper(table(hazards=[0.3] * 9 + [0.01]), clock(), overlap=False)
    simulate(Coins(length=256), policy, clock(), Load(seats=16, texts=48), watching)
    assert max(waits) <= 6


@given(st.lists(st.sampled_from([0, 4, 8, 16]), min_size=1, max_size=12))
def test_buckets_hold_one_block_and_padding_costs_the_largest(drafts):
    seen = view(len(drafts), draft=drafts)
    draft = np.array(drafts)
    plan = Plan(np.where(draft == 0, 8, 0), draft, Branches.none())
    run, tokens = bucketed(seen, plan, np.zeros(len(drafts), np.int64))
    assert len(set(np.maximum(plan.block, draft)[run].tolist())) == 1
    assert tokens == plan.query_tokens[run].sum()
    everyone, wasteful = padded(seen, plan, np.zeros(len(drafts), np.int64))
    assert len(everyone) == len(drafts)
    assert wasteful == len(drafts) * max(8 if 0 in drafts else 0, *drafts)


def test_an_open_loop_serves_what_arrives():
    load = Load(seats=8, texts=60, arrivals_per_s=2.0, prefix=0)
    tally = simulate(Coins(), Fixed(8), clock(), load, ragged)
    assert tally.throughput == pytest.approx(2.0 * 64, rel=0.3)
    crowded = simulate(Coins(), Fixed(8), clock(), replace(load, arrivals_per_s=1e4), ragged)
    assert crowded.throughput > 3 * tally.throughput
    assert crowded.request_rate < tally.request_rate


@pytest.mark.parametrize("settings", [{"seats": 0}, {"texts": 1}, {"warm_up": 1.0}, {"arrivals_per_s": 0.0}])
def test_a_load_that_cannot_be_is_refused(settings):
    with pytest.raises(ParameterError):
        Load(**{"seats": 2, "texts": 4, **settings})


# --- traces -------------------------------------------------------------------------------------------------


def test_traffic_of_a_trace_is_the_traffic_it_was_made_of():
    traffic = Coins(length=96)
    records = explore(traffic, 12, name="coins")
    assert {record.block for record in records} == {1, 4, 8, 16, 32}
    load = Load(seats=4, texts=12, prefix=0)
    again = simulate(TraceTraffic(records), Fixed(8), clock(), load, ragged)
    first = simulate(traffic, Fixed(8), clock(), load, ragged)
    assert again.throughput == pytest.approx(first.throughput, rel=0.1)


def test_a_trace_survives_its_file(tmp_path):
    records = explore(Coins(length=48), 2, name="coins")
    file = tmp_path / "rounds.jsonl.zst"
    write_trace(file, {"policy": "explore"}, records)
    header, again = read_trace(file)
    assert header["policy"] == "explore"
    assert len(again) == len(records)
    known = [one for one in zip(records, again, strict=True) if not np.isnan(one[0].signals).any()]
    assert known
    assert all(one == other for one, other in known)
    assert isinstance(again[0], RoundRecord)
    assert len(Rounds.of(again)) == len(records)


@pytest.mark.parametrize("content", [b"", b"nothing", b"\x28\xb5\x2f\xfd"])
def test_a_file_that_is_no_trace_is_named(tmp_path, content):
    file = tmp_path / "rounds.jsonl.zst"
    file.write_bytes(content)
    with pytest.raises(MalformedTrace, match=r"rounds\.jsonl\.zst"):
        read_trace(file)


# --- what it is all for -------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [2, 16, 64])
def test_the_price_beats_every_fixed_block_and_the_paper(load):
    """Without calibration: a table of one bin that is wrong by half for this traffic."""
    traffic, at = Coins(0.15, length=128), clock(free=128)
    much = Load(seats=load, texts=4 * load if load > 8 else 32)

    def made(policy):
        return simulate(traffic, policy, at, much, ragged).throughput

    best = max(made(Fixed(block)) for block in (1, 4, 8, 16, 32))
    best = max(best, made(Paper(table(0.1), at, overlap=False)))
    assert made(Price(table(0.1), at)) >= 0.98 * best


@pytest.mark.parametrize("load", [1, 64])
def test_worthless_drafts_cost_hardly_anything(load):
    traffic = Coins(1.0, length=256)
    much = Load(seats=load, texts=8 if load == 1 else 3 * load, warm_up=0.3)
    at = clock(free=128)
    plain = simulate(traffic, Fixed(1), at, much, ragged).throughput
    assert simulate(traffic, Price(table(0.1), at), at, much, ragged).throughput >= 0.97 * plain


BUSY = Host(other=(0.1, 0.0375))
"""2.5 ms for a step of 64 requests that is not plain steps alone."""


def with_busy_host(policy, at, hazard, seats=64):
    """Tokens a second where query tokens are next to free; the first third is not counted."""
    load = Load(seats=seats, texts=3 * seats, warm_up=0.34)
    return simulate(Coins(hazard, length=384), policy, at, load, ragged, BUSY).throughput


@pytest.mark.parametrize("seats", [1, 64])
def test_worthless_drafts_cost_hardly_anything_however_long_the_host_takes(seats):
    """Forwards of 1 ms at any N: branches look free, but a step with any waits for the host."""
    at = clock(fixed=1.0, each=0.002, free=64)
    plain = with_busy_host(Fixed(1), at, 1.0, seats)
    assert with_busy_host(Price(table(0.1), at), at, 1.0, seats) >= 0.97 * plain


def test_drafts_that_are_worth_the_hosts_time_are_made():
    at = clock(fixed=1.0, each=0.002, free=64)
    plain, ours = with_busy_host(Fixed(1), at, 0.03), with_busy_host(Price(table(0.1), at), at, 0.03)
    best = max(with_busy_host(Fixed(block), at, 0.03) for block in (8, 16, 32))
    assert ours >= 0.98 * best
    assert best > 1.2 * plain


def test_plain_steps_are_ahead_of_the_host_whoever_comes_or_goes():
    host, at = Host(plain=(1.0, 0.0), other=(5.0, 0.0)), clock(fixed=1.0, each=0.0)
    load = Load(seats=1, texts=2, arrivals_per_s=1e6, warm_up=0.0, prefix=0)
    tally = simulate(Coins(length=50), Fixed(1), at, load, ragged, host)
    assert tally.forwards == 100
    assert tally.ms == pytest.approx(6.0 + 99 * 2.0, abs=0.1)


def test_newcomers_take_their_time_of_the_step_that_they_begin_in():
    at, load = clock(fixed=1.0, each=0.0), Load(seats=4, texts=12, warm_up=0.0, prefix=0)

    def took(host):
        tally = simulate(Coins(length=50), Fixed(1), at, load, ragged, host)
        return tally.ms, tally.forwards

    (alone, steps), (beside, same) = took(Host()), took(Host(newcomer=7.0))
    assert same == steps
    assert beside - alone == pytest.approx(12 * 7.0)


def test_the_ideal_engine_is_bound_by_its_weights():
    assert ideal_cost("ideal-8b").ms(1) == pytest.approx(4.26 + 0.48)
    with pytest.raises(ParameterError, match="ideal-8b"):
        ideal_cost("ideal-3b")
