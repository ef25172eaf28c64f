"""Cost tables: what lies between, on and beyond the measured sizes, and which table holds where."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recguide.core import ParameterError, RecGuideError
from recguide.guidance.conditions import Conditions
from recguide.guidance.cost import CostTable, MalformedTable, found, named, place

HERE = Conditions(
    model="nld-8b",
    fingerprint="0123abcd",
    device="NVIDIA H200",
    versions={"recguide": "0.1.0", "torch": "2.11.0"},
    settings={"dtype": "bfloat16", "graphs": True, "exact": False},
)
TABLE = CostTable(
    tokens=(1, 16, 64, 128, 256),
    base_ms=(4.3, 4.4, 4.6, 5.0, 7.4),
    spread_ms=(0.1, 0.1, 0.1, 0.1, 0.2),
    prefix_ms=4e-5,
    pair_ms=3e-8,
    stepped=True,
    residual=0.01,
    conditions=HERE,
    measured_at="2026-01-01T00:00:00+00:00",
)
LINES = replace(TABLE, stepped=False)

rising = st.lists(st.integers(1, 4096), min_size=2, max_size=12, unique=True).map(sorted)


@st.composite
def tables(draw, stepped=None):
    tokens = draw(rising)
    steps = draw(st.lists(st.floats(0, 5), min_size=len(tokens), max_size=len(tokens)))
    base = 0.5 + np.cumsum(steps)
    return replace(
        TABLE,
        tokens=tuple(tokens),
        base_ms=tuple(base.tolist()),
        spread_ms=(0.0,) * len(tokens),
        stepped=draw(st.booleans()) if stepped is None else stepped,
    )


def test_a_stepped_table_charges_the_bucket():
    assert TABLE.ms([1, 2, 16, 17, 64, 65, 200, 256]).tolist() == [4.3, 4.4, 4.4, 4.6, 4.6, 5.0, 7.4, 7.4]


def test_without_steps_sizes_lie_on_lines():
    assert LINES.ms(40) == pytest.approx(4.5)
    assert LINES.ms(192) == pytest.approx(6.2)


def test_prefixes_add_their_terms():
    assert TABLE.ms(64, 8000, 64 * 1000) == pytest.approx(4.6 + 0.32 + 0.00192)
    assert TABLE.ms([[1], [64]], prefix=[0, 1000]).shape == (2, 2)


def test_beyond_its_end_it_goes_on_with_the_upper_halfs_slope():
    assert TABLE.slope_ms == pytest.approx(2.4 / 128)
    assert TABLE.ms(356) == pytest.approx(7.4 + 100 * 2.4 / 128)


@given(tables())
def test_measured_sizes_cost_what_was_measured(table):
    assert table.ms(table.tokens) == pytest.approx(np.array(table.base_ms))


@given(tables(), st.lists(st.integers(1, 10_000), min_size=2, max_size=20))
def test_a_rising_table_never_falls(table, sizes):
    times = table.ms(sorted(sizes))
    assert (np.diff(times) >= -1e-9).all()
    assert times[0] >= table.base_ms[0]


@given(tables(), st.integers(1, 10_000), st.integers(0, 10**6), st.integers(0, 10**9))
def test_many_lookups_are_single_ones(table, n, prefix, pairs):
    one = float(table.ms(n, prefix, pairs))
    assert table.ms([n, 1], [prefix, 0], [pairs, 0])[0] == one
    assert one == pytest.approx(float(table.ms(n)) + 4e-5 * prefix + 3e-8 * pairs)


@given(tables(stepped=False), st.integers(1, 10_000))
def test_steps_are_never_cheaper_than_lines(table, n):
    within = n <= table.tokens[-1]
    assert replace(table, stepped=True).ms(n) >= table.ms(n) - 1e-9 or not within


def test_no_query_token_is_no_forward():
    with pytest.raises(RecGuideError, match="at least one"):
        TABLE.ms([3, 0])


@given(tables())
def test_files_bring_back_what_was_saved(tmp_path_factory, table):
    file = tmp_path_factory.mktemp("costs") / "new" / "table.json"
    table.save(file)
    assert CostTable.read(file) == table


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        json.dumps({**TABLE.as_object(), "tokens": [4, 2, 8, 9, 10]}),
        json.dumps({**TABLE.as_object(), "base_ms": [1.0]}),
        json.dumps({**TABLE.as_object(), "prefix_ms": "NaN"}),
        json.dumps({**TABLE.as_object(), "conditions": 3}),
    ],
)
def test_what_is_no_table_is_named(tmp_path, content):
    file = tmp_path / "table.json"
    file.write_text(content)
    with pytest.raises(MalformedTable, match=r"table\.json"):
        CostTable.read(file)
    with pytest.raises(ParameterError, match=r"cost_table.*table\.json"):
        named(file, HERE)


MISMATCHES = {
    "model": (replace(HERE, fingerprint="ffff", model="other"), "other"),
    "device": (replace(HERE, device="NVIDIA B200"), "B200"),
    "version": (replace(HERE, versions={**HERE.versions, "torch": "2.13.0"}), "torch 2.11.0, not 2.13.0"),
    "missing version": (replace(HERE, versions={**HERE.versions, "triton": "3.6.0"}), "triton None"),
    "setting": (replace(HERE, settings={**HERE.settings, "exact": True}), "exact False, not True"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_a_named_table_that_does_not_hold_is_an_error_with_the_reason(tmp_path, case):
    wanted, reason = MISMATCHES[case]
    TABLE.save(tmp_path / "mine.json")
    assert named(tmp_path / "mine.json", HERE) == TABLE
    with pytest.raises(ParameterError, match=re.escape(reason)):
        named(tmp_path / "mine.json", wanted)


def test_a_table_found_that_does_not_hold_is_skipped_with_a_line_in_the_log(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    assert found(HERE, tmp_path) is None
    assert not caplog.records
    TABLE.save(place(HERE, tmp_path))
    assert found(HERE, tmp_path) == TABLE
    assert not caplog.records
    assert found(replace(HERE, settings={}), tmp_path) is None
    assert "dtype" in caplog.text
    place(HERE, tmp_path).write_text("{")
    caplog.clear()
    assert found(HERE, tmp_path) is None
    assert "recguide profile" in caplog.text


def test_its_place_is_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path))
    assert place(HERE) == tmp_path / "costs" / "0123abcd-nvidia-h200.json"


def test_conditions_of_this_process():
    here = Conditions.here("m", "f", torch.device("cpu"), {"dtype": "float32"})
    assert (
        here.versions["torch"] == torch.__version__.partition("+")[0]
        or here.versions["torch"] == torch.__version__
    )
    assert here.device.startswith("CPU")
    assert here.mismatch(here) is None
