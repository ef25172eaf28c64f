"""Which CUDA graph runs a batch: graphs exist for some sizes, and a batch is padded up to the next one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from recguide.core import AdapterUse

QUERY_TOKENS = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256),
    *(320, 384, 512, 640, 768, 1024),
)
"""Steps that are fine where a forward is memory-bound and every padding token is nearly free anyway, and that
waste a quarter at most where it is not. 448 is none: the 8B shape takes 16.6 ms there on an H200, and 14.0 at
512, as the vendor's library is poor at that width."""

AT_START = 256
"""Graphs up to it are captured at start-up, larger ones when they are needed again."""

WANTED = (64, 256)
"""Logits of a batch beyond AT_START whose tokens are mostly prefill; else there is room for a logit of every
token: that makes a small one hardly slower, and its graph is there."""


class Bucket(NamedTuple):
    """What tells graphs apart: padded query tokens, the adapter's use, and padded wanted logits."""

    tokens: int
    use: AdapterUse
    wanted: int

    def __str__(self) -> str:
        return f"N={self.tokens} W={self.wanted} adapter={self.use.value}"


class Buckets:
    """The buckets of one engine.

    Attributes:
        most: query tokens of a batch; there are graphs up to the size that holds it.
        sizes: those below that one, and it.
        uses: what the adapter may do here; NONE alone for a model without one.
    """

    def __init__(self, most: int, uses: tuple[AdapterUse, ...]) -> None:
        self.sizes = QUERY_TOKENS[: bisect_left(QUERY_TOKENS, most) + 1]
        self.most, self.uses = most, uses

    @property
    def largest_bucket(self) -> Bucket:
        """The one with the most of everything."""
        return Bucket(self.sizes[-1], self.uses[-1], self.sizes[-1])

    def of(self, tokens: int, use: AdapterUse, wanted: int) -> Bucket | None:
        """The bucket of a batch; None if it is too large for any."""
        sizes = self.sizes
        at = bisect_left(sizes, tokens)
        if at == len(sizes):
            return None
        size = sizes[at]
        room = size if size <= AT_START else next((few for few in WANTED if wanted <= few), size)
        return Bucket(size, use if use in self.uses else AdapterUse.NONE, room)

    def at_start(self, most: int = AT_START) -> Iterator[Bucket]:
        """Buckets of decoding, of so many query tokens at most, the largest first: they share memory, and its
        size is then known at once."""
        for size in reversed(self.sizes):
            if size <= most:
                for use in self.uses:
                    for room in (size, *(WANTED if size > AT_START else ())):
                        yield Bucket(size, use, room)
