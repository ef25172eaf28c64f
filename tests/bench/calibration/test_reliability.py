"""What held-out prompts say of tables, and what traces of a policy leave unsaid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.guidance.test_value import many
from tests.toy import toy_model

from recguide.bench.calibration.plot import plot_calibration
from recguide.bench.calibration.reliability import curve, reliability
from recguide.bench.calibration.traces import recorded, support
from recguide.core import ParameterError, SamplingParams
from recguide.guidance.conditions import Conditions
from recguide.guidance.fitting import TooFewRounds, fit
from recguide.guidance.records import Rounds
from recguide.guidance.trace_file import write_trace
from recguide.guidance.value import BLOCKS
from recguide.llm import LLM

NOWHERE = Conditions("toy", "toy", "", {}, {})


@pytest.fixture(scope="module")
def rounds():
    return Rounds.of(many(800))


def test_a_table_that_holds_is_found_to_hold(rounds):
    found = reliability(rounds, signal="entropy", bins=1)
    for block, curves in found.values.items():
        assert len(curves) == 5
        assert np.mean([one.error for one in curves]) < 0.05 * block
    assert np.mean([one.error for one in found.slots]) < 0.03
    assert sum(found.ranks.mass) == pytest.approx(1)


def test_a_table_that_does_not_hold_is_found_out(rounds):
    """Prompts of the last fold fail at once."""
    broken = replace(rounds, acceptance=np.where(rounds.prompt % 5 == 4, 1, rounds.acceptance))
    found = reliability(broken, signal="entropy", bins=1)
    assert found.values[32][4].error > 3
    assert found.values[32][4].error > 3 * found.values[32][0].error


def test_curves_are_means_over_neighbouring_predictions():
    found = curve(np.array([0.5, 0.1, 0.5, 0.1]), np.array([1.0, 0.0, 0.0, 0.2]), np.ones(4))
    assert found.predicted == pytest.approx((0.1, 0.5))
    assert found.observed == pytest.approx((0.1, 0.5))
    assert found.error == pytest.approx(0)


def test_ranks_add_up_over_margins(rounds):
    first = replace(rounds, rank=np.where(rounds.acceptance < rounds.verified, 1, 0))
    assert reliability(first, signal="entropy", bins=1).ranks.overall == pytest.approx((1, 0, 0))


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_drawn(rounds, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    file = tmp_path / f"value.{suffix}"
    plot_calibration(fit(rounds, NOWHERE, bins=4), reliability(rounds, signal="entropy", bins=4), file)
    assert file.stat().st_size > 10_000


# --- traces -------------------------------------------------------------------------------------------------


def trace(file, records, **header):
    conditions = {"model": header.pop("model", "toy"), "fingerprint": header.pop("fingerprint", "toy")}
    write_trace(file, {"policy": "fixed-16", "conditions": conditions, **header}, records)
    return file


def test_policies_are_counted_and_requests_of_two_runs_told_apart(tmp_path):
    records = many(10)
    one = trace(tmp_path / "a.jsonl.zst", records[:33])
    other = trace(tmp_path / "b.jsonl.zst", records, policy="price")
    found = recorded([one, other])
    assert found.policies == {"fixed-16": 33, "price": 40}
    assert len(found.records) == 73
    assert {record.prompt.split("/")[0] for record in found.records} == {"0", "1"}


def test_traces_of_two_models_make_no_table(tmp_path):
    one = trace(tmp_path / "a.jsonl.zst", many(2))
    other = trace(tmp_path / "b.jsonl.zst", many(2), fingerprint="other", model="other")
    with pytest.raises(ParameterError, match="different models"):
        recorded([one, other])


@pytest.mark.parametrize(
    ("records", "header", "why"), [([], {}, "no rounds"), (1, {"fingerprint": ""}, "which")]
)
def test_a_trace_that_says_nothing_is_refused(tmp_path, records, header, why):
    file = trace(tmp_path / "a.jsonl.zst", many(records) if records else [], **header)
    with pytest.raises(ParameterError, match=why):
        recorded([file])


def test_what_an_engine_recorded_can_be_calibrated_on(tmp_path):
    """Under fixed-8: nothing is said of other blocks, and that is said. Warm-ups are not in it."""
    file = tmp_path / "served.jsonl.zst"
    llm = LLM(toy_model(), policy="fixed-8", trace=file)
    params = SamplingParams(max_tokens=30, temperature=1.5, seed=1, ignore_eos=True)
    with llm.engine.untraced():
        llm.generate([[1, 2, 3]], params)
    llm.generate([[4, 5, 6], [7, 8]], params)
    llm.close()
    found = recorded([file])
    assert found.fingerprint == toy_model().fingerprint
    assert list(found.policies) == ["fixed-8"]
    assert len({record.prompt for record in found.records}) == 2
    rounds = Rounds.of(found.records)
    assert {block for block, count in support(rounds).rounds.items() if count} <= {4, 8}
    with pytest.raises(TooFewRounds, match="no round has a block"):
        fit(rounds, NOWHERE, bins=1)


def test_support_says_which_blocks_a_policy_seldom_chose():
    """Everything was recorded after blocks of 16 and, as often, of 8; only after 16 was 32 tried."""
    after_16, after_8 = many(60, previous=16), many(60, seed=1, previous=8)
    found = support(Rounds.of([*after_16, *(one for one in after_8 if one.block != 32)]))
    assert found.rounds == {4: 120, 8: 120, 16: 120, 32: 60}
    assert found.share[16] == pytest.approx(1)
    assert 0.4 < found.share[32] < 0.7
    assert set(found.share) == set(BLOCKS)
