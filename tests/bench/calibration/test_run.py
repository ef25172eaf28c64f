"""From prompts to a table: the law of scripted drafts is found, and an interruption changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fake import FakeBackbone, Script, Slip, decode
from tests.toy import toy_model

from recguide.bench.calibration import run as module
from recguide.bench.calibration.run import Asked, Settings, calibrate, interleaved
from recguide.bench.calibration.work import MalformedWork, Work
from recguide.core import ParameterError
from recguide.engine.engine import Engine, EngineConfig
from recguide.guidance.conditions import Conditions
from recguide.guidance.fitting import fit
from recguide.guidance.records import Rounds
from recguide.llm import LLM

HEADER = {"fingerprint": "toy"}
HAZARD = 0.15


def toy():
    return LLM(toy_model())


def asked(count=4):
    return [Asked("ab"[n % 2], (10 + n, 20, 30)) for n in range(count)]


class Scripted:
    """As much of an LLM as calibration needs, around scripts."""

    def __init__(self, scripts):
        self.engine = Engine(FakeBackbone(*scripts), decode, EngineConfig())

    generate = LLM.generate
    _token_ids, _run, _step, _abort = LLM._token_ids, LLM._run, LLM._step, LLM._abort


def scripts(count, length, hazard):
    """Drafts fail where they fail, wherever they start."""
    random = np.random.default_rng(1)
    for number in range(count):
        slips = {
            position: Slip(risky=bool(random.random() < 0.8), second_right=bool(random.random() < 0.7))
            for position in np.flatnonzero(random.random(length + 40) < hazard).tolist()
        }
        yield Script((number, 250), tuple(random.integers(65, 90, length).tolist()), slips)


def test_the_table_of_scripted_drafts_is_their_law(tmp_path):
    made = list(scripts(20, 100, HAZARD))
    prompts = [Asked("s", one.prompt) for one in made]
    records = calibrate(
        Scripted(made), prompts, Settings(max_tokens=100), Work(tmp_path / "work.jsonl", HEADER)
    )
    rounds = Rounds.of(records)
    table = fit(rounds, Conditions("", "", "", {}, {}), bins=1)
    mean = (table.share.reshape(-1)[:, None] * table.values()).sum(0)
    for block, value in zip(table.blocks, mean, strict=True):
        assert value == pytest.approx((1 - (1 - HAZARD) ** block) / HAZARD, rel=0.15)
    evidence = table.evidence
    assert evidence.continuation == pytest.approx(1 - HAZARD, abs=0.05)
    risky = evidence.bins(np.array([0.04]))[0]
    assert evidence.candidates[0][risky] == pytest.approx(0.7, abs=0.07)
    assert np.exp(evidence.log_ratio[risky]) > 20
    assert {record.previous for record in records} == {0, 1, 4, 8, 16, 32}


def test_an_interrupted_calibration_goes_on_and_finds_the_same(tmp_path, monkeypatch):
    monkeypatch.setitem(module.TOGETHER, "cpu", 2)
    settings = Settings(max_tokens=20, temperature=1.5)
    whole = calibrate(toy(), asked(), settings, Work(tmp_path / "a.jsonl", HEADER))

    class Stop(Exception): ...  # noqa: N818

    def stop(what, done, total):
        assert done <= total
        if what == "making texts" and done >= 40:
            raise Stop

    file = tmp_path / "b.jsonl"
    with pytest.raises(Stop):
        calibrate(toy(), asked(), settings, Work(file, HEADER), stop)
    with file.open("a") as end:
        end.write('{"prompt": 2, "rounds": [{"se')  # killed while it wrote
    work = Work(file, HEADER)
    assert sorted(work.found) == [0, 1]
    assert repr(calibrate(toy(), asked(), settings, work)) == repr(whole)  # some signals are NaN
    assert len(Work(file, HEADER).found) == 4
    assert {record.set for record in whole} == {"a", "b"}
    assert len({record.prompt for record in whole}) == 4


def test_enough_places_are_enough(tmp_path, monkeypatch):
    monkeypatch.setitem(module.TOGETHER, "cpu", 1)
    work = Work(tmp_path / "work.jsonl", HEADER)
    records = calibrate(toy(), asked(), Settings(max_tokens=24, positions=30), work)
    places = {(record.prompt, record.position) for record in records}
    assert 30 <= len(places) < 30 + 24
    assert len(work.found) < 4


def test_every_block_is_tried_wherever_it_fits(tmp_path):
    records = calibrate(toy(), asked(1), Settings(max_tokens=40), Work(tmp_path / "work.jsonl", HEADER))
    by_place = {}
    for record in records:
        by_place.setdefault(record.position, set()).add(record.block)
    for position, blocks in by_place.items():
        assert blocks == {block for block in (1, 4, 8, 16, 32) if position + block <= 40}


def test_sets_take_turns():
    turns = interleaved([Asked("a", (1,)), Asked("a", (2,)), Asked("a", (3,)), Asked("b", (4,))])
    assert [one.ids[0] for one in turns] == [1, 4, 2, 3]


def test_work_of_another_calibration_or_none_is_refused_by_name(tmp_path):
    file = tmp_path / "work.jsonl"
    Work(file, HEADER)
    with pytest.raises(MalformedWork, match="another calibration"):
        Work(file, {"fingerprint": "other"})
    file.write_text("nothing\n")
    with pytest.raises(MalformedWork, match=r"work\.jsonl"):
        Work(file, HEADER)


@pytest.mark.parametrize("wrong", [{"max_tokens": 4}, {"positions": 0}, {"minutes": -1.0}])
def test_settings_that_make_no_sense_are_refused_by_name(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        Settings(**wrong)
