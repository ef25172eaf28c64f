"""What an engine tells Python's collector of cyclic garbage."""

import gc

import pytest
from tests import fake

from recguide.engine.collecting import OBJECTS


@pytest.fixture(autouse=True)
def thresholds():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((700, 10, 10), (OBJECTS, 20, 100)),
        ((2 * OBJECTS, 10, 200), (2 * OBJECTS, 20, 200)),
        ((0, 10, 10), (0, 20, 100)),  # who has turned it off wants it off
    ],
)
def test_an_engine_has_its_process_collect_seldom(before, after):
    gc.set_threshold(*before)
    fake.engine()
    assert gc.get_threshold() == after
