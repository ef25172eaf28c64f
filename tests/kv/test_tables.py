"""Pool, tree and tables against a dictionary of who holds what, and what each page holds."""

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from recguide.kv.pages import OutOfPages, PagePool
from recguide.kv.prefix_tree import PrefixTree
from recguide.kv.tables import BlockTable

PAGES, PAGE_SIZE = 12, 2
TEXTS = st.lists(st.integers(0, 1), max_size=PAGES * PAGE_SIZE)


class TablesAgainstDictionary(RuleBasedStateMachine):
    """Random requests: admitted with what is known, written, shared, ended, failed.

    The model is what was last written to each page, and the text of each table. A page's content is its whole
    beginning: what the keys and values of its tokens depend on.
    """

    tables = Bundle("tables")

    def __init__(self):
        super().__init__()
        self.pool = PagePool(PAGES, PAGE_SIZE)
        self.tree = PrefixTree(self.pool)
        self.texts = {}
        self.content = {}

    @rule(target=tables, text=TEXTS)
    def admit(self, text):
        table = BlockTable(self.pool, self.tree, self._copy)
        found = self.tree.find(text)
        known = table.adopt(text)
        assert known == len(found) * PAGE_SIZE <= len(text)
        self.texts[table] = text[:known]
        self._write(table, text[known:])
        return table

    @rule(table=tables, more=TEXTS)
    def go_on(self, table, more):
        self._write(table, more)

    @rule(table=tables, length=st.integers(0, (PAGES + 1) * PAGE_SIZE))
    def reserve(self, table, length):
        before = list(table.pages)
        missing = -(-length // PAGE_SIZE) - len(before)
        if missing > self.pool.available_pages:
            with pytest.raises(OutOfPages):
                table.extend(length)
            assert table.pages == before
        else:
            table.extend(length)
            assert table.pages[: len(before)] == before
            assert len(table.pages) == len(before) + max(0, missing)

    @rule(table=tables, cut=st.integers(0, 3))
    def share(self, table, cut):
        text = self.texts[table]
        table.share(text[: max(0, len(text) - cut)])

    @rule(table=tables)
    def unite(self, table):
        before, free = list(table.pages), self.pool._is_free
        roomy = bytes(free).find(b"\x01" * (2 * len(before))) >= 0
        table.unite()
        if is_run(before) or not roomy:
            assert table.pages == before
        else:
            assert is_run(table.pages)
            assert len(table.pages) == len(before)

    @rule(table=consumes(tables), cut=st.integers(0, 3))
    def end(self, table, cut):
        """A request that ends, is aborted or preempted; the last tokens may be uncommitted."""
        text = self.texts.pop(table)
        committed = text[: max(0, len(text) - cut)]
        # What was forgotten is not known again, even where another has written the same since.
        known = all(node.kept for node in table._nodes)
        table.release(committed)
        assert table.pages == []
        if known and not cut and self.pool.cached_pages and self.tree.find(text[:PAGE_SIZE]):
            assert len(self.tree.find(committed)) == len(committed) // PAGE_SIZE

    @rule(table=consumes(tables))
    def fail(self, table):
        text = self.texts.pop(table)
        self.tree.forget(text)
        table.release()
        assert self.tree.find(text) == []

    @rule(text=TEXTS)
    def forget(self, text):
        self.tree.forget(text)

    @rule()
    @precondition(lambda self: not self.texts)
    def idle(self):
        assert self.pool.used_pages == 0
        pages = self.pool.take(PAGES)
        assert self.pool.cached_pages == 0
        assert sorted(pages) == list(range(PAGES))
        self.pool.give(pages)

    def _write(self, table, tokens):
        """Writes behind what the table holds, into pages that are its own alone."""
        text = self.texts[table] + tokens
        try:
            table.extend(len(text))
        except OutOfPages:
            return
        first = len(self.texts[table]) // PAGE_SIZE
        self.texts[table] = text
        for i in range(first, -(-len(text) // PAGE_SIZE)):
            self.content[table.pages[i]] = text[: (i + 1) * PAGE_SIZE]

    def _copy(self, pages, start):
        for at, page in enumerate(pages, start):
            assert at not in pages, "nobody's page is written over"
            self.content[at] = self.content.get(page)

    @invariant()
    def every_page_of_a_table_holds_its_text(self):
        for table, text in self.texts.items():
            assert table.array.tolist() == table.pages
            assert len(set(table.pages)) == len(table.pages)
            for i in range(len(text) // PAGE_SIZE):
                assert self.content[table.pages[i]] == text[: (i + 1) * PAGE_SIZE]

    @invariant()
    def pages_beyond_the_shared_ones_are_the_tables_own(self):
        holders = {}
        for table in self.texts:
            for i, page in enumerate(table.pages):
                holders.setdefault(page, []).append(i < len(table._nodes))
        assert all(len(shared) == 1 or all(shared) for shared in holders.values())
        assert self.pool.used_pages == len(holders)

    @invariant()
    def the_tree_says_the_truth(self):
        nodes, unused = list(self.tree.root.children.values()), 0
        texts = {id(node): list(node.key) for node in nodes}
        for node in nodes:
            unused += node.users == 0
            assert self.content[node.page] == texts[id(node)]
            assert node.users >= max((child.users for child in node.children.values()), default=0)
            for child in node.children.values():
                texts[id(child)] = texts[id(node)] + list(child.key)
                nodes.append(child)
        assert len({node.page for node in nodes}) == len(nodes)
        assert unused == self.tree.unused == self.pool.cached_pages
        assert self.pool.free_pages + self.pool.cached_pages + self.pool.used_pages == PAGES


TestTables = TablesAgainstDictionary.TestCase
TestTables.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


def is_run(pages):
    return all(after == page + 1 for page, after in pairwise(pages))


def table_of(pool, tree, text, copy=None):
    table = BlockTable(pool, tree, copy)
    table.adopt(text)
    table.extend(len(text))
    return table


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


def test_a_table_that_goes_on_elsewhere_moves_to_where_it_has_room():
    copies = []
    pool = PagePool(16, 1)
    tree = PrefixTree(pool)
    table_of(pool, tree, [1, 2, 3]).release([1, 2, 3])
    table = table_of(pool, tree, [1, 2, 8, 9], lambda pages, start: copies.append((pages, start)))
    assert table.pages == [0, 1, 3, 4]
    table.share([1, 2, 8, 9])
    table.unite()
    assert (table.pages, copies) == ([5, 6, 7, 8], [([0, 1, 3, 4], 5)])
    assert [node.page for node in tree.find([1, 2, 8, 9])] == [0, 1, 3, 4]
    assert (pool.cached_pages, pool.used_pages) == (5, 4)
    table.unite()
    assert len(copies) == 1
    table.release([1, 2, 8, 9])
    assert (pool.cached_pages, pool.used_pages) == (5, 0)


def test_a_table_stays_in_pieces_where_nobody_copies_or_free_pages_are_few():
    for pages, copy in ((16, None), (12, lambda *_: None)):
        pool = PagePool(pages, 1)
        tree = PrefixTree(pool)
        table_of(pool, tree, [1, 2, 3]).release([1, 2, 3])
        table = table_of(pool, tree, [1, 2, 8, 9], copy)
        table.unite()
        assert table.pages == [0, 1, 3, 4]


def test_a_page_that_is_not_full_of_committed_tokens_is_not_shared():
    pool = PagePool(8, 4)
    tree = PrefixTree(pool)
    table = table_of(pool, tree, range(12))
    table.release(range(7))
    assert [node.key for node in tree.find(range(12))] == [(0, 1, 2, 3)]
    assert (pool.free_pages, pool.cached_pages, pool.used_pages) == (7, 1, 0)


def test_the_longest_unused_pages_go_first_and_from_the_leaves_up():
    pool = PagePool(6, 1)
    tree = PrefixTree(pool)
    table_of(pool, tree, [1, 2, 3]).release([1, 2, 3])
    table_of(pool, tree, [4, 5]).release([4, 5])
    table_of(pool, tree, [1, 2]).release([1, 2])  # 3 was not asked for again
    gone = []
    for _ in range(5):
        before = {node for text in ([1, 2, 3], [4, 5]) for node in tree.find(text)}
        tree.evict(1)
        (node,) = before - {node for text in ([1, 2, 3], [4, 5]) for node in tree.find(text)}
        gone.append(node.key[0])
    assert gone == [3, 5, 4, 2, 1]
    assert pool.free_pages == 6


def test_what_is_held_is_not_evicted():
    pool = PagePool(4, 1)
    tree = PrefixTree(pool)
    table_of(pool, tree, [1, 2, 3]).release([1, 2, 3])
    holder = BlockTable(pool, tree)
    assert holder.adopt([1, 2]) == 2
    other = BlockTable(pool, tree)
    with pytest.raises(OutOfPages, match="3 pages wanted, 2 free"):
        other.extend(3)
    other.extend(2)
    assert set(other.pages).isdisjoint(holder.pages)
    assert tree.find([1, 2, 3]) == tree.find([1, 2])


def test_two_that_wrote_the_same_leave_one_copy_and_each_keeps_its_own_meanwhile():
    pool = PagePool(8, 1)
    tree = PrefixTree(pool)
    first, second = table_of(pool, tree, [1, 2]), table_of(pool, tree, [1, 2])
    pages = list(second.pages)
    first.share([1, 2])
    second.share([1, 2])
    assert second.pages == pages != first.pages
    second.release([1, 2])
    assert pool.free_pages == 6
    assert [node.page for node in tree.find([1, 2])] == first.pages
    first.release([1, 2])
    assert (pool.cached_pages, pool.used_pages) == (2, 0)


def test_forgotten_pages_are_free_when_their_last_user_lets_go():
    pool = PagePool(8, 1)
    tree = PrefixTree(pool)
    table_of(pool, tree, [1, 2, 3]).release([1, 2, 3])
    user = BlockTable(pool, tree)
    user.adopt([1, 2])
    tree.forget([1, 9])
    assert (tree.find([1, 2, 3]), pool.cached_pages, pool.used_pages) == ([], 0, 2)
    table_of(pool, tree, [1, 2]).release([1, 2])  # known anew, from other pages
    assert pool.cached_pages == 2
    user.release([1, 2])
    assert (pool.cached_pages, pool.used_pages, pool.free_pages) == (2, 0, 6)


def test_without_a_tree_nothing_is_kept():
    pool = PagePool(4, 1)
    table = BlockTable(pool)
    assert table.adopt([1, 2]) == 0
    table.extend(2)
    table.share([1, 2])
    table.release([1, 2])
    assert pool.free_pages == 4
