"""Forwards through CUDA graphs: captured once for each bucket, replayed over inputs in the same place.

A graph begins by copying its input to the device, and writes its output into memory of the host. Kernels do
both: an engine for copies would make the device wait before its first kernel and after its last one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.attention.packing import Flat
from recguide.engine.buckets import Bucket, Buckets
from recguide.engine.inputs import Inputs, Room
from recguide.engine.landing import Landing, Landings, pinned_words

MIB = 2**20
BLOCK = 2048
"""Bytes of an input that are copied at a time, four words by each thread of a program."""
WARM_UPS = 2
"""Runs before a capture: kernels are compiled, and libraries choose their workspaces."""

Run = Callable[[Inputs, Tensor | None], tuple[Tensor, Tensor]]
"""A forward over inputs: logits [W, vocab], and the words that the host reads: those given, if any are."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A captured forward.

    Attributes:
        logits: [W, vocab], valid from a replay until that of any graph.
        words: of its output, on the host, valid from a replay's end until the next of this graph.
    """

    graph: torch.cuda.CUDAGraph
    logits: Tensor
    words: NDArray[np.int32]


class Replays:
    """The graphs of one engine. They share their memory and their input buffer: one runs at a time.

    Args:
        run: what is captured.
        room: what fits into a bucket's input.
        buckets: which there are.
        landings: for outputs.
        device: the GPU.
    """

    def __init__(
        self,
        run: Run,
        room: Callable[[Bucket], Room],
        buckets: Buckets,
        landings: Landings,
        device: torch.device,
    ) -> None:
        self.buckets = buckets
        self._run = run
        self._room = room
        self._landings = landings
        self._device = device
        size = _whole(room(buckets.largest_bucket).columns().size)
        self._hosts = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
        self._turn = 0
        self._sent = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        """What graphs copy to the device."""
        self._sending = self._sent.numpy()
        self._input = torch.zeros(size, dtype=torch.uint8, device=device)
        self._inputs: dict[tuple[Bucket, int], Inputs] = {}
        self._graphs: dict[Bucket, Graph] = {}
        self._met: set[Bucket] = set()
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def bucket(self, flat: Flat) -> Bucket | None:
        """The bucket of these rows; None if they are too many."""
        return self.buckets.of(flat.tokens, flat.structure.use, flat.wanted)

    def inputs(self, bucket: Bucket) -> Inputs:
        """Where a bucket's next forward is filled in.

        The host's side is another one each time: what follows plain steps is made of what was filled in.
        """
        self._turn = 1 - self._turn
        key = (bucket, self._turn)
        if key not in self._inputs:
            self._inputs[key] = self._inputs_in(bucket, self._hosts[self._turn])
        return self._inputs[key]

    def own_inputs(self, bucket: Bucket) -> Inputs:
        """The same with a host's side that nobody else fills."""
        return self._inputs_in(bucket, torch.zeros(self._room(bucket).columns().size, dtype=torch.uint8))

    def _inputs_in(self, bucket: Bucket, host: Tensor) -> Inputs:
        room = self._room(bucket)
        return Inputs(room, room.columns(), host, self._input, bucket.use)

    def forward(self, bucket: Bucket, inputs: Inputs) -> tuple[Tensor, Landing]:
        """Logits, and output words, of these inputs of the bucket. The forward before must have landed.

        A bucket's first forward runs without a graph, its second one is captured: so a size that is met once
        costs no capture, and whatever compiles or chooses a workspace has done so before one.
        """
        inputs.write_to(self._sending)
        graph = self._graphs.get(bucket)
        first = graph is None
        if graph is None:
            if bucket not in self._met:
                self._met.add(bucket)
                self._bring(inputs.size)
                logits, output = self._run(inputs, None)
                return logits, replace(self._landings.fetch(output), first=True)
            graph = self._capture(bucket, inputs)
        graph.graph.replay()
        landing = self._landings.brought(graph.words)
        return graph.logits, replace(landing, first=True) if first else landing

    def prepare(self, bucket: Bucket) -> None:
        """Captures the bucket's graph before there is anything to run; overwrites the input."""
        if bucket in self._graphs:
            return
        inputs = self.inputs(bucket)
        inputs.clear()
        for _ in range(WARM_UPS):
            self._run(inputs, None)
        self._met.add(bucket)
        self._capture(bucket, inputs)

    def trial(self) -> int:
        """Bytes that graphs and the largest forward need, estimated high.

        The largest bucket may be captured late and also runs without a graph: each has memory of its own.
        """
        largest = self.buckets.largest_bucket
        inputs = self.inputs(largest)
        inputs.clear()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        self._run(inputs, None)
        torch.cuda.synchronize(self._device)
        forward = torch.cuda.max_memory_allocated(self._device) - before
        planned = list(self.buckets.at_start())
        free = [self._free_after(bucket) for bucket in planned[-2:]]
        # The first graph also brings what all of them share.
        return 2 * forward + 2 * len(planned) * max(MIB, free[0] - free[-1])

    def _free_after(self, bucket: Bucket) -> int:
        self.prepare(bucket)
        torch.cuda.synchronize(self._device)
        return torch.cuda.mem_get_info(self._device)[0]

    def time(self, bucket: Bucket, inputs: Inputs, repeats: int, steady_ms: float = 0.0) -> list[float]:
        """Milliseconds of so many replays, each alone, of what is filled in, after others of it for as long
        as `steady_ms`."""
        self.forward(bucket, inputs)[1].wait()
        graph = (self._graphs.get(bucket) or self._capture(bucket, inputs)).graph
        if steady_ms:
            (once,) = self.time(bucket, inputs, 1)
            for _ in range(int(steady_ms / once)):
                graph.replay()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        graph.replay()
        for event in events[:-1]:
            event.record()
            graph.replay()
        events[-1].record()
        events[-1].synchronize()
        return [before.elapsed_time(after) for before, after in pairwise(events)]

    def _capture(self, bucket: Bucket, inputs: Inputs) -> Graph:
        """Captures without `torch.cuda.graph`, which would first wait for the device and empty its caches."""
        here = torch.cuda.current_stream(self._device)
        graph = torch.cuda.CUDAGraph()
        words = pinned_words(inputs.output_words)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                self._bring(inputs.size)
                logits, _ = self._run(inputs, words)
            finally:
                graph.capture_end()
        here.wait_stream(self._stream)
        self._graphs[bucket] = Graph(graph, _borrowed(logits), words.numpy())
        return self._graphs[bucket]

    def _bring(self, size: int) -> None:
        """Copies so many bytes of what was sent to the device."""
        from recguide.engine.kernels.bring import bring

        source, target = (each[: _whole(size)].view(torch.int32) for each in (self._sent, self._input))
        bring(source, target, BLOCK // 4)


def _whole(size: int) -> int:
    """So many bytes in whole blocks."""
    return -(-size // BLOCK) * BLOCK


class _Memory:
    """Device memory that nobody owns, said in the way that libraries exchange arrays."""

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": {torch.float32: "<f4", torch.float64: "<f8"}[tensor.dtype],
            "data": (tensor.data_ptr(), False),
            "version": 2,
        }


def _borrowed(logits: Tensor) -> Tensor:
    """The same memory without holding it: the next graph may use it, as it runs after who reads it here."""
    return torch.as_tensor(_Memory(logits), device=logits.device)
