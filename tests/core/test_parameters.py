"""Sampling parameters check and convert themselves."""

from __future__ import annotations

import numpy as np
import pytest

from recguide.core import ParameterError, SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", None),
        ("temperature", "1"),
        ("temperature", -0.1),
        ("temperature", 1e-9),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_k", 2.5),
        ("min_p", 1.0),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("max_tokens", 2.0),
        ("min_tokens", 1.5),
        ("seed", 2**63),
        ("seed", 1.5),
        ("logprobs", 21),
        ("logprobs", True),
        ("n", 0),
        ("n", True),
        ("stop", None),
        ("stop", [5]),
        ("stop", b"a"),
        ("stop", [""]),
        ("stop_token_ids", [1.5]),
        ("ignore_eos", "no"),
        ("logit_bias", {7.5: 1}),
        ("logit_bias", {"7": 1}),
        ("logit_bias", {True: 1}),
        ("logit_bias", [(7, 1)]),
        ("logit_bias", {7: 101}),
        ("block_size", 65),
        ("block_size", 2.0),
        ("threshold", 0.0),
        ("method", 3),
        ("thinking_budget", -1),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_field(name, value):
    with pytest.raises(ParameterError) as error:
        SamplingParams(**{name: value})
    assert error.value.parameter == name
    assert name in str(error.value)


def test_values_of_other_libraries_and_one_time_iterators_are_taken_over():
    params = SamplingParams(
        temperature=1,
        seed=np.uint64(2**62),
        max_tokens=np.int64(5),
        stop=iter(["a", "b"]),
        stop_token_ids=(token for token in [3, np.int32(4)]),
        logit_bias={np.int64(7): 1},
    )
    assert type(params.seed) is int
    assert params.max_tokens == 5
    assert params.stop == ("a", "b")
    assert params.stop_token_ids == (3, 4)
    assert params.logit_bias == {7: 1.0}
    assert SamplingParams(stop="end").stop == ("end",)
