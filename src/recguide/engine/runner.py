"""Runs rows: packs them, reads and writes the KV cache, picks and settles where the logits are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.attention.packing import Flat, Tables, pack
from recguide.attention.recent import RecentWork, WorkLists
from recguide.core import AdapterUse, Backbone, PackedBatch, RecGuideError, Row
from recguide.engine.backends import Attention, attention_for
from recguide.engine.buckets import AT_START, Bucket, Buckets
from recguide.engine.docket import BY_HOST, Docket, docket_of
from recguide.engine.flight import Flight, Forward, Landed, Ready
from recguide.engine.inputs import Inputs
from recguide.engine.landing import Landings
from recguide.engine.replays import Replays
from recguide.engine.request import Sampling
from recguide.engine.rooms import Limits, bucket_room, inputs_alone
from recguide.engine.scheduler import Scheduled
from recguide.kv.cache import KVCache
from recguide.kv.pages import PagePool
from recguide.speculation.slots import Picker
from recguide.speculation.step import settle_step

ENDLESS = 2**31
"""Positions that no text has."""


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
        copy_pages: how tables may move; None where a forward may run meanwhile.
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
        # Without a picker forwards run when they land, so none runs while requests get their pages.
        self.copy_pages = self._cache.copy if picker is None else None
        self._attention = attention = attention_for(self._cache, backbone.heads, exact=exact)
        # What graphs call does not hold the runner, which holds them: else a dropped engine would keep its
        # memory until the next collection of cyclic garbage, which is seldom.
        self._run = run = partial(_settled, backbone, attention, picker)
        self._landings = Landings(shape.device)
        self._recent = RecentWork()
        self._replays: Replays | None = None
        if graphs is not None:
            self._replays = Replays(
                lambda inputs, words: run(inputs, inputs.batch, words),
                lambda bucket: bucket_room(bucket, graphs, attention, page_size),
                Buckets(graphs.tokens, adapter_uses(backbone)),
                self._landings,
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

    def launch(self, plan: Sequence[Scheduled]) -> Flight:
        """Starts the forward of a plan; without a picker it runs when it lands."""
        if self._picker is not None:
            return self.go(self.ready(plan))
        flat, tables = self._flat(plan)
        return Flight(
            plan,
            docket_of(plan, None)[0],
            flat.tokens,
            flat.prefix_tokens,
            perf_counter(),
            lambda: Landed(self.forward(flat.rows, tables), None),
            _nothing,
        )

    def ready(self, plan: Sequence[Scheduled], steps: Sequence[int] = (), *, moves: bool = False) -> Ready:
        """Packs a plan on the host, which may be done while another forward runs, but one plan at a time.

        `steps` of it are plain steps of requests that have a token on its way; if it `moves`, some rows are
        about to be `moved`.
        """
        flat, tables = self._flat(plan)
        bucket = None if self._replays is None else self._replays.bucket(flat)
        if self._replays is None or bucket is None:
            inputs = inputs_alone(plan, flat, tables, self._attention, self.pool.page_size, self._device)
        else:
            inputs = self._replays.inputs(bucket)
        docket = self._filled(inputs, plan, flat, tables, self._recent.lasting if moves else self._recent)
        # Some may be left to the host: the room for stop tokens is not the same in all inputs.
        settled = [docket.places[at] for at in steps if docket.places[at] != BY_HOST]
        if settled:
            inputs.count_down(settled)
        return Ready(plan, docket, flat, bucket, inputs, len(settled) == len(plan) and bucket is not None)

    def _flat(self, plan: Sequence[Scheduled]) -> tuple[Flat, list[NDArray[np.int32]]]:
        """A plan's rows, and its requests' block tables."""
        # Padding comes last and wants nothing, so that logits stand where the rows that are read say.
        rows = [row for scheduled in plan for row in scheduled.layout.rows]
        rows += [row for scheduled in plan for row in scheduled.layout.padding]
        tables = [scheduled.request.table.array for scheduled in plan]
        return Flat(rows, tables, self.pool.page_size), tables

    def _filled(
        self,
        inputs: Inputs,
        plan: Sequence[Scheduled],
        flat: Flat,
        tables: Sequence[NDArray[np.int32]],
        recent: WorkLists,
    ) -> Docket:
        """Fills an input with a plan; returns who decides what."""
        docket, judged = docket_of(plan, inputs.room.settle)
        sampling = [scheduled.request.sampling for scheduled in plan]
        inputs.fill(flat, tables, sampling, judged, recent)
        return docket

    def standing(self, plan: Sequence[Scheduled], inputs: Inputs | None = None) -> Ready | None:
        """Packs a plan of one request into an input of its own; None without a graph.

        `inputs` are such an input of a plan of the same shape, which nobody needs any more.
        """
        flat, tables = self._flat(plan)
        bucket = self._with_graphs.bucket(flat)
        if bucket is None:
            return None
        inputs = inputs or self._with_graphs.own_inputs(bucket)
        return Ready(plan, self._filled(inputs, plan, flat, tables, self._recent), flat, bucket, inputs)

    def ready_again(self, ready: Ready, grown: Iterable[int]) -> Ready:
        """Packs the plain steps that follow those of `ready`; `grown` are requests of it with new pages."""
        assert ready.bucket is not None, "steps run through graphs"
        inputs = self._with_graphs.inputs(ready.bucket)
        flat = ready.flat.moved(1)
        tables = ((at, ready.plan[at].request.table.array) for at in grown)
        inputs.fill_step(ready.inputs, flat, tables, self._recent)
        return replace(ready, flat=flat, inputs=inputs)

    def list_work(self, ready: Ready) -> int:
        """Lists the work of a forward of one request where its rows stand by now; returns `until`."""
        ready.inputs.move(ready.flat, self._recent)
        return self.until(ready)

    def until(self, ready: Ready) -> int:
        """The furthest prefix at which the work that is listed for a forward of one request is its work,
        whatever its stems; −1 if that is not known."""
        tiling, prefix = ready.inputs.room.batch.tiling, int(ready.flat.begins[1, 0])
        return ENDLESS if tiling is None else self._recent.until(ready.flat.structure, tiling, prefix)

    def moved(self, ready: Ready, by: NDArray[np.int32]) -> Ready:
        """The same forward with its rows [rows] so many positions further on."""
        flat = ready.flat.moved(by)
        ready.inputs.move(flat, self._recent)
        return Ready(ready.plan, ready.docket, flat, ready.bucket, ready.inputs, ready.steps)

    def go(self, ready: Ready) -> Flight:
        """Starts the forward. The one before must have landed."""
        began, inputs, bucket = perf_counter(), ready.inputs, ready.bucket
        if self._replays is None or bucket is None:
            inputs.send()
            logits, output = self._run(inputs, inputs.batch_with(ready.flat))
            landing = self._landings.fetch(output)
        else:
            logits, landing = self._replays.forward(bucket, inputs)
        if self.forwards is not None:
            self.forwards.append(_noted(ready))
        return Flight(
            ready.plan,
            ready.docket,
            ready.flat.tokens,
            ready.flat.prefix_tokens,
            began,
            lambda: Landed(logits, inputs.read(landing.wait())),
            landing.wait,
            ready if ready.steps else None,
            landing.first,
        )

    def refresh(self) -> None:
        """Does beforehand, while a forward runs, what the next ones would soon have to wait for."""
        self._recent.refresh()

    def tidy(self) -> None:
        """Gives back device memory that is held and not in use.

        What a forward had begun that failed is over then, so that the next may be filled in.
        """
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()

    # --- graphs ---------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def prepare(self, most: int = AT_START) -> None:
        """Captures the graphs that decoding needs, of so many query tokens at most, unless they are there. No
        request may be running.

        Raises RecGuideError if the adapter's graphs compute what those without it do.
        """
        graphs = self._replays
        if graphs is None:
            return
        for bucket in graphs.buckets.at_start(most):
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
    def most_in_graph(self) -> int:
        """Query tokens of a forward through a graph, at most; 0 without graphs."""
        return 0 if self._replays is None else self._replays.buckets.largest_bucket.tokens

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
        logits, landing = graphs.forward(*self._fill([row], [[0]]))
        landing.wait()
        return logits.clone()

    @torch.inference_mode()
    def time(
        self, rows: Sequence[Row], tables: Tables, repeats: int, steady_ms: float = 0.0
    ) -> tuple[list[float], Bucket]:
        """Milliseconds of so many replays of the graph of these rows, each alone, and its bucket; after
        others of it for as long as `steady_ms`.

        It overwrites the KV of the causal rows and the inputs that forwards are made ready in, so no request
        may be running.
        Raises RecGuideError without graphs, or for rows beyond the largest one.
        """
        bucket, inputs = self._fill(rows, tables)
        return self._with_graphs.time(bucket, inputs, repeats, steady_ms), bucket

    @torch.inference_mode()
    def time_graph(self, forward: Forward, repeats: int = 5) -> float:
        """Milliseconds (median) of a recorded forward's graph alone, over the same input.

        It overwrites KV, so no request may be running. Raises RecGuideError if it ran without a graph.
        """
        if forward.bucket is None or forward.input is None:
            raise RecGuideError("graphs: this forward ran without one")
        inputs = self._with_graphs.inputs(forward.bucket)
        inputs.restore(forward.input)
        return median(self._with_graphs.time(forward.bucket, inputs, repeats))

    def _fill(self, rows: Sequence[Row], tables: Tables) -> tuple[Bucket, Inputs]:
        """Writes rows without requests, whose picks are greedy, into an input of their bucket."""
        flat = Flat(rows, tables, self.pool.page_size)
        bucket = self._with_graphs.bucket(flat)
        if bucket is None:
            raise RecGuideError(f"graphs: there is none for {flat.tokens} query tokens")
        greedy = [Sampling(0, 0.0)] * len(tables)
        inputs = self._with_graphs.inputs(bucket)
        inputs.fill(flat, tables, greedy, ())
        return bucket, inputs

    @property
    def _with_graphs(self) -> Replays:
        if self._replays is None:
            raise RecGuideError("graphs: this engine runs without any")
        return self._replays


def adapter_uses(backbone: Backbone) -> tuple[AdapterUse, ...]:
    return tuple(AdapterUse) if backbone.adapted else (AdapterUse.NONE,)


@torch.inference_mode()
def _settled(
    backbone: Backbone,
    attention: Attention,
    picker: Picker | None,
    inputs: Inputs,
    batch: PackedBatch,
    output: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A forward over filled inputs: its logits, and the words of its output, which may be given."""
    assert picker is not None, "without one the host picks"
    inputs.place()
    logits = backbone.forward(batch, attention.plan(batch))
    picks = picker(logits, inputs.slots)
    if output is None:
        output = torch.empty(inputs.output_words, dtype=torch.int32, device=logits.device)
    settle_step(picks, inputs.settle, output)
    return logits, output


def _nothing() -> None: ...


def _noted(ready: Ready) -> Forward:
    plan = ready.plan
    return Forward(
        bucket=ready.bucket,
        phases=Counter(scheduled.layout.phase for scheduled in plan),
        by_host=ready.docket.places.count(BY_HOST),
        query_tokens=ready.flat.tokens,
        wanted=ready.flat.wanted,
        prefix_tokens=ready.flat.prefix_tokens,
        input=None if ready.bucket is None else ready.inputs.saved(),
    )
