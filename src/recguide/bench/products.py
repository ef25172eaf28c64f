"""How long a decoder's products take by tile, over weights that no cache holds.

What is timed is what a layer waits for: an RMSNorm and the product of its result, or a product whose sums the
next norm adds up, one after the other in a CUDA graph over different weights.
"""

# Triton ships no types.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from itertools import product as combinations
from statistics import median

import torch
from torch import Tensor

from recguide.models.config import ModelConfig
from recguide.models.kernels import launch
from recguide.models.kernels.multiply import Detour, Tile, multiply
from recguide.models.kernels.tensors import empty_rows
from recguide.models.ops.fast import SMALL_BYTES
from recguide.models.ops.tiles import Kind, bucket
from recguide.models.ops.torch_ops import head_logits

EPS = 1e-5
Launch = Callable[[int], object]
"""Runs one product over the weights of that number."""

WEIGHT_BYTES = 192 * 2**20
"""Of all copies of a matrix: several times what caches hold."""
COPIES = (4, 16)
CACHE_BYTES = 256 * 2**20
"""What is read between replays, so that no weight is left in a cache."""
CAUSAL = (16, 13)
"""Causal tokens of mixed forwards, in turn: a block of 16, and one that ends within a tile."""
FILLING = (66, 132, 264, 396)
"""Programs that splits aim at: from half a program to three on each multiprocessor of an H200."""
STAGES = (2, 3, 4, 5, 6, 8)
AHEAD = (0, 2, 4, 8)
MOST_BLOCKS = 3
"""Blocks of tokens, each of which reads the matrix again, that a large matrix is worth."""


@dataclass(frozen=True, slots=True)
class Product:
    """[N, inputs] · [inputs, outputs] in bfloat16; twice as many outputs of gates and ups."""

    kind: Kind
    inputs: int
    outputs: int

    @property
    def nbytes(self) -> int:
        return 2 * self.inputs * self.outputs * (2 if self.kind == "gated" else 1)

    @property
    def small(self) -> bool:
        """Whether tokens that an adapter touches take a second, merged matrix."""
        return self.kind != "head" and self.nbytes <= SMALL_BYTES


def products_of(config: ModelConfig) -> tuple[Product, ...]:
    """Those of one layer, and the head."""
    hidden, inner = config.hidden_size, config.intermediate_size
    return (
        Product("plain", hidden, config.query_size + 2 * config.kv_size),
        Product("summed", config.query_size, hidden),
        Product("gated", hidden, inner),
        Product("summed", inner, hidden),
        Product("head", hidden, config.vocab_size),
    )


def candidates(product: Product, tokens: int) -> list[Tile]:
    """Tiles that may be the fastest for so many tokens, each with stages in the middle of what is good."""
    rows = (16, 32, 64) if product.small else (64, 128)
    widths = [
        width
        for width in (16, 32, 64, 128)
        if width <= bucket(tokens) and (product.small or -(-tokens // width) <= MOST_BLOCKS)
    ]
    return [
        Tile(
            outputs,
            width,
            depth,
            split,
            stages=4 if depth == 128 else 6,
            warps=_warps(product, outputs, width),
        )
        for outputs, width, depth in combinations(rows, widths, (64, 128))
        for split in _splits(product, outputs, depth)
    ]


def _splits(product: Product, outputs: int, depth: int) -> list[int]:
    if product.kind != "summed":
        return [1]
    columns, most = -(-product.outputs // outputs), max(1, product.inputs // (2 * depth))
    return sorted({max(1, min(programs // columns, most)) for programs in FILLING})


def _warps(product: Product, outputs: int, width: int) -> int:
    """Eight where four had no registers for the sums."""
    return 8 if outputs * width * (2 if product.kind == "gated" else 1) >= 128 * 128 else 4


def asking(product: Product, tile: Tile | None) -> list[Tile]:
    """The same tile, asking for more or less of its weights early; none of the library's."""
    if tile is None:
        return []
    most = product.inputs // tile.depth // tile.split
    return [replace(tile, ahead=ahead) for ahead in AHEAD if ahead != tile.ahead and ahead <= most]


def staged(product: Product, tile: Tile | None) -> list[Tile]:
    """The same tile with other stages; none of the library's."""
    if tile is None:
        return []
    most = -(-product.inputs // tile.depth // tile.split)
    return [
        replace(tile, stages=stages) for stages in STAGES if stages != tile.stages and stages <= max(2, most)
    ]


def program_of(product: Product, tile: Tile, merged: bool) -> tuple[object, ...]:
    """What tells compiled programs apart; others differ in arguments only."""
    form = astuple(replace(tile, split=1))
    return (*form, product.kind == "gated", product.kind in ("summed", "head"), merged)


class Bench:
    """One product's weights on a GPU: `copies` of them, as many as no cache holds by default."""

    def __init__(self, product: Product, device: torch.device, copies: int | None = None) -> None:
        self.product = product
        fewest, most = COPIES
        self.copies = copies or max(fewest, min(most, WEIGHT_BYTES // product.nbytes))
        wide = product.outputs * (2 if product.kind == "gated" else 1)
        shape = (2 if product.small else 1, self.copies, wide, product.inputs)
        weights = torch.empty(shape, dtype=torch.bfloat16, device=device)
        weights.normal_(std=product.inputs**-0.5)
        self._weights = weights.transpose(-1, -2)
        self._norm = torch.ones(max(product.inputs, product.outputs), dtype=torch.bfloat16, device=device)
        self._device = device

    def launch(self, tile: Tile | None, tokens: int, *, merged: bool = False) -> Launch:
        """One product of so many tokens and the norm beside it; `merged`: most take a second matrix."""
        kind, inputs = self.product.kind, self.product.inputs
        width = self.product.outputs if kind == "summed" else inputs
        x = torch.randn(tokens, width, dtype=torch.bfloat16, device=self._device)
        y = empty_rows(x, tokens, inputs).normal_()
        token = torch.arange(tokens, device=self._device)
        masks = [token >= causal for causal in CAUSAL]
        norm = self._norm[:width]

        def run(copy: int) -> object:
            matrix = self._weights[0, copy]
            detour = Detour(masks[copy % len(masks)], merged=self._weights[1, copy]) if merged else None
            if kind == "summed":
                return launch.summed_norm(x, _computed(kind, y, matrix, tile, detour), norm, EPS)
            return _computed(kind, launch.norm(x, norm, EPS), matrix, tile, detour)

        return run


def _computed(kind: Kind, x: Tensor, matrix: Tensor, tile: Tile | None, detour: Detour | None) -> Tensor:
    """x · matrix by a tile or, if None, by the vendor's library."""
    if tile is not None:
        dtype = torch.float32 if kind in ("summed", "head") else None
        return multiply(x, matrix, tile, detour=detour, gated=kind == "gated", out_dtype=dtype)
    if kind == "head":
        return head_logits(x, matrix.t())
    y = torch.mm(x, matrix)
    return launch.silu_gate(y) if kind == "gated" else y


def compile_tile(product: Product, tile: Tile, tokens: int, merged: bool) -> str | None:
    """Compiles a tile's program into Triton's cache on disk and runs it once; what was wrong with it."""
    try:
        device = torch.device("cuda")
        Bench(product, device, copies=1).launch(tile, tokens, merged=merged)(0)
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - whatever a compiler may say, this candidate is none
        return f"{type(error).__name__}: {error}"
    return None


class Timer:
    """Times launches in CUDA graphs on a GPU."""

    def __init__(self, device: torch.device, replays: int) -> None:
        self._replays = replays
        self._other = torch.zeros(CACHE_BYTES // 4, device=device)
        self._pool = torch.cuda.graph_pool_handle()
        self._graph = torch.cuda.CUDAGraph()  # the last one, for whose sake its memory stays

    def us(self, launch: Launch, copies: int) -> float:
        """Microseconds of one launch: median of replays of a graph that runs each copy once."""
        launch(0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            for copy in range(copies):
                launch(copy)
        self._graph = graph
        times = [self._replay(graph) for _ in range(1 + self._replays)]
        return 1e3 * median(times[1:]) / copies

    def _replay(self, graph: torch.cuda.CUDAGraph) -> float:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._other.sum()
        began.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        return began.elapsed_time(ended)
