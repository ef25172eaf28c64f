"""Which pages of the KV cache are free, and which a request holds.

Pages are plain ids; nothing here touches memory, so the same accounting serves every cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
        self.free_pages = pages
        self._is_free = bytearray(b"\x01") * pages
        self._lowest = 0
        """No page below it is free."""

    def take(self, count: int, after: int | None = None) -> list[int]:
        """Takes `count` pages, going on behind page `after` where those are free.

        Raises OutOfPages, and takes none, if fewer are free.
        """
        if count > self.free_pages:
            raise OutOfPages(count, self.free_pages)
        self.free_pages -= count
        taken: list[int] = []
        if after is not None:
            page = after + 1
            while len(taken) < count and page < self.pages and self._is_free[page]:
                taken.append(page)
                self._is_free[page] = 0
                page += 1
        while len(taken) < count:
            page = self._is_free.find(1, self._lowest)
            taken.append(page)
            self._is_free[page] = 0
            self._lowest = page + 1
        return taken

    def give(self, pages: Sequence[int]) -> None:
        """Gives pages back.

        Raises RecGuideError, and gives none, for a page that is free already or not of this pool.
        """
        for page in pages:
            if not 0 <= page < self.pages:
                raise RecGuideError(f"KV cache: page {page} is not one of the pool's {self.pages}")
            if self._is_free[page]:
                raise RecGuideError(f"KV cache: page {page} was given back twice")
        if len(set(pages)) != len(pages):
            raise RecGuideError(f"KV cache: a page was given back twice in {list(pages)}")
        for page in pages:
            self._is_free[page] = 1
            self._lowest = min(self._lowest, page)
        self.free_pages += len(pages)


class BlockTable:
    """The pages of one request: token i lies in `pages[i // page_size]` at offset `i % page_size`."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self.pages: list[int] = []
        self._array = np.empty(16, np.int32)

    @property
    def array(self) -> NDArray[np.int32]:
        """`pages` as an array, kept up to date so that a forward need not convert it."""
        return self._array[: len(self.pages)]

    @property
    def capacity(self) -> int:
        """Tokens that fit in the pages held."""
        return len(self.pages) * self._pool.page_size

    def extend(self, length: int) -> None:
        """Holds pages for at least `length` tokens. Raises OutOfPages and changes nothing if they lack."""
        held = len(self.pages)
        missing = pages_for(length, self._pool.page_size) - held
        if missing > 0:
            self.pages += self._pool.take(missing, after=self.pages[-1] if self.pages else None)
            if len(self.pages) > len(self._array):
                self._array = np.resize(self._array, 2 * len(self.pages))
            self._array[held : len(self.pages)] = self.pages[held:]

    def rollback(self, length: int) -> None:
        """Gives back the whole pages beyond the first `length` tokens."""
        keep = pages_for(max(length, 0), self._pool.page_size)
        self._pool.give(self.pages[keep:])
        del self.pages[keep:]

    def release(self) -> None:
        """Gives every page back."""
        self.rollback(0)
