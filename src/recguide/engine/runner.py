"""Runs rows: packs them, reads and writes the KV cache, picks and settles where the logits are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

from recguide.attention.packing import BatchShape, Flat, Tables, pack
from recguide.attention.recent import RecentWork
from recguide.core import AdapterUse, Backbone, PackedBatch, RecGuideError, Row
from recguide.engine.backends import attention_for
from recguide.engine.buckets import Bucket, Buckets
from recguide.engine.docket import BY_HOST, Docket, docket_of, room_for
from recguide.engine.flight import Flight, Forward, Landed
from recguide.engine.inputs import Inputs, Room
from recguide.engine.landing import Landing
from recguide.engine.replays import Replays
from recguide.engine.request import Sampling
from recguide.engine.scheduler import Scheduled
from recguide.kv.cache import KVCache
from recguide.kv.pages import PagePool, pages_for
from recguide.speculation.slots import Picker
from recguide.speculation.step import SettleShape, settle_step


@dataclass(frozen=True, slots=True)
class Limits:
    """What CUDA graphs have room for.

    Attributes:
        tokens: query tokens of a forward; larger ones run without a graph.
        requests: requests of a forward.
        length: tokens of a request.
        block, stops, branches: slots of a block, stop tokens and branches of a request that the device
            settles; others are left to the host.
    """

    tokens: int
    requests: int
    length: int
    block: int = 32
    stops: int = 6
    branches: int = 16


class Runner:
    """A backbone with its KV cache.

    Args:
        backbone: the model.
        pages, page_size: size of the KV cache; one page holds `page_size` tokens.
        picker: picks where the logits are; None leaves all picks to the host.
        exact: whether attention does not depend on what else runs.
        graphs: what CUDA graphs have room for; None runs without them.

    Attributes:
        pool: the KV cache's pages.
        forwards: what has been launched, if someone asked for it.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        pages: int,
        page_size: int,
        picker: Picker | None = None,
        exact: bool = False,
        graphs: Limits | None = None,
    ) -> None:
        shape = backbone.kv_shape
        self.backbone = backbone
        self.pool = PagePool(pages, page_size)
        self.forwards: list[Forward] | None = None
        self._picker = picker
        self._device = shape.device
        self._cache = KVCache(shape, pages, page_size)
        self._attention = attention_for(self._cache, backbone.heads, exact=exact)
        self._landing = Landing(shape.device)
        self._recent = RecentWork()
        self._replays: Replays | None = None
        if graphs is not None:
            buckets = Buckets(graphs.tokens, _adapter_uses(backbone))
            self._replays = Replays(
                lambda inputs: self._run(inputs, inputs.batch),
                partial(self._room, graphs),
                buckets,
                shape.device,
            )

    # --- rows in, logits out --------------------------------------------------------------------------------

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row], tables: Tables) -> Tensor:
        """Logits of the rows' wanted slots, [W, vocab], in the order of the rows and their slots."""
        tiling = self._attention.tiling(sum(len(row.tokens) for row in rows))
        batch = pack(rows, tables, self.pool.page_size, self._device, tiling)
        return self.backbone.forward(batch, self._attention.plan(batch))

    # --- requests in, picks and verdicts out ----------------------------------------------------------------

    @torch.inference_mode()
    def launch(self, plan: Sequence[Scheduled]) -> Flight:
        """Starts the forward of a plan. The one before must have landed: it read the same memory."""
        rows = [row for scheduled in plan for row in scheduled.layout.rows]
        tables = [scheduled.request.table.array for scheduled in plan]
        if self._picker is None:
            return Flight(plan, docket_of(plan, None), lambda: Landed(self.forward(rows, tables), None))
        flat = Flat(rows, tables, self.pool.page_size)
        graphs = self._replays
        bucket = None if graphs is None else graphs.bucket(flat)
        if graphs is None or bucket is None:
            inputs = self._inputs_for(plan, flat, tables)
        else:
            inputs = graphs.inputs(bucket)
        docket = docket_of(plan, inputs.room.settle)
        sampling = [scheduled.request.sampling for scheduled in plan]
        inputs.fill(flat, tables, self.pool.page_size, sampling, docket.judged, self._recent)
        if graphs is None or bucket is None:
            logits, output = self._run(inputs, inputs.batch_with(flat))
        else:
            logits, output = graphs.forward(bucket)
        words = self._landing.fetch(output)
        if self.forwards is not None:
            self.forwards.append(_note(plan, docket, flat, bucket, inputs))
        return Flight(plan, docket, lambda: Landed(logits, inputs.read(self._landing.wait(words))))

    def _run(self, inputs: Inputs, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """A forward over filled inputs: its logits, and the words of its output."""
        assert self._picker is not None, "without one the host picks"
        logits = self.backbone.forward(batch, self._attention.plan(batch))
        picks = self._picker(logits, inputs.slots)
        words = inputs.room.settle.output_words(inputs.room.batch.wanted)
        output = torch.empty(words, dtype=torch.int32, device=self._device)
        settle_step(picks, inputs.settle, output)
        return logits, output

    def _inputs_for(self, plan: Sequence[Scheduled], flat: Flat, tables: Tables) -> Inputs:
        """Inputs for one forward alone."""
        batch = BatchShape(
            tokens=flat.tokens,
            wanted=max(1, len(flat.wanted_row)),
            requests=len(tables),
            pages=max(map(len, tables)),
            tiling=self._attention.tiling(flat.tokens),
        )
        room = Room(batch, room_for(plan))
        columns = room.columns()
        on_gpu = self._device.type == "cuda"
        host = torch.zeros(columns.size, dtype=torch.uint8, pin_memory=on_gpu)
        return Inputs(room, columns, host, torch.empty_like(host, device=self._device) if on_gpu else host)

    def _room(self, limits: Limits, bucket: Bucket) -> Room:
        requests = min(bucket.tokens, limits.requests)
        batch = BatchShape(
            tokens=bucket.tokens,
            wanted=bucket.wanted,
            requests=requests,
            pages=pages_for(limits.length, self.pool.page_size),
            tiling=self._attention.tiling(bucket.tokens),
        )
        settle = SettleShape(
            requests=requests,
            block=min(bucket.tokens, limits.block),
            stops=limits.stops,
            branches=max(1, min(bucket.tokens // 2, limits.branches)),
        )
        return Room(batch, settle)

    # --- graphs ---------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def prepare(self) -> None:
        """Captures the graphs that decoding needs.

        Raises RecGuideError if the adapter's graphs compute what those without it do.
        """
        graphs = self._replays
        if graphs is None:
            return
        for bucket in graphs.buckets.at_start():
            graphs.prepare(bucket)
        if AdapterUse.ALL in graphs.buckets.uses:
            bare, adapted = (self._draft_logits(graphs, use) for use in (AdapterUse.NONE, AdapterUse.ALL))
            if torch.equal(bare, adapted):
                raise RecGuideError(
                    "adapter: CUDA graphs of drafts give the same logits with and without it; its matrices "
                    "are zero or its graphs were captured without it"
                )

    @torch.inference_mode()
    def trial(self) -> int:
        """Bytes that graphs and the largest forward need, estimated high; leaves graphs behind.

        A large bucket may be captured late and also runs without a graph, each time with memory of its own.
        """
        graphs = self._replays
        return 0 if graphs is None else graphs.trial()

    @property
    def has_graphs(self) -> bool:
        return self._replays is not None

    @property
    def logits_bytes(self) -> int:
        """The largest logits of a forward through a graph."""
        if self._replays is None:
            return 0
        return 4 * self._replays.buckets.largest_bucket.wanted * self.backbone.vocabulary.size

    def _draft_logits(self, graphs: Replays, use: AdapterUse) -> Tensor:
        """Logits of a draft row by a graph with or without the adapter."""
        slots = range(min(8, graphs.buckets.most))
        tokens = tuple(slot % self.backbone.vocabulary.size for slot in slots)
        row = Row(0, 0, tokens, causal=False, adapter=use is AdapterUse.ALL, wanted=slots)
        return graphs.forward(self._fill([row], [[0]]))[0].clone()

    @torch.inference_mode()
    def time(self, rows: Sequence[Row], tables: Tables, repeats: int) -> tuple[list[float], Bucket]:
        """Milliseconds of so many replays of the graph of these rows, each alone, and its bucket.

        It may run at any time between steps, but overwrites the KV of the causal rows.
        Raises RecGuideError without graphs, or for rows beyond the largest one.
        """
        bucket = self._fill(rows, tables)
        return self._with_graphs.time(bucket, repeats), bucket

    @torch.inference_mode()
    def time_graph(self, forward: Forward, repeats: int = 5) -> float:
        """Milliseconds (median) of a recorded forward's graph alone, over the same input.

        It overwrites KV, so no request may be running. Raises RecGuideError if it ran without a graph.
        """
        if forward.bucket is None or forward.input is None:
            raise RecGuideError("graphs: this forward ran without one")
        self._with_graphs.inputs(forward.bucket).restore(forward.input)
        return median(self._with_graphs.time(forward.bucket, repeats))

    def _fill(self, rows: Sequence[Row], tables: Tables) -> Bucket:
        """Writes rows without requests, whose picks are greedy, into the input of their bucket."""
        flat = Flat(rows, tables, self.pool.page_size)
        bucket = self._with_graphs.bucket(flat)
        if bucket is None:
            raise RecGuideError(f"graphs: there is none for {flat.tokens} query tokens")
        greedy = [Sampling(0, 0.0)] * len(tables)
        self._with_graphs.inputs(bucket).fill(flat, tables, self.pool.page_size, greedy, ())
        return bucket

    @property
    def _with_graphs(self) -> Replays:
        if self._replays is None:
            raise RecGuideError("graphs: this engine runs without any")
        return self._replays


def _adapter_uses(backbone: Backbone) -> tuple[AdapterUse, ...]:
    return tuple(AdapterUse) if backbone.adapted else (AdapterUse.NONE,)


def _note(
    plan: Sequence[Scheduled], docket: Docket, flat: Flat, bucket: Bucket | None, inputs: Inputs
) -> Forward:
    return Forward(
        bucket=bucket,
        phases=Counter(scheduled.layout.phase for scheduled in plan),
        by_host=docket.places.count(BY_HOST),
        query_tokens=flat.tokens,
        wanted=len(flat.wanted_row),
        prefix_tokens=sum(scheduled.layout.rows[0].prefix for scheduled in plan),
        input=None if bucket is None else inputs.saved(),
    )
