"""Which pages a request holds: those that it shares with others first, then its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from recguide.kv.pages import PagePool, pages_for
from recguide.kv.prefix_tree import Node, PrefixTree

CopyPages = Callable[[Sequence[int], int], None]
"""Copies what some pages hold to as many others, which follow one another from a page on."""


class BlockTable:
    """The pages of one request: token i lies in `pages[i // page_size]` at offset `i % page_size`.

    Args:
        pool: where pages come from.
        tree: where whole pages of committed tokens are shared; None shares nothing.
        copy: how pages are copied; None where that is not worth it, or where a forward may run meanwhile.

    Attributes:
        array: `pages` as an array, kept up to date so that a forward need not convert it.
        capacity: tokens that fit in the pages held.
    """

    def __init__(self, pool: PagePool, tree: PrefixTree | None = None, copy: CopyPages | None = None) -> None:
        self._pool = pool
        self._tree = tree
        self._copy = copy
        self._nodes: list[Node] = []
        """Of the first pages, which are the tree's and may be others' too; nothing is written there."""
        self.pages: list[int] = []
        self.capacity = 0
        self._room = np.empty(16, np.int32)
        self.array: NDArray[np.int32] = self._room[:0]

    def adopt(self, tokens: Sequence[int]) -> int:
        """An empty table takes the pages of the longest known beginning of `tokens`; returns its length."""
        assert not self.pages, "only an empty table takes what is known"
        if self._tree is None:
            return 0
        self._nodes = self._tree.find(tokens)
        self._tree.hold(self._nodes)
        self._append([node.page for node in self._nodes])
        return self.capacity

    def extend(self, length: int) -> None:
        """Holds pages for at least `length` tokens. Raises OutOfPages and changes nothing if they lack."""
        missing = pages_for(length, self._pool.page_size) - len(self.pages)
        if missing > 0:
            self._append(self._pool.take(missing, after=self.pages[-1] if self.pages else None))

    def share(self, tokens: Sequence[int]) -> None:
        """Lets others use the whole pages of these committed tokens, the table's from its first on.

        Where another's pages already hold the same, the rest stays this table's own.
        """
        if self._tree is not None:
            self._share(self._tree, tokens)

    def unite(self) -> None:
        """Moves to pages that follow one another, where someone can copy and there are many free ones.

        Else whoever reads them as a view would copy them together for every forward. What the table shared
        stays known, and is no longer the table's.
        """
        pages, copy = self.pages, self._copy
        if copy is None or all(after == page + 1 for page, after in pairwise(pages)):
            return
        start = self._pool.take_run(len(pages))
        if start is None:
            return
        copy(pages, start)
        self.release()
        self._append(range(start, start + len(pages)))

    def release(self, tokens: Sequence[int] = ()) -> None:
        """Gives every page back; whole pages of the committed `tokens` stay known."""
        own = self.pages[len(self._nodes) :]
        if self._tree is not None:
            if tokens:
                own = self._leave(self._tree, tokens)
            self._tree.let_go(self._nodes)
        self._pool.give(own)
        self._nodes, self.pages = [], []
        self._note(0)

    def _share(self, tree: PrefixTree, tokens: Sequence[int]) -> None:
        """Adds whole pages to the tree until it has another's there."""
        size = self._pool.page_size
        parent = self._nodes[-1] if self._nodes else tree.root
        for i in range(len(self._nodes), len(tokens) // size):
            key = tuple(tokens[i * size : (i + 1) * size])
            if not parent.kept or key in parent.children:
                return
            parent = tree.add(parent, key, self.pages[i])
            self._nodes.append(parent)

    def _leave(self, tree: PrefixTree, tokens: Sequence[int]) -> list[int]:
        """Adds all whole pages that the tree does not have; returns those that it did not take."""
        size, own = self._pool.page_size, []
        while True:
            self._share(tree, tokens)
            at = len(self._nodes)
            parent = self._nodes[-1] if self._nodes else tree.root
            if not parent.kept or (at + 1) * size > len(tokens):
                return own + self.pages[at:]
            other = parent.children[tuple(tokens[at * size : (at + 1) * size])]
            tree.hold([other])
            own.append(self.pages[at])
            self._nodes.append(other)

    def _append(self, pages: Sequence[int]) -> None:
        held = len(self.pages)
        self.pages += pages
        if len(self.pages) > len(self._room):
            self._room = np.resize(self._room, 2 * len(self.pages))
        self._room[held : len(self.pages)] = pages
        self._note(len(self.pages))

    def _note(self, held: int) -> None:
        self.array = self._room[:held]
        self.capacity = held * self._pool.page_size
