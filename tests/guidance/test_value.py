"""Value tables: what fits recover, what censoring does not bias, what holds where."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from tests.guidance.worlds import NOWHERE, table

from recguide.core import ParameterError
from recguide.guidance.cost import MalformedTable
from recguide.guidance.fitting import TooFewRounds, fit, out_of_fold
from recguide.guidance.records import RoundRecord, Rounds, balanced
from recguide.guidance.value import BLOCKS, STRATA, ValueTable, found, named, place, prior, strata

HAZARD = 0.12


def record(random, *, block, hazard=HAZARD, signal=0.0, verified=None, previous=16, full=False, **more):
    verified = block if verified is None else verified
    failed = random.random(verified - 1) < hazard
    acceptance = int(failed.argmax()) + 1 if failed.any() else verified
    margins = np.full(block - 1, 0.9)
    if acceptance < verified:
        margins[acceptance - 1] = 0.1 if random.random() < 0.8 else 0.9
    fields = {"set": "a", "prompt": "0", "position": 0, "rank": 0, "head": -1, "entropies": (0.1,), **more}
    return RoundRecord(
        block=block,
        verified=verified,
        acceptance=acceptance,
        margins=tuple(margins.tolist()),
        signals=(signal, signal, signal),
        previous=previous,
        full=full,
        **fields,
    )


def many(count=4000, seed=0, **fields):
    random = np.random.default_rng(seed)
    return [
        record(random, block=block, prompt=str(number % 40), position=number, **fields)
        for number in range(count)
        for block in BLOCKS
    ]


def true_curve(block):
    return (1 - HAZARD) ** np.arange(block)


def test_a_fit_recovers_the_survival_of_every_block():
    fitted = fit(Rounds.of(many()), NOWHERE, bins=4)
    for block in BLOCKS:
        curve = fitted.curves(block)[fitted.cell(np.zeros((1, 3)), np.array([16]), np.array([False]))[0]]
        assert curve == pytest.approx(true_curve(block), abs=0.03)


def test_partly_verified_blocks_do_not_bias_it():
    """Verified up to a random slot: A is at most that, survival is not."""
    random = np.random.default_rng(1)
    records = [
        record(random, block=block, verified=int(random.integers(2, block + 1)), prompt=str(number % 40))
        for number in range(4000)
        for block in BLOCKS
    ]
    rounds = Rounds.of(records)
    fitted = fit(rounds, NOWHERE, bins=1)
    cell = fitted.cell(np.zeros((1, 3)), np.array([16]), np.array([False]))[0]
    assert fitted.curves(32)[cell][:12] == pytest.approx(true_curve(32)[:12], abs=0.04)
    naive = np.mean([one.acceptance for one in records if one.block == 32])
    assert fitted.curves(32)[cell].sum() > naive + 1


def test_survival_rises_with_s_and_falls_along_the_block():
    random = np.random.default_rng(2)
    records = []
    for number in range(1500):
        s = -random.random()
        records += [
            record(random, block=block, hazard=-0.3 * s, signal=s, prompt=str(number % 30))
            for block in BLOCKS
        ]
    fitted = fit(Rounds.of(records), NOWHERE, bins=8)
    for block in BLOCKS:
        curves = fitted.survival[block][:, :-1]
        assert (np.diff(curves, axis=1) >= -1e-9).all()
        assert (np.diff(curves, axis=2) <= 1e-9).all()
    hard, easy = fitted.cell(np.array([[-0.9] * 3, [-0.1] * 3]), np.array([16, 16]), np.array([False, False]))
    assert fitted.values()[easy][-1] > fitted.values()[hard][-1] + 5


def test_a_stratum_with_few_rounds_falls_back_to_all_of_them():
    random = np.random.default_rng(3)
    few = [
        record(random, block=block, previous=8, full=True, hazard=0.9) for block in BLOCKS for _ in range(20)
    ]
    fitted = fit(Rounds.of(many(1000) + few), NOWHERE, bins=1)
    rare, unseen = (fitted.survival[32][number] for number in (5, 9))
    assert (rare == unseen).all()


def test_margins_raise_the_odds_that_they_raised():
    fitted = fit(Rounds.of(many()), NOWHERE, bins=1)
    ratio = np.exp(fitted.evidence.log_ratio)
    low, high = fitted.evidence.bins(np.array([0.12, 0.92]))
    assert ratio[low] > 50
    assert ratio[high] == pytest.approx(0.2, abs=0.03)
    assert (np.diff(ratio) <= 1e-9).all()


def test_sets_weigh_the_same_then_prompts_then_rounds():
    weight = balanced(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 2]))
    assert weight.tolist() == [0.125, 0.125, 0.25, 0.5]


def test_a_prompt_is_never_judged_by_itself():
    """The odd prompt's own failures do not show in its out-of-fold value."""
    random = np.random.default_rng(4)
    records = [
        record(random, block=block, hazard=0.0, prompt=str(n)) for n in range(10) for block in BLOCKS * 20
    ]
    odd = [record(random, block=block, hazard=1.0, prompt="10") for block in BLOCKS * 20]
    rounds = Rounds.of(records + odd)
    values = out_of_fold(rounds, (8, 32), signal="entropy", bins=1)
    assert values[rounds.prompt == 10] == pytest.approx(np.array([[8.0, 32.0]] * 80))


def test_a_block_that_was_never_tried_is_refused_by_name():
    records = [one for one in many(50) if one.block != 4]
    with pytest.raises(TooFewRounds, match="block of 4"):
        fit(Rounds.of(records), NOWHERE)


def test_strata_tell_what_was_verified_and_how_it_ended():
    previous, full = (
        np.array([0, 1, 4, 8, 16, 32, 7, 7]),
        np.array([False, False, True, False, True, True, 0, 1]),
    )
    assert strata(previous, full.astype(bool)).tolist() == [0, 1, 3, 4, 7, 9, 4, 5]
    assert strata(np.array([64]), np.array([True])).tolist() == [STRATA - 1]


def test_a_table_survives_its_file(tmp_path):
    file = tmp_path / "values.json"
    one = table()
    one.save(file)
    again = ValueTable.read(file)
    assert again.evidence == one.evidence
    assert again.values() == pytest.approx(one.values(), abs=2e-3)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"signal": "entropy"}'])
def test_a_file_that_is_none_is_named(tmp_path, content):
    file = tmp_path / "values.json"
    file.write_text(content)
    with pytest.raises(MalformedTable, match=r"values\.json"):
        ValueTable.read(file)


def test_a_rising_survival_is_refused():
    curves = dict(table().survival)
    curves[8] = curves[8][..., ::-1]
    with pytest.raises(MalformedTable, match="block 8"):
        replace(table(), survival=curves)


def test_it_holds_on_any_device_but_for_one_model_only(tmp_path, caplog):
    here = replace(NOWHERE, device="NVIDIA H200")
    other = replace(here, fingerprint="else", model="else")
    table().save(place(here, tmp_path))
    table().save(place(other, tmp_path))
    assert found(here, tmp_path) is not None
    assert named(place(here, tmp_path), here).rounds == 1000
    with caplog.at_level(logging.WARNING):
        assert found(other, tmp_path) is None
    assert "not of else" in caplog.text
    with pytest.raises(ParameterError, match="recguide calibrate"):
        named(place(other, tmp_path), other)


def test_the_prior_is_what_was_published():
    """A at B = 8, 16, 32 of NLD-8B from the same states: 6.4, 10.2, 15.5 (rounds of our chain are easier)."""
    values = prior().values()
    mean = (prior().share.reshape(-1)[:, None] * values).sum(0)
    assert mean[1:] == pytest.approx([6.4, 10.2, 15.5], rel=0.12)
    assert prior().evidence.candidates[0][0] == pytest.approx(0.61, abs=0.05)
