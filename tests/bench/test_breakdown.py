"""Every microsecond of a trace belongs to one part."""

from __future__ import annotations

import pytest

from recguide.bench.breakdown import KERNELS, OURS, Span, break_down, kernel_modules, part_of


def test_gaps_and_overlaps_count_once():
    spans = [
        Span("attend", 100.0, 200.0),
        Span("product", 150.0, 400.0),  # launched early: it waits for the first
        Span("inside", 160.0, 390.0),
        Span("copy", 500.0, 520.0),
    ]
    parts = {"attend": "attention", "product": "products"}
    found = break_down(spans, 2, lambda name: parts.get(name, "other"))
    assert found.parts == pytest.approx(
        {"products": 0.1, "attention": 0.05, "picks": 0.0, "other": 0.01, "gaps": 0.05}
    )
    assert found.total_ms == pytest.approx((520 - 100) / 2e3)
    assert found.kernels["product"] == ("products", pytest.approx(0.1), 0.5)
    assert found.kernels["inside"][1] == 0


def test_an_empty_trace_has_no_time():
    assert break_down([], 1, part_of).total_ms == 0


def test_our_kernels_are_known_by_their_modules():
    pytest.importorskip("triton")
    assert part_of("attend") == part_of("merge") == "attention"
    assert part_of("conclude") == "picks"
    assert part_of("nvjet_tst_64x8_64x16_1x1_h_bz_TNN") == "products"
    assert part_of("void at::native::vectorized_elementwise_kernel<4>") == "other"


def test_no_two_kernels_of_ours_share_a_name():
    """A trace has nothing else to tell them by; what they call is no kernel of its own."""
    pytest.importorskip("triton")
    own: dict[str, set[str]] = {}
    for place in OURS:
        for module in kernel_modules(place):
            for name, value in vars(module).items():
                if type(value).__name__ in KERNELS and not name.startswith("_"):
                    own.setdefault(name, set()).add(value.__module__)
    assert len(own) > 5
    assert {name: where for name, where in own.items() if len(where) > 1} == {}
