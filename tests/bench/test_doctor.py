from __future__ import annotations

from dataclasses import replace

import pytest
from tests.toy import toy_model

from recguide.bench import doctor
from recguide.bench.doctor import Band, Level
from recguide.bench.forwards import conditions_of
from recguide.guidance import cost, value
from recguide.guidance.ideal import ideal_cost
from recguide.guidance.value import prior
from recguide.llm import LLM

PROMPTS = [list(b"Hello there"), list(b"One two")]


def ignore(_what: str, _done: int, _total: int) -> None: ...


def test_every_check_reports_once():
    findings = doctor.examine(LLM(toy_model(), kv_cache_tokens=1024), PROMPTS, ignore)
    names = [finding.check for finding in findings]
    assert names == sorted(set(names), key=names.index)
    assert {
        "versions",
        "device",
        "memory",
        "template",
        "mask token",
        "adapter",
        "acceptance",
        "tables",
    } == set(names)
    assert all(finding.remedy for finding in findings if finding.level is not Level.OK)


def test_random_weights_draft_no_better_than_chance():
    finding = doctor.acceptance(LLM(toy_model(), kv_cache_tokens=1024), PROMPTS)
    assert finding.level is Level.PROBLEM


@pytest.mark.parametrize(
    ("mean", "level"),
    [
        (1.0, Level.PROBLEM),
        (1.19, Level.PROBLEM),
        (1.9, Level.WARNING),
        (3.0, Level.OK),
        (9.0, Level.WARNING),
    ],
)
def test_acceptance_is_held_against_its_band(mean, level):
    assert doctor.judge_acceptance(mean, Band(2.0, 8.0)).level is level


def test_tables_are_found_or_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path))
    llm = LLM(toy_model(), kv_cache_tokens=1024)
    bare = doctor.tables(llm)
    assert bare.level is Level.WARNING
    assert "recguide profile MODEL and recguide calibrate" in bare.remedy
    here = conditions_of(llm.engine, llm.model)
    replace(ideal_cost("ideal-8b"), conditions=here).save(cost.place(here))
    assert doctor.tables(llm).remedy == "run recguide calibrate MODEL --prompts FILE"
    replace(prior(), conditions=replace(here, settings={})).save(value.place(here))
    found = doctor.tables(llm)
    assert (found.level, found.remedy) == (Level.OK, None)
    assert f"{prior().rounds:,} rounds" in found.message


def test_the_mask_token_is_named():
    finding = doctor.mask_token(toy_model())
    assert (finding.level, finding.message) == (Level.OK, "257 (<257>)")


def test_a_model_that_cannot_draft_is_told_what_to_do():
    model = toy_model(drafts=False)
    finding = doctor.mask_token(model)
    assert finding.level is Level.WARNING
    assert "adapt" in (finding.remedy or "")
    assert doctor.acceptance(LLM(model, kv_cache_tokens=1024), PROMPTS).level is Level.OK


def test_a_missing_template_is_a_warning():
    assert doctor.template(toy_model(chat_template=None)).level is Level.WARNING
    assert doctor.template(toy_model()).level is Level.OK


def test_a_cache_larger_than_memory_is_a_warning():
    assert doctor.memory(toy_model(), 1000).level is Level.OK
    assert doctor.memory(toy_model(), 10**12).level is Level.WARNING


def test_versions_name_what_is_missing(monkeypatch):
    assert doctor.versions().level is Level.OK
    monkeypatch.setattr(
        doctor, "requires", lambda _: ["torch>=99", "no-such-package-here>=1", "x; extra == 'dev'"]
    )
    finding = doctor.versions()
    assert finding.level is Level.PROBLEM
    assert "torch" in finding.message
    assert "no-such-package-here is missing" in finding.message
