"""The studies of budgets from end to end, on models of a few thousand weights and for seconds."""

from __future__ import annotations

import json

import pytest
import torch
from tests.tiny import tiny_model
from tests.toy import toy_model

from benchmarks import budgets_ladder, budgets_single, simulator_against_engine, worthless_drafts
from recguide.bench.targets import read_result
from recguide.llm import LLM
from recguide.models.folding import fold


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a script; its models are tiny, its costs those of an ideal engine."""

    def run(script, *arguments):
        file = tmp_path / "result.json"
        words = ("--quick", "--figures", str(tmp_path), "--output", str(file), *arguments)
        monkeypatch.setattr("sys.argv", ["script", *words])
        if hasattr(script, "load"):
            monkeypatch.setattr(
                script, "load", lambda *_, **__: tiny_model("nemotron_labs_diffusion", dtype=torch.float32)
            )
        monkeypatch.setattr(script, "LLM", _toy, raising=False)
        monkeypatch.setattr(script, "measure", _measured)
        monkeypatch.setattr(script, "PROMPT", 40, raising=False)
        script.main()
        assert list(tmp_path.glob("*.svg"))
        return read_result(file)

    return run


class _measured:  # noqa: N801 - stands for a function
    def __init__(self, *_):
        from recguide.guidance.ideal import ideal_cost

        self.table = ideal_cost("ideal-8b")


def _toy(model, **settings):
    return LLM(toy_model() if isinstance(model, str) else model, **settings)


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"What is {n}?"}) for n in range(8)))
    return file


WAYS = ("ar", "recipe", "fixed 32", "paper, bucketed", "price")


def test_the_ladder(run):
    result = run(budgets_ladder, "--loads", "1", "3", "--texts", "5", "--length", "40", "--ways", *WAYS)
    assert {(row["load"], row["way"]) for row in result.rows} == {(n, way) for n in (1, 3) for way in WAYS}
    assert all(row["steps"] > 0 for row in result.rows)
    names = [target.name for target in result.targets]
    assert "nld-8b, replayed acceptance, C = 3: price / max(best fixed, AR, paper)" in names
    assert "nld-8b, replayed acceptance: price / paper, bucketed, mean over 2 loads" in names
    assert {row["way"] for row in result.settings["beside_the_paper"]} == set(WAYS)
    engine = [row for row in result.rows if row["where"] == "engine"]
    assert all(row["warm_up_tokens_per_s"] > 0 for row in engine)
    # All that draft decode the same texts.
    assert {(row["way"] == "ar", row["texts"]) for row in engine} == {(True, 0), (False, 5)}
    assert all(0.4 < row["tokens_per_s"] / row["window_tokens_per_s"] < 2.5 for row in engine)
    # Whoever drafts verifies next; of batches by block some wait.
    for way, least in (("fixed 32", 0.2), ("paper, bucketed", 0.05)):
        drafting = [row for row in engine if row["way"] == way]
        assert all(least < row["drafts_per_step"] / row["load"] < 0.6 for row in drafting)
        assert all(sum(row["shares"].values()) == pytest.approx(100, abs=0.1) for row in drafting)


def test_the_ladder_in_parts(run, tmp_path):
    ways, file = ("--texts", "2", "--length", "40", "--ways", "recipe", "price"), tmp_path / "result.json"
    run(budgets_ladder, "--loads", "1", "2", *ways)
    result = run(budgets_ladder, "--loads", "3", "2", "--resume", str(file), *ways)
    assert [(row["load"], row["way"]) for row in result.rows] == [
        (load, way) for load in (1, 2, 3) for way in ("recipe", "price")
    ]
    assert [part["loads"] for part in result.settings["parts"]] == [[1, 2], [3, 2]]
    assert {"commit", "time"} <= set(result.settings["parts"][0])
    assert "nld-8b, replayed acceptance: price / recipe, mean over 3 loads" in [
        t.name for t in result.targets
    ]
    with pytest.raises(SystemExit, match="length"):
        run(budgets_ladder, "--loads", "4", "--resume", str(file), *ways, "--length", "48")


@pytest.mark.slow
def test_the_ladder_is_simulated_afterwards(run, tmp_path):
    measured = run(budgets_ladder, "--loads", "1", "--texts", "5", "--length", "40", "--ways", *WAYS)
    result = run(budgets_ladder, "--resume", str(tmp_path / "result.json"), "--simulated", "2")
    assert result.targets == measured.targets
    oracles = [row["where"] for row in result.rows if row["way"] == "oracle"]
    assert oracles == [f"simulator, {link} link" for link in ("weak", "medium", "strong")]
    assert {row["load"] for row in result.rows if row["where"] == "engine"} == {1}


def test_one_request_with_replayed_acceptance(run):
    result = run(budgets_single, "--budget", "1", "--tokens", "40")
    ways = {row["way"]: row for row in result.rows}
    assert ways["price"]["texts"] == ways[budgets_single.PAPER]["texts"] >= 1
    assert ways[budgets_single.PAPER]["over_paper"] == 1
    assert ways[budgets_single.PAPER]["published"] == 903
    assert ways["linear"]["reuse"] == 0
    assert [target.target for target in result.targets] == [1.08]


@pytest.mark.slow
def test_one_request_of_a_real_model(run, prompts):
    result = run(budgets_single, "--model", "smollm2-135m", "--budget", "1", "--prompts", str(prompts))
    assert result.settings["acceptance"] == "real"
    assert result.settings["rounds_of_calibration"] > 0
    assert [target.target for target in result.targets] == [1.15]


def test_the_simulator_beside_the_engine(run, prompts):
    result = run(simulator_against_engine, "--loads", "1", "2", "--budget", "2", "--prompts", str(prompts))
    assert [(row["load"], row["policy"]) for row in result.rows] == [
        (load, policy) for load in (1, 2) for policy in ("fixed-16", "price")
    ]
    assert all(row["simulator"] > 0 for row in result.rows)
    assert len(result.targets) == 4


def test_a_spoiled_adapter_is_spoiled_in_every_form():
    model = tiny_model("llama", dtype=torch.float32)
    fold(model.adapter, model.decoder)
    before = [delta.folded.merged.clone() for deltas in model.adapter.deltas for delta in deltas.values()]
    worthless_drafts.randomise(model)
    after = [delta.folded.merged for deltas in model.adapter.deltas for delta in deltas.values()]
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_worthless_drafts(run):
    result = run(worthless_drafts, "--loads", "1", "2", "--budget", "2")
    assert [target.name for target in result.targets] == [
        f"smollm2-135m, random adapter, C = {load}: price / AR" for load in (1, 2)
    ]
    assert all(row["skipped"] >= worthless_drafts.ROUNDS for row in result.rows)
