"""Which pages are free."""

import pytest

from recguide.core import RecGuideError
from recguide.kv.pages import OutOfPages, PagePool, pages_for


def test_pages_for_rounds_up():
    assert [pages_for(length, 4) for length in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_take_is_atomic():
    pool = PagePool(3, 4)
    pool.take(1)
    with pytest.raises(OutOfPages, match="3 pages wanted, 2 free") as caught:
        pool.take(3)
    assert (caught.value.wanted, caught.value.free) == (3, 2)
    assert pool.free_pages == 2


@pytest.mark.parametrize("pages", [[0], [5, 5], [9], [-1], [5, 0]])
def test_giving_what_is_not_held_is_an_error_and_changes_nothing(pages):
    pool = PagePool(8, 4)
    pool.take(8)
    pool.give([0])
    with pytest.raises(RecGuideError):
        pool.give(pages)
    assert pool.free_pages == 1


def test_a_run_has_as_much_room_behind_it():
    pool = PagePool(8, 4)
    pool.take(3)
    pool.give([0, 1])
    assert pool.take_run(3) is None
    assert (pool.take_run(1), pool.take_run(2), pool.free_pages) == (0, 3, 4)
    assert pool.take(4) == [1, 5, 6, 7]


def test_an_empty_pool_is_refused():
    with pytest.raises(RecGuideError):
        PagePool(0, 4)
