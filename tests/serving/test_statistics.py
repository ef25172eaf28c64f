"""What an answer says of its speculation, in the schema that clients know and beyond."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fake import EOS, Script, Slip, complete, encode, engine

from recguide.core import SamplingParams
from recguide.serving.statistics import speculative_metrics

PROMPT = tuple(encode("Say it: "))
ANSWER = (*encode("the quick brown fox jumps over the lazy dog, and then it naps."), EOS)

NAMES = {
    "mean_acceptance_length": float,
    "draft_acceptance_rate": float,
    "acceptance_histogram": list,
    "num_spec_steps": int,
    "num_accepted_draft_tokens": int,
    "num_draft_tokens": int,
    "num_spec_tokens": int,
}
"""Of vLLM's schema, with the types that its clients parse."""


def answer(slips=(3, 9, 20, 31, 44), **params):
    """All choices of the script's prompt."""
    script = Script(PROMPT, ANSWER, {len(PROMPT) + at: Slip(second_right=at % 2 == 0) for at in slips})
    return complete(engine(script), [PROMPT], SamplingParams(max_tokens=90, **params))


@pytest.mark.parametrize("method", ["ar", "linear", "tidar", "recguide", "diffusion"])
def test_the_names_and_types_are_those_that_clients_know(method):
    found = speculative_metrics(answer(method=method))
    assert {name: type(found[name]) for name in NAMES} == NAMES
    assert json.loads(json.dumps(found)) == found


@settings(max_examples=50, deadline=None)
@given(
    slips=st.sets(st.integers(0, 62)),
    method=st.sampled_from(["linear", "tidar", "recguide"]),
    max_tokens=st.integers(1, 70),
    block_size=st.sampled_from([2, 5, 8, 16]),
    stop=st.sampled_from([(), ("lazy",), ("fox j",)]),
)
def test_the_counts_agree_with_one_another(slips, method, max_tokens, block_size, stop):
    script = Script(PROMPT, ANSWER, {len(PROMPT) + at: Slip(second_right=at % 2 == 0) for at in slips})
    params = SamplingParams(max_tokens=max_tokens, method=method, block_size=block_size, stop=stop)
    found = speculative_metrics(complete(engine(script), [PROMPT], params))
    histogram = found["acceptance_histogram"]
    steps, accepted = found["num_spec_steps"], found["num_accepted_draft_tokens"]
    assert len(histogram) == found["num_spec_tokens"] + 1
    assert sum(histogram) == steps
    assert sum(matched * rounds for matched, rounds in enumerate(histogram)) == accepted
    assert accepted <= found["num_draft_tokens"] <= steps * found["num_spec_tokens"]
    assert found["mean_acceptance_length"] == pytest.approx(1 + (accepted / steps if steps else 0))
    drafted = [
        sum(rounds for block, rounds in found["blocks"].items() if int(block) > slot)
        for slot in range(1, found["num_spec_tokens"] + 1)
    ]
    per_position = zip(found["acceptance_per_position"], drafted, strict=True)
    assert sum(share * rounds for share, rounds in per_position) == pytest.approx(accepted)
    assert sum(drafted) == found["num_draft_tokens"]
    assert 0 <= found["reuse"] <= found["coverage"] <= 1


def test_plain_decoding_has_no_speculative_steps():
    found = speculative_metrics(answer(method="ar"))
    assert found["num_spec_steps"] == found["num_draft_tokens"] == found["num_spec_tokens"] == 0
    assert found["acceptance_histogram"] == [0]
    assert found["mean_acceptance_length"] == 1.0
    assert found["tokens_per_forward"] == 1.0
    assert found["blocks"] == {"1": found["forwards"]}


def test_several_choices_add_up_and_each_is_told():
    choices = answer(method="recguide", n=3, temperature=0.7, seed=5)
    found = speculative_metrics(choices)
    each = found["choices"]
    assert [one["index"] for one in each] == [0, 1, 2]
    for name in (
        "num_spec_steps",
        "num_accepted_draft_tokens",
        "num_draft_tokens",
        "forwards",
        "query_tokens",
    ):
        assert found[name] == sum(one[name] for one in each)
    after_first = sum(len(choice.token_ids) - 1 for choice in choices)
    assert found["tokens_per_forward"] == pytest.approx(after_first / found["forwards"])
    assert "choices" not in speculative_metrics(choices[:1])


def test_branches_are_told_by_kind():
    (choice,) = answer(method="recguide", block_size=16)
    found = speculative_metrics([choice])
    assert set(found["branches"]) == {"correction", "continuation"}
    for kind, told in found["branches"].items():
        assert told["run"] == choice.stats.branches[kind]
        assert told["reused"] <= told["covered"] <= told["run"]
    assert sum(told["reused"] for told in found["branches"].values()) > 0
