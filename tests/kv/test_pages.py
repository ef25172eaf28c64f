"""Page accounting against a dictionary of who holds what."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from recguide.core import RecGuideError
from recguide.kv.pages import BlockTable, OutOfPages, PagePool, pages_for

PAGES, PAGE_SIZE = 12, 4


class PagesAgainstDictionary(RuleBasedStateMachine):
    """Random admissions, growth, rollbacks and releases; the model is one holder (or none) for each page."""

    tables = Bundle("tables")

    def __init__(self):
        super().__init__()
        self.pool = PagePool(PAGES, PAGE_SIZE)
        self.holder = dict.fromkeys(range(PAGES))
        self.lengths = {}

    @rule(target=tables, length=st.integers(0, PAGES * PAGE_SIZE))
    def admit(self, length):
        table = BlockTable(self.pool)
        self.lengths[table] = 0
        self._extend(table, length)
        return table

    @rule(table=tables, length=st.integers(0, (PAGES + 1) * PAGE_SIZE))
    def extend(self, table, length):
        self._extend(table, length)

    @rule(table=tables, length=st.integers(0, PAGES * PAGE_SIZE))
    def rollback(self, table, length):
        before = list(table.pages)
        table.rollback(length)
        self.lengths[table] = min(self.lengths[table], -(-length // PAGE_SIZE))
        assert table.pages == before[: self.lengths[table]]
        for page in before[self.lengths[table] :]:
            self.holder[page] = None

    @rule(table=consumes(tables))
    def release(self, table):
        for page in table.pages:
            self.holder[page] = None
        table.release()
        assert table.pages == []
        del self.lengths[table]

    def _extend(self, table, length):
        before = list(table.pages)
        wanted = max(self.lengths[table], -(-length // PAGE_SIZE))
        free = [page for page, holder in self.holder.items() if holder is None]
        if wanted - len(before) > len(free):
            with pytest.raises(OutOfPages):
                table.extend(length)
            assert table.pages == before
            return
        table.extend(length)
        self.lengths[table] = wanted
        assert table.pages[: len(before)] == before
        for page in table.pages[len(before) :]:
            assert self.holder[page] is None
            self.holder[page] = table

    @invariant()
    def every_page_is_where_the_model_says(self):
        for table, count in self.lengths.items():
            assert len(table.pages) == count
            assert table.capacity == count * PAGE_SIZE
            assert table.array.tolist() == table.pages
            assert all(self.holder[page] is table for page in table.pages)
        assert self.pool.free_pages == sum(holder is None for holder in self.holder.values())


TestPages = PagesAgainstDictionary.TestCase
TestPages.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_pages_for_rounds_up():
    assert [pages_for(length, 4) for length in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_take_is_atomic():
    pool = PagePool(3, 4)
    pool.take(1)
    with pytest.raises(OutOfPages, match="3 pages wanted, 2 free") as caught:
        pool.take(3)
    assert (caught.value.wanted, caught.value.free) == (3, 2)
    assert pool.free_pages == 2


def test_a_table_grows_side_by_side_where_it_can():
    pool = PagePool(8, 4)
    first, second = BlockTable(pool), BlockTable(pool)
    first.extend(8)
    second.extend(4)
    second.extend(12)
    assert first.pages == [0, 1]
    assert second.pages == [2, 3, 4]
    first.extend(12)
    assert first.pages == [0, 1, 5]
    second.extend(20)
    assert second.pages == [2, 3, 4, 6, 7]


@pytest.mark.parametrize("pages", [[0], [5, 5], [9], [-1], [5, 0]])
def test_giving_what_is_not_held_is_an_error_and_changes_nothing(pages):
    pool = PagePool(8, 4)
    pool.take(8)
    pool.give([0])
    with pytest.raises(RecGuideError):
        pool.give(pages)
    assert pool.free_pages == 1


def test_an_empty_pool_is_refused():
    with pytest.raises(RecGuideError):
        PagePool(0, 4)
