"""The processes that come with the package: their files say what they were fitted to, and what is left."""

from __future__ import annotations

import json

import pytest

from benchmarks import fit_acceptance
from recguide.bench.acceptance.process import LABEL, fitted
from recguide.core import ParameterError

NAMES = ("nld-8b", "nld-14b")


@pytest.mark.parametrize("name", NAMES)
def test_the_file_says_what_the_process_makes_of_the_published_figures(name):
    found = fitted(name)
    now = fit_acceptance.figures_of(found.process)
    published = fit_acceptance.PUBLISHED[name]
    assert found.figures.keys() == published.keys()
    for key, row in found.figures.items():
        assert row["published"] == published[key].value
        assert row["process"] == pytest.approx(now[key], abs=1e-4)
        assert row["residual"] == pytest.approx(row["process"] - row["published"], abs=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_fit_is_close(name):
    figures = fitted(name).figures
    for block in (8, 16, 32):
        assert abs(figures[f"A at B = {block}"]["residual"]) < 0.06
    for key in ("correction coverage", "correction reuse", "continuation coverage", "continuation reuse"):
        assert abs(figures[key]["residual"]) < 0.002
    assert all(abs(row["residual"]) < 0.035 for key, row in figures.items() if " to " in key)


def test_results_carry_label_and_residuals():
    printed = json.loads(json.dumps(fitted("nld-8b").as_object()))
    assert printed["acceptance"] == LABEL
    assert printed["process"]["entropy_link"] == 0.4
    assert printed["figures"]["A at B = 16"].keys() == {"published", "process", "residual"}
    assert printed["sources"].keys() == {*printed["figures"], "third_hit"}
    areas = [printed["entropy"][strength]["A > 16"] for strength in ("weak", "medium", "strong")]
    assert areas == sorted(areas)


def test_saved_is_what_is_read(tmp_path):
    one = fitted("nld-14b")
    file = one.save(tmp_path)
    assert json.loads(file.read_text()) == one.as_object()
    assert file.name == "nld-14b.json"


def test_an_unknown_name_is_refused():
    with pytest.raises(ParameterError, match="nld-14b, nld-8b"):
        fitted("nld-3b")
