"""The exact law of rounds, against closed forms and against a plain simulation of the process's words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from recguide.bench.acceptance.law import round_law
from recguide.bench.acceptance.process import AcceptanceReplay

PROCESS = AcceptanceReplay(
    name="test",
    dwell_easy=30.0,
    dwell_hard=12.0,
    hazard_easy=0.02,
    hazard_hard=0.2,
    hazard_slope=0.1,
    alarm=0.15,
    recall=0.6,
    second_hit=0.5,
    continuation_hazard=1.5,
    blind_hazard=2.0,
    sure_right=10.0,
    sure_wrong=0.3,
)


def simulated(process, block, rounds=40_000):
    """Rounds of one endless text: (acceptance, what covered them, whether the continuation was right)."""
    rng = np.random.default_rng(5)
    leave = 1 / process.dwell_easy, 1 / process.dwell_hard
    hard = np.empty(rounds * block + 1, dtype=int)
    hard[0] = 0
    turns = rng.random(len(hard))
    for t in range(1, len(hard)):
        hard[t] = 1 - hard[t - 1] if turns[t] < leave[hard[t - 1]] else hard[t - 1]
    base = process.hazard_easy, process.hazard_hard
    start, accepted, outcomes = 0, [], []
    for _ in range(rounds):
        flags, acceptance = [], block
        for slot in range(1, block):
            wrong = rng.random() < base[hard[start + slot]] * (1 + process.hazard_slope * slot)
            if rng.random() < (process.recall if wrong else process.alarm):
                flags.append(slot)
            if wrong:
                acceptance = slot
                break
        if acceptance < block:
            outcomes.append(
                ["first", "second"][flags.index(acceptance)] if acceptance in flags[:2] else "none"
            )
        else:
            hit = rng.random() >= process.continuation_hazard * base[hard[start + block]]
            outcomes.append(("right" if hit else "missed") if len(flags) <= 2 else "none")
        accepted.append(acceptance)
        start += acceptance
    return np.array(accepted), np.array(outcomes)


@pytest.mark.parametrize("block", [8, 16])
def test_it_is_what_a_simulation_finds(block):
    law = round_law(PROCESS, block)
    accepted, outcomes = simulated(PROCESS, block)
    shares = np.bincount(accepted, minlength=block + 1) / len(accepted)
    assert law.acceptance == pytest.approx(shares, abs=0.01)
    assert law.mean_acceptance == pytest.approx(accepted.mean(), rel=0.015)
    assert law.full == pytest.approx(shares[-1], abs=0.01)
    assert law.first == pytest.approx(np.mean(outcomes == "first"), abs=0.01)
    assert law.second == pytest.approx(np.mean(outcomes == "second"), abs=0.01)
    assert law.continued == pytest.approx(np.isin(outcomes, ["right", "missed"]).mean(), abs=0.01)
    assert law.continued_hit == pytest.approx(np.mean(outcomes == "right"), abs=0.01)


def test_transitions_are_those_of_a_simulation():
    accepted, _ = simulated(PROCESS, 32, rounds=25_000)
    interval = np.digitize(accepted, [9, 17])
    counts = np.zeros((3, 3))
    np.add.at(counts, (interval[:-1], interval[1:]), 1)
    table = round_law(PROCESS, 32).transitions()
    assert table == pytest.approx(counts / counts.sum(1, keepdims=True), abs=0.02)
    assert table.sum(1) == pytest.approx(np.ones(3))


def test_without_hazards_every_block_passes():
    law = round_law(replace(PROCESS, hazard_easy=0.0, hazard_hard=0.0, alarm=0.0), 16)
    assert law.full == pytest.approx(1)
    assert law.mean_acceptance == pytest.approx(16)
    assert law.continued == pytest.approx(1)
    assert law.continued_hit == pytest.approx(1)
    assert law.correction_coverage == 0


def test_one_constant_hazard_is_geometric():
    process = replace(PROCESS, hazard_easy=0.1, hazard_hard=0.1, hazard_slope=0.0, recall=1.0, alarm=0.0)
    law = round_law(process, 8)
    assert law.mean_acceptance == pytest.approx(sum(0.9**slot for slot in range(8)))
    assert law.first == pytest.approx(1 - 0.9**7)
    assert law.second == 0


@pytest.mark.parametrize(
    "changes",
    [{"recall": 1.2}, {"dwell_easy": 1.0}, {"dwell_easy": 400.0, "dwell_hard": 400.0}, {"alarm": -0.1}],
)
def test_a_process_that_cannot_be_is_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        replace(PROCESS, **changes)
