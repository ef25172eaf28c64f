"""Forwards timed alone: made-up ones, and those that an engine really ran."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

import torch

from recguide.engine.flight import Forward
from recguide.engine.runner import Runner
from recguide.kv.tables import BlockTable
from recguide.speculation import rows
from recguide.speculation.rows import Layout

CHUNK = 1024
PARTS = 8
"""Forwards of one graph that are timed, at most."""


class Stage:
    """Requests with cached prefixes on an idle runner, for forwards of any layout.

    Args:
        requests: how many; layouts name them by number.
        prefix: tokens that each has in the cache, random ones.
        room: tokens that the in-flight rows of each may have beyond it, `first_room` those of request 0.
    """

    def __init__(
        self, runner: Runner, *, requests: int, prefix: int, room: int, first_room: int | None = None
    ) -> None:
        self._runner = runner
        self._tables = [BlockTable(runner.pool) for _ in range(requests)]
        generator = torch.Generator().manual_seed(requests)
        vocabulary = runner.backbone.vocabulary.size
        for index, table in enumerate(self._tables):
            table.extend(prefix + (first_room or room if index == 0 else room))
            tokens: list[int] = torch.randint(vocabulary, (prefix,), generator=generator).tolist()
            for start in range(0, prefix, CHUNK):
                chunk = rows.prefill(0, start, tokens[start : start + CHUNK], picks=False)
                runner.forward(chunk.rows, [table.array])

    def time(self, layouts: Sequence[Layout], repeats: int) -> tuple[list[float], int | None]:
        """Milliseconds of so many runs of one forward, and its graph's query tokens.

        On a CPU, where there are no graphs, it is the wall time of the forward up to its logits, and None.
        """
        batch = [row for layout in layouts for row in layout.rows]
        tables = [table.array for table in self._tables[: len(layouts)]]
        if self._runner.backbone.kv_shape.device.type == "cuda":
            times, bucket = self._runner.time(batch, tables, repeats)
            return times, bucket.tokens
        times: list[float] = []
        for _ in range(repeats):
            began = time.perf_counter()
            self._runner.forward(batch, tables)
            times.append(1e3 * (time.perf_counter() - began))
        return times, None

    def close(self) -> None:
        """Gives the cache back."""
        for table in self._tables:
            table.release()


def alone_ms(runner: Runner, forwards: Sequence[Forward]) -> float | None:
    """What recorded forwards take as graphs alone, in all; None if any ran without one, or there are none.

    Forwards of one graph differ in the prefixes that they read. So those of each graph are put in the order
    of their prefix tokens and cut into a few equal parts, and the one in the middle of each part is timed
    over its own input and stands for the others of it. The runner must be idle.
    """
    of_bucket: defaultdict[object, list[Forward]] = defaultdict(list)
    for forward in forwards:
        if forward.bucket is None:
            return None
        of_bucket[forward.bucket].append(forward)
    times = [_graph_ms(runner, group) for group in of_bucket.values()]
    return sum(times) if times else None


def _graph_ms(runner: Runner, forwards: Sequence[Forward]) -> float:
    """What forwards of one graph take in all."""
    by_prefix = sorted(forwards, key=attrgetter("prefix_tokens"))
    parts = min(PARTS, len(by_prefix))
    edges = [part * len(by_prefix) // parts for part in range(parts + 1)]
    return sum(
        (end - start) * runner.time_graph(by_prefix[(start + end) // 2]) for start, end in pairwise(edges)
    )
