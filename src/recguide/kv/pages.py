"""Which pages of the KV cache are free, in use, or kept for their content alone.

Pages are plain ids; nothing here touches memory, so the same accounting serves every cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from recguide.core import RecGuideError


class OutOfPages(RecGuideError):  # noqa: N818 - it names the state, like StopIteration
    """The pool can give fewer pages than were asked for; nothing was taken."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(
            f"KV cache: {wanted} pages wanted, {free} free; run fewer requests or raise kv_cache_tokens"
        )
        self.wanted = wanted
        self.free = free


def pages_for(length: int, page_size: int) -> int:
    """Pages that hold `length` tokens."""
    return -(-length // page_size)


class Spare(Protocol):
    """Pages that nobody uses and that are kept for what they hold, until the pool lacks free ones."""

    @property
    def unused(self) -> int:
        """How many there are."""
        ...

    def evict(self, count: int) -> None:
        """Gives so many of them back to the pool."""
        ...


class PagePool:
    """The pages of a cache; every one is free, spare, or used.

    Free ones are taken lowest ids first. Low and adjacent ids are preferred because a request whose pages
    follow one another can be read as a view.

    Attributes:
        free_pages: pages that hold nothing.
        spare: who keeps pages that nobody uses; None if nobody does.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 1 or page_size < 1:
            raise RecGuideError(
                f"KV cache: needs at least one page and one token a page, got {pages} x {page_size}"
            )
        self.pages = pages
        self.page_size = page_size
        self.free_pages = pages
        self.spare: Spare | None = None
        self._is_free = bytearray(b"\x01") * pages
        self._lowest = 0
        """No page below it is free."""

    @property
    def cached_pages(self) -> int:
        """Pages that nobody uses and that hold what may be used again."""
        return 0 if self.spare is None else self.spare.unused

    @property
    def available_pages(self) -> int:
        """Pages that can be taken."""
        return self.free_pages + self.cached_pages

    @property
    def used_pages(self) -> int:
        """Pages that requests hold."""
        return self.pages - self.available_pages

    def take(self, count: int, after: int | None = None) -> list[int]:
        """Takes `count` pages, going on behind page `after` where those are free.

        Where free ones lack, spare ones are evicted. Raises OutOfPages, and takes none, if both are too few.
        """
        missing = count - self.free_pages
        if missing > 0:
            if self.spare is None or missing > self.spare.unused:
                raise OutOfPages(count, self.available_pages)
            self.spare.evict(missing)
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

    def take_run(self, count: int) -> int | None:
        """Takes `count` free pages that follow one another, with as many free ones behind them to grow into.

        Returns the first of them, or None, and takes none, if there is no such place.
        """
        start = self._is_free.find(b"\x01" * (2 * count), self._lowest)
        if start < 0:
            return None
        self._is_free[start : start + count] = bytes(count)
        self.free_pages -= count
        return start

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
