"""The comparison finds what differs; on a float64 model nothing does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.exact_mode import METHODS, Texts, Workload, complete, conditions, costs, held_against, targets
from tests.toy import toy_model

from recguide.engine.engine import Engine, EngineConfig

PROMPTS = [list(b"What is it?"), list(b"x"), list(b"river " * 4), list(b"one, two, "), list(b"ab" * 9)]
TOKENS = 30
WORK = Workload(PROMPTS, tokens=TOKENS, blocks=dict.fromkeys(METHODS[1:], 4), logprob_every=2)


def make(kv: int = 1024, *, prefix_cache: bool = False) -> Engine:
    config = EngineConfig(max_running=4, kv_cache_tokens=kv, page_size=4, prefix_cache=prefix_cache)
    return Engine(toy_model(), str, config)


@pytest.fixture(scope="module")
def rows():
    return conditions(make(), lambda: make(80), lambda: make(prefix_cache=True), WORK, together=4)


def test_every_condition_and_method_has_a_row_and_no_token_differs(rows):
    assert [row["method"] for row in rows] == ["ar", *METHODS, *("ar", "recguide") * 2]
    conditions = ["alone", *["with 3 others"] * 4, *["after preemption"] * 2, *["after a prefix hit"] * 2]
    assert [row["condition"] for row in rows] == conditions
    assert all(row["texts"] == 5 for row in rows)
    assert all(row["tokens"] == 5 * TOKENS for row in rows)
    assert not any(row["differing_texts"] for row in rows)
    assert all(row["compared_logprobs"] == 3 * TOKENS for row in rows)


def test_scarce_memory_preempts_and_ample_memory_does_not(rows):
    assert all((row["preemptions"] > 0) == (row["condition"] == "after preemption") for row in rows)
    assert [row["prefix_hits"] for row in rows] == [0] * 7 + [4] * 2  # one prompt is shorter than a page


def test_a_changed_token_and_a_changed_bit_are_counted():
    texts = complete(make(), WORK, "ar", alone=False)
    first, second, third, *others = texts.completions
    changed = replace(first, token_ids=(*first.token_ids[:-1], first.token_ids[-1] ^ 1))
    entry = third.logprobs[0]
    shifted = replace(third, logprobs=(replace(entry, logprob=entry.logprob + 1e-15), *third.logprobs[1:]))
    found = held_against(texts, Texts([changed, second, shifted, *others], 0, 1.0))
    assert (found["differing_texts"], found["differing_logprobs"]) == (1, 1)


def test_conditions_that_did_not_come_about_miss_their_targets(rows):
    idle = [*rows[:6], rows[6] | {"preemptions": 0}, rows[7], rows[8] | {"prefix_hits": 0}]
    missed = [target.name for target in targets(idle) if not target.met]
    assert [name for name in missed if not name.endswith("differ")] == [
        "after preemption, recguide: preemptions",
        "after a prefix hit, recguide: prompts with a hit",
    ]


def test_costs_have_both_modes():
    prices = costs({"exact": make(), "default": make()}, WORK, loads=(1, 3))
    assert [(row["method"], row["load"]) for row in prices] == [
        ("ar", 1),
        ("ar", 3),
        ("recguide", 1),
        ("recguide", 3),
    ]
    assert all(row["exact_tokens_per_s"] > 0 and row["exact_over_default"] > 0 for row in prices)


def test_fewer_prompts_than_the_load_come_again():
    few = replace(WORK, prompts=PROMPTS[:2])
    prices = costs({"exact": make(), "default": make()}, few, loads=(4,))
    assert [(row["method"], row["load"]) for row in prices] == [("ar", 4), ("recguide", 4)]
    assert all(row["exact_tokens_per_s"] > 0 for row in prices)
