"""Pages whose content may be used again: a tree of the token sequences that they hold.

A node is one whole page of committed tokens that follow those of its parent; the keys and values of a page
depend on nothing but these tokens, since causal rows never run with the adapter. Whoever uses a node holds
all nodes above it too, so what nobody holds can be evicted from the leaves up, the longest unused first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from recguide.kv.pages import PagePool

Key = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Node:
    """A page in the tree.

    Attributes:
        key: its tokens.
        page: its id; −1 for the root, which has none.
        users: how many hold it.
        used: when it was last let go of, in the tree's own time.
        kept: whether it can still be found; what is forgotten goes with its last user.
    """

    key: Key
    page: int
    parent: Node | None
    users: int = 0
    used: int = 0
    kept: bool = True
    children: dict[Key, Node] = field(default_factory=dict[Key, "Node"])


class PrefixTree:
    """Keeps the pages of committed tokens for whoever continues them.

    Attributes:
        unused: pages that nobody holds; all of them can be evicted.
    """

    def __init__(self, pool: PagePool) -> None:
        self.page_size = pool.page_size
        self.unused = 0
        self.root = Node((), -1, None)
        self._pool = pool
        self._leaves: list[tuple[int, Node]] = []
        """A heap of leaves that were unused when they came here, by `used`; some no longer are."""
        self._time = 0
        pool.spare = self

    def find(self, tokens: Sequence[int]) -> list[Node]:
        """The nodes of the longest known beginning of `tokens`, whole pages only."""
        found: list[Node] = []
        node, size = self.root, self.page_size
        for start in range(0, len(tokens) - size + 1, size):
            child = node.children.get(tuple(tokens[start : start + size]))
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def hold(self, nodes: Sequence[Node]) -> None:
        """Keeps these nodes from being evicted; those above them have to be held too."""
        for node in nodes:
            if node.users == 0:
                self.unused -= 1
            node.users += 1

    def add(self, parent: Node, key: Key, page: int) -> Node:
        """A new node below one that is held, or below the root; it is held, and the page is the tree's."""
        node = Node(key, page, parent, users=1)
        parent.children[key] = node
        return node

    def let_go(self, nodes: Sequence[Node]) -> None:
        """Takes back a hold on these nodes, given from the root down."""
        for node in reversed(nodes):
            node.users -= 1
            if node.users > 0:
                continue
            if not node.kept:
                self._pool.give([node.page])
                continue
            self.unused += 1
            self._time += 1  # what lies deeper is older, and goes first
            node.used = self._time
            self._offer(node)

    def evict(self, count: int) -> None:
        """Gives `count` unused pages back to the pool, the longest unused first."""
        pages: list[int] = []
        while len(pages) < count:
            used, node = heappop(self._leaves)
            if not _is_unused_leaf(node) or node.used != used:
                continue
            pages.append(node.page)
            self._cut(node)
        self.unused -= count
        self._pool.give(pages)

    def forget(self, tokens: Sequence[int]) -> None:
        """Drops whatever is known of texts that share their first page with `tokens`.

        Those who hold such pages keep them until they let go.
        """
        found = self.find(tokens[: self.page_size])
        if not found:
            return
        self._cut(found[0])
        below = [found[0]]
        for node in below:
            below += node.children.values()
            node.kept = False
        spare = [node.page for node in below if node.users == 0]
        self.unused -= len(spare)
        self._pool.give(spare)

    def _cut(self, node: Node) -> None:
        assert node.parent is not None, "the root stays"
        del node.parent.children[node.key]
        node.kept = False
        self._offer(node.parent)

    def _offer(self, node: Node) -> None:
        """Remembers a node for eviction if it is a leaf that nobody holds."""
        if not _is_unused_leaf(node):
            return
        heappush(self._leaves, (node.used, node))
        if len(self._leaves) > 2 * self._pool.pages:  # more than half of it is stale
            self._leaves = [
                (used, leaf) for used, leaf in self._leaves if _is_unused_leaf(leaf) and leaf.used == used
            ]
            heapify(self._leaves)


def _is_unused_leaf(node: Node) -> bool:
    return node.kept and node.users == 0 and not node.children and node.parent is not None
