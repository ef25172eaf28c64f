"""What cannot be deployed is refused by name, before Ray is asked."""

from __future__ import annotations

import pytest

from recguide.core import ParameterError
from recguide.serving.deploy.plan import Plan


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": 3, "max_replicas": 2}, "max_replicas"),
        ({"target_requests": 0.0}, "target_requests"),
        ({"cpus": -1.0}, "cpus"),
        ({"gpus": -0.5}, "gpus"),
    ],
)
def test_numbers_out_of_range_are_named(options, named):
    with pytest.raises(ParameterError) as refused:
        Plan(**options)
    assert refused.value.parameter == named
