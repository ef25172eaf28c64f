"""Forwards of an idle engine, laid out as rounds lay them out and timed for a cost table."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import torch

from recguide.attention.packing import Tables
from recguide.bench.profile import Point, Profile, expected_s, grid, profile
from recguide.core import Row
from recguide.engine import tables
from recguide.engine.buckets import QUERY_TOKENS
from recguide.engine.engine import Engine
from recguide.engine.runner import Runner
from recguide.engine.tables import Identity
from recguide.guidance.conditions import Conditions
from recguide.kv.tables import BlockTable
from recguide.models.loading import Model
from recguide.models.progress import Progress, ignore_progress
from recguide.speculation import rows
from recguide.speculation.rows import Branch, BranchKind

WARM_UPS, REPEATS = 2, 11
STEADY_MS = 400.0
"""Forwards run for so long before they are timed: at 128 query tokens and more a GPU soon draws all the power
that it may, and goes on at a lower clock. The 14B shape takes 5 to 11 % longer then on an H200."""
TOKEN = 0
"""Fed everywhere: what a forward costs does not depend on the text."""


class ForwardTimer:
    """Milliseconds of forwards over whatever the cache holds: a `profile.Timer`.

    Args:
        runner: idle; its cache must hold what the points ask for. Where it has CUDA graphs, those are timed.
        adapter: whether branches run the draft adapter.
    """

    def __init__(self, runner: Runner, *, adapter: bool, repeats: int = REPEATS) -> None:
        self._runner = runner
        self._adapter = adapter
        self._repeats = repeats

    def __call__(self, point: Point) -> Sequence[float]:
        with self._laid_out(point) as (batch, tables):
            if self._runner.has_graphs:
                return self._runner.time(batch, tables, self._repeats, STEADY_MS)[0]
            for _ in range(WARM_UPS):
                self._once(batch, tables)
            return [self._once(batch, tables) for _ in range(self._repeats)]

    def expected_s(self, points: Sequence[Point]) -> float:
        """About how many seconds all points take; not for graphs, which have to be made first."""
        return expected_s(self._single, points, WARM_UPS + self._repeats)

    def _single(self, point: Point) -> float:
        with self._laid_out(point) as (batch, tables):
            return self._once(batch, tables)

    def _once(self, batch: Sequence[Row], tables: Tables) -> float:
        began = time.perf_counter()
        logits = self._runner.forward(batch, tables)
        if logits.is_cuda:
            torch.cuda.synchronize(logits.device)
        return (time.perf_counter() - began) * 1e3

    @contextmanager
    def _laid_out(self, point: Point) -> Generator[tuple[list[Row], Tables], None, None]:
        """The point's rows, in pages that are given back afterwards."""
        tables = [BlockTable(self._runner.pool) for _ in range(point.requests)]
        try:
            batch: list[Row] = []
            for request, table in enumerate(tables):
                own = point.tokens // point.requests + (request < point.tokens % point.requests)
                table.extend(point.prefix + own)
                batch += self._rows(request, point.prefix, own)
            yield batch, [table.array for table in tables]
        finally:
            for table in tables:
                table.release()

    def _rows(self, request: int, prefix: int, own: int) -> Sequence[Row]:
        """A block of half the tokens and a continuation of the others; one block where they are few."""
        mask = self._runner.backbone.vocabulary.mask
        if own == 1:
            return rows.step(request, prefix, TOKEN).rows
        half = own // 2 if mask is not None and own >= 4 else 0
        block = (TOKEN,) * (own - half)
        branches = (Branch(BranchKind.CONTINUATION, len(block), half),) if half else ()
        layout = rows.verify(request, prefix, block, branches, mask=mask or TOKEN, adapter=self._adapter)
        return layout.rows


def sizes(largest: int) -> tuple[int, ...]:
    """Query tokens to time: those that CUDA graphs are made for, and the largest asked for."""
    return (*(n for n in QUERY_TOKENS if n < largest), largest)


def measure(
    engine: Engine,
    model: Model,
    largest: int,
    progress: Progress = ignore_progress,
    expect: Callable[[float], None] = lambda _: None,
) -> Profile:
    """The cost table of an idle engine's model on its device, up to `largest` query tokens of a forward.

    No larger forward is timed than the engine runs, and none of more requests. Before it begins, `expect` is
    told about how many seconds it will take; where CUDA graphs run it takes few, and nothing is told.

    Raises ImplausibleProfile if the times make no table.
    """
    runner = engine.runner
    points = grid(
        sizes(min(largest, engine.config.max_batch_tokens)),
        most_requests=engine.config.max_running,
        pages=runner.pool.free_pages,
        page_size=runner.pool.page_size,
        most_positions=model.max_positions,
    )
    timer = ForwardTimer(runner, adapter=model.adapter is not None)
    if not runner.has_graphs:
        expect(timer.expected_s(points))
    return profile(timer, points, conditions_of(engine, model), stepped=runner.has_graphs, progress=progress)


def conditions_of(engine: Engine, model: Model) -> Conditions:
    """What a table holds for that this engine can use."""
    identity = Identity(model.name, model.fingerprint)
    return tables.conditions_of(engine.runner, identity, exact=engine.config.exact)
