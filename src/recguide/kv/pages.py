"""Which pages of the KV cache are free, and which a request holds.

Pages are plain ids; nothing here touches memory, so the same accounting serves every cache.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from recguide.core import RecGuideError


class OutOfPages(RecGuideError):  # noqa: N818 - it names the state, like StopIteration
    """The pool has fewer free pages than were asked for; nothing was taken."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(
            f"KV cache: {wanted} pages wanted, {free} free; run fewer requests or raise kv_cache_tokens"
        )
        self.wanted = wanted
        self.free = free


def pages_for(length: int, page_size: int) -> int:
    """Pages that hold `length` tokens."""
    return -(-length // page_size)


class PagePool:
    """The free pages of a cache, lowest ids first.

    Low and adjacent ids are preferred because a request whose pages follow one another can be read as a view.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 1 or page_size < 1:
            raise RecGuideError(
                f"KV cache: needs at least one page and one token a page, got {pages} x {page_size}"
            )
        self.pages = pages
        self.page_size = page_size
        self._free = list(range(pages))

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def take(self, count: int, after: int | None = None) -> list[int]:
        """Takes `count` pages, going on behind page `after` where those are free.

        Raises OutOfPages, and takes none, if fewer are free.
        """
        if count > len(self._free):
            raise OutOfPages(count, len(self._free))
        taken: list[int] = []
        if after is not None:
            start = bisect_left(self._free, after + 1)
            end = start
            while (
                end - start < count and end < len(self._free) and self._free[end] == after + 1 + end - start
            ):
                end += 1
            taken = self._free[start:end]
            del self._free[start:end]
        rest = count - len(taken)
        taken += self._free[:rest]
        del self._free[:rest]
        return taken

    def give(self, pages: Sequence[int]) -> None:
        """Gives pages back.

        Raises RecGuideError, and gives none, for a page that is free already or not of this pool.
        """
        for page in pages:
            if not 0 <= page < self.pages:
                raise RecGuideError(f"KV cache: page {page} is not one of the pool's {self.pages}")
            if self._is_free(page):
                raise RecGuideError(f"KV cache: page {page} was given back twice")
        if len(set(pages)) != len(pages):
            raise RecGuideError(f"KV cache: a page was given back twice in {list(pages)}")
        for page in pages:
            insort(self._free, page)

    def _is_free(self, page: int) -> bool:
        at = bisect_left(self._free, page)
        return at < len(self._free) and self._free[at] == page


class BlockTable:
    """The pages of one request: token i lies in `pages[i // page_size]` at offset `i % page_size`."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self.pages: list[int] = []

    @property
    def capacity(self) -> int:
        """Tokens that fit in the pages held."""
        return len(self.pages) * self._pool.page_size

    def extend(self, length: int) -> None:
        """Holds pages for at least `length` tokens. Raises OutOfPages and changes nothing if they lack."""
        missing = pages_for(length, self._pool.page_size) - len(self.pages)
        if missing > 0:
            self.pages += self._pool.take(missing, after=self.pages[-1] if self.pages else None)

    def rollback(self, length: int) -> None:
        """Gives back the whole pages beyond the first `length` tokens."""
        keep = pages_for(max(length, 0), self._pool.page_size)
        self._pool.give(self.pages[keep:])
        del self.pages[keep:]

    def release(self) -> None:
        """Gives every page back."""
        self.rollback(0)
