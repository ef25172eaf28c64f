from __future__ import annotations

import pytest
from benchmarks.round_profile import profile_rows

from recguide.bench.breakdown import Span, break_down


def test_rows_hold_every_part_and_the_longest_kernels():
    spans = [Span("nvjet", 0.0, 900.0), Span("attend", 900.0, 1000.0), Span("nvjet", 1100.0, 2000.0)]
    parts = {"attend": "attention", "nvjet": "products"}
    rows = profile_rows(break_down(spans, 2, parts.__getitem__))
    by_part = {row["part"]: row for row in rows if "part" in row}
    assert set(by_part) == {"products", "attention", "picks", "other", "gaps"}
    assert by_part["products"] == {"part": "products", "ms": 0.9, "share": pytest.approx(0.9), "launches": 1}
    assert by_part["gaps"]["ms"] == pytest.approx(0.05)
    assert sum(row["share"] for row in by_part.values()) == pytest.approx(1)
    assert [row["kernel"] for row in rows if "kernel" in row] == ["nvjet", "attend"]
