"""The script: a pure function whose text depends on the position alone and whose drafts fit the process."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.bench.acceptance.tables import SILENT, VOCABULARY, mixed, table

from recguide.bench.acceptance.law import round_law
from recguide.bench.acceptance.process import ENTROPY_LINKS, fitted
from recguide.bench.acceptance.sample import sample_rounds
from recguide.bench.acceptance.script import Constants, script
from recguide.core import ParameterError, Vocabulary
from recguide.speculation.methods.recguide import DELTA

PROCESS = fitted("nld-8b").process
CONSTANTS = Constants.of(PROCESS, VOCABULARY)
MANY = torch.arange(20_000)
SETTLED = 14
"""Rounds after which it no longer shows that the first one started anywhere."""


def said(seed, start, slot, draft, constants=CONSTANTS):
    return script(constants, table(seed, start, slot, draft))


def truth(position, seed=7):
    """The text: what verification says at these positions."""
    return said(seed, position - 1, torch.zeros_like(position), torch.tensor(False)).tokens


def test_the_text_is_the_same_from_every_row():
    position = torch.arange(40, 90)
    expected = truth(position)
    for back in (1, 2, 17, 39):
        rows = said(7, position - back, torch.full_like(position, back - 1), torch.tensor(False))
        assert torch.equal(rows.tokens, expected)
    assert not torch.equal(truth(position, seed=8), expected)


def test_a_draft_depends_on_where_it_starts():
    slot = torch.arange(1, 32)
    one = said(7, torch.tensor(100), slot, torch.tensor(True))
    again = said(7, torch.tensor(100), slot, torch.tensor(True))
    assert torch.equal(one.tokens, again.tokens)
    assert torch.equal(one.candidates, again.candidates)
    others = [said(7, torch.tensor(start), slot, torch.tensor(True)).tokens for start in range(101, 140)]
    texts = [truth(start + slot) for start in range(101, 140)]
    wrong = torch.stack([other != text for other, text in zip(others, texts, strict=True)])
    assert len(wrong.unique(dim=0)) > 10


def test_nothing_unspeakable_is_said():
    rows = script(CONSTANTS, mixed(20_000))
    for tokens in (rows.tokens, rows.candidates[rows.candidates != 0]):
        assert not SILENT & set(tokens.tolist())
        assert int(tokens.min()) >= 0
        assert int(tokens.max()) < VOCABULARY.size
    allowed = VOCABULARY.size - len(SILENT)
    assert len(truth(MANY).unique()) == allowed


def test_candidates_are_never_what_was_drafted_and_right_as_often_as_the_process_says():
    slots = 1 + MANY % 31
    drafts = said(7, 40 * MANY, slots, torch.tensor(True))
    right = truth(40 * MANY + slots)
    wrong = drafts.tokens != right
    assert not (drafts.candidates == drafts.tokens).any()
    assert not (drafts.candidates == right)[:, ~wrong].any()
    assert not (drafts.candidates[0] == drafts.candidates[1]).any()
    first, second = (drafts.candidates == right)[:, wrong].float().mean(1).tolist()
    assert first == pytest.approx(PROCESS.second_hit, abs=0.03)
    assert second == pytest.approx(PROCESS.either_hit - PROCESS.second_hit, abs=0.02)


def test_doubts_fit_the_process():
    slots = 1 + MANY % 15
    drafts = said(7, 40 * MANY, slots, torch.tensor(True))
    wrong = drafts.tokens != truth(40 * MANY + slots)
    risky = drafts.p1 - drafts.p2 < DELTA
    assert risky[~wrong].float().mean() == pytest.approx(PROCESS.alarm, abs=0.006)
    assert risky[wrong].float().mean() == pytest.approx(PROCESS.recall, abs=0.03)
    assert drafts.p1[wrong].mean() == pytest.approx(0.569, abs=0.02)
    assert drafts.p1[~wrong].mean() == pytest.approx(0.954, abs=0.004)
    assert (drafts.p1 + drafts.p2 <= 1).all()
    assert (drafts.p2 <= drafts.p1).all()
    assert (drafts.p2 >= 0).all()


def test_statistics_stand_where_they_belong():
    slots = mixed(500)
    rows = script(CONSTANTS, slots)
    for column in (rows.p1, rows.p2, *rows.candidates):
        assert (column[~slots.draft] == 0).all()
    assert (rows.entropy[slots.draft] == 0).all()
    assert (rows.entropy[~slots.draft] > 0).all()


@pytest.mark.parametrize("strength", ENTROPY_LINKS)
def test_entropy_is_linked_to_how_drafts_fail(strength):
    """Hard positions show in both; the law says how much more often drafts fail there."""
    constants = Constants.of(replace(PROCESS.linked(strength), hazard_slope=0.0), VOCABULARY)
    rows = said(7, MANY - 1, torch.zeros_like(MANY), torch.tensor(False), constants)
    logs = rows.entropy.log()
    assert float(logs.mean()) == pytest.approx(math.log(PROCESS.entropy_median), abs=0.1)
    assert float(logs.std()) == pytest.approx(PROCESS.entropy_spread, abs=0.05)

    wrong = said(7, MANY - 5, torch.full_like(MANY, 5), torch.tensor(True), constants).tokens != rows.tokens
    share, (easy, hard) = PROCESS.hard_share, PROCESS.base_hazards
    hard_if_wrong = share * hard / (share * hard + (1 - share) * easy)
    score = hard_if_wrong * math.sqrt((1 - share) / share) - (1 - hard_if_wrong) * math.sqrt(
        share / (1 - share)
    )
    apart = PROCESS.entropy_spread * ENTROPY_LINKS[strength] * score
    assert float(logs[wrong].mean() - logs.mean()) == pytest.approx(apart, abs=0.12)


def settled(column):
    """Mean of a column of rounds, and four times its standard error: rounds of one text are alike."""
    each = column[:, SETTLED:].double().mean(1)
    return float(each.mean()), 4 * float(each.std()) / len(each) ** 0.5


@pytest.mark.parametrize("name", ["nld-8b", "nld-14b"])
def test_rounds_follow_the_law(name):
    process = fitted(name).process
    law = round_law(process, 16)
    rounds = sample_rounds(process, VOCABULARY, 16, texts=96, rounds=28)
    for column, expected in (
        (rounds.acceptance, law.mean_acceptance),
        (rounds.acceptance == 16, law.full),
        (rounds.corrected, law.correction_coverage),
        (rounds.corrected_hit, process.second_hit * law.correction_coverage),
        (rounds.continued, law.continued),
        (rounds.continued_hit, law.continued_hit),
    ):
        mean, error = settled(column)
        assert mean == pytest.approx(expected, abs=error)
        assert error < 0.15 * float(column.float().max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nld-8b", "nld-14b"])
@pytest.mark.parametrize("block", [8, 16, 32])
def test_many_rounds_match_the_published_figures_within_the_residuals(name, block):
    found = fitted(name)
    rounds = sample_rounds(found.process, VOCABULARY, block, texts=800, rounds=36)
    columns = {f"A at B = {block}": rounds.acceptance}
    if block == 16:
        columns |= {
            "correction coverage": rounds.corrected,
            "correction reuse": rounds.corrected_hit,
            "continuation coverage": rounds.continued,
            "continuation reuse": rounds.continued_hit,
            "full blocks at B = 16": rounds.acceptance == 16,
        }
    for key in columns.keys() & found.figures.keys():
        row, (mean, error) = found.figures[key], settled(columns[key])
        assert mean - row["published"] == pytest.approx(row["residual"], abs=error)
        assert error < 0.05 * float(columns[key].float().max())


def test_a_vocabulary_needs_something_to_say():
    with pytest.raises(ParameterError, match="four"):
        Constants.of(PROCESS, Vocabulary(size=5, eos=(1,), mask=2))
    tiny = Vocabulary(size=6, eos=(1,), mask=2)
    drafts = said(7, 40 * MANY, 1 + MANY % 31, torch.tensor(True), Constants.of(PROCESS, tiny))
    assert set(drafts.tokens.tolist()) == {0, 3, 4, 5}
    assert not (drafts.candidates == drafts.tokens).any()
