"""Which tile computes each product of a model fastest on this GPU, by tokens: the table of `ops/tiles.py`.

A tile is timed with the adapter off and, where matrices are so small that a second, merged one is read beside
them, in a mixed forward too; one tile is chosen for both, as causal tokens must not tell whether others take
the adapter. Candidates are compiled by many processes into Triton's cache and timed one by one afterwards.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed, wait
from dataclasses import astuple, dataclass, field
from itertools import chain, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

from recguide.bench.products import (
    Bench,
    Product,
    Timer,
    asking,
    candidates,
    compile_tile,
    products_of,
    program_of,
    staged,
)
from recguide.bench.results import write_result
from recguide.bench.tables import text_table
from recguide.models.families import read_config
from recguide.models.kernels.multiply import Tile
from recguide.models.ops.tiles import tile_for
from recguide.models.published import SHAPES

T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"
DEMO = "smollm2-135m"
DEMO_PRODUCTS = (
    Product("plain", 576, 960),
    Product("summed", 576, 576),
    Product("gated", 576, 1536),
    Product("summed", 1536, 576),
    Product("head", 576, 49152),
)
TOKENS = (16, 32, 48, 64, 80, 96, 128)
LIBRARY_GAIN = 0.95
"""Of our own time, what the library's must take at most within a layer: an adapter would cost it kernels."""
SHARES = (0.3, 0.6, 0.75, 0.8, 0.95, 1.0)
"""Of the budget, until when to compile and time tiles, the best that ask for weights early, other stages."""
COLUMNS = {
    "kind": "product",
    "inputs": "in",
    "outputs": "out",
    "tokens": "N",
    "tile": "tile",
    "us": "us",
    "merged_us": "merged",
    "now": "tile now",
    "now_us": "us now",
    "now_merged_us": "merged now",
    "library_us": "library",
    "best_us": "best",
    "best_merged_us": "best merged",
    "tried": "tried",
}
LAYER_COLUMNS = {
    "tokens": "N",
    "us": "layer, us",
    "now_us": "now",
    "merged_us": "merged",
    "now_merged_us": "merged now",
}


@dataclass(frozen=True)
class Case:
    """One product of so many tokens, and the times of tiles (None: the library) without and with `merged`."""

    product: Product
    tokens: int
    times: dict[bool, dict[Tile | None, float]] = field(default_factory=lambda: {False: {}, True: {}})

    @property
    def uses(self) -> tuple[bool, ...]:
        return (False, True) if self.product.small else (False,)

    @property
    def now(self) -> Tile | None:
        product = self.product
        return tile_for(product.kind, product.inputs, product.outputs, self.tokens)

    @property
    def now_ours(self) -> list[Tile]:
        return [] if self.now is None else [self.now]

    def chosen(self) -> Tile | None:
        """The best for all uses together: least sum of times, each over the least of its use."""
        plain = self.times[False]
        whole = [tile for tile in plain if tile and all(tile in self.times[use] for use in self.uses)]
        if not whole:
            return None
        least = {use: min(self.times[use][tile] for tile in whole) for use in self.uses}
        best = min(whole, key=lambda tile: sum(self.times[use][tile] / least[use] for use in self.uses))
        asked = 1.0 if self.product.kind == "head" else LIBRARY_GAIN
        return None if None in plain and plain[None] < asked * plain[best] else best

    def row(self) -> dict[str, Any]:
        product, plain, mixed = self.product, self.times[False], self.times[True]
        tile = self.chosen()
        return {
            "kind": product.kind,
            "inputs": product.inputs,
            "outputs": product.outputs,
            "tokens": self.tokens,
            "tile": _text(tile),
            "us": plain.get(tile),
            "merged_us": mixed.get(tile),
            "now": _text(self.now),
            "now_us": plain.get(self.now),
            "now_merged_us": mixed.get(self.now),
            "library_us": plain.get(None),
            "best_us": min(plain.values(), default=None),
            "best_merged_us": min(mixed.values(), default=None),
            "tried": len(plain),
        }

    def entry(self) -> str:
        """Its line of `tiles.MEASURED`."""
        product, tile = self.product, self.chosen()
        value = "None" if tile is None else f"Tile{astuple(tile)}"
        return f'("{product.kind}", {product.inputs}, {product.outputs}, {self.tokens}): {value},'


Trial = tuple[Case, Tile, bool]


class Search:
    """Compiles and times tiles of all cases within a budget of seconds."""

    def __init__(self, cases: Sequence[Case], pool: Executor, budget: float, replays: int) -> None:
        self._cases = cases
        self._pool = pool
        self._ends = [time.monotonic() + share * budget for share in SHARES]
        self._replays = replays
        self._programs: set[tuple[object, ...]] = set()
        self.failures: list[str] = []

    def run(self) -> Iterator[str]:
        """Says after each stage what was done; what was found is in the cases."""
        first = self._trials(lambda case: _distinct([*candidates(case.product, case.tokens), *case.now_ours]))
        yield self._compile(first, self._ends[0])
        timer = Timer(torch.device("cuda"), self._replays)
        yield self._time(timer, first, self._ends[1], library=True)
        for vary, compiled, timed in ((asking, *self._ends[2:4]), (staged, *self._ends[4:6])):
            near = self._trials(lambda case, vary=vary: vary(case.product, case.chosen()))
            yield self._compile(near, compiled)
            yield self._time(timer, near, timed, library=False)

    def _trials(self, tiles: Callable[[Case], Iterable[Tile]]) -> list[Trial]:
        """Of each case in turn, so that a lack of time is shared by all."""
        each = [[(case, tile, use) for tile in tiles(case) for use in case.uses] for case in self._cases]
        return [trial for trial in chain.from_iterable(zip_longest(*each)) if trial is not None]

    def _compile(self, trials: Sequence[Trial], end: float) -> str:
        began = time.monotonic()
        wanted = {program_of(case.product, tile, use): (case, tile, use) for case, tile, use in trials}
        futures = {
            self._pool.submit(compile_tile, case.product, tile, case.tokens, use): program
            for program, (case, tile, use) in wanted.items()
            if program not in self._programs
        }
        try:
            for future in as_completed(futures, timeout=max(0.0, end - began)):
                if (fault := future.result()) is None:
                    self._programs.add(futures[future])
                else:
                    self.failures.append(f"{futures[future]}: {fault}")
        except TimeoutError:
            wait([future for future in futures if not future.cancel()])
        done = sum(program in self._programs for program in futures.values())
        return f"compiled {done} of {len(futures)} programs in {time.monotonic() - began:.1f} s"

    def _time(self, timer: Timer, trials: Sequence[Trial], end: float, *, library: bool) -> str:
        """Product by product, for the sake of their weights' memory."""
        began, met, done = time.monotonic(), 0, 0
        for product in _distinct(case.product for case in self._cases):
            bench = Bench(product, torch.device("cuda"))
            for case in self._cases if library else ():
                if case.product == product:
                    case.times[False][None] = timer.us(bench.launch(None, case.tokens), bench.copies)
            mine = [trial for trial in trials if trial[0].product == product]
            met += len(mine)
            until = began + (end - began) * met / max(1, len(trials))
            for case, tile, use in mine:
                if time.monotonic() > until:
                    break
                if program_of(product, tile, use) in self._programs:
                    launch = bench.launch(tile, case.tokens, merged=use)
                    case.times[use][tile] = timer.us(launch, bench.copies)
                    done += 1
        return f"timed {done} of {len(trials)} tiles in {time.monotonic() - began:.1f} s"


def layer_rows(cases: Iterable[Case]) -> list[dict[str, Any]]:
    """What all products of a layer take, each with the norm beside it, and took before."""
    rows = [case.row() for case in cases if case.product.kind != "head"]
    names = [name for name in LAYER_COLUMNS if name != "tokens"]
    return [
        {"tokens": tokens}
        | {name: _sum(row[name] for row in rows if row["tokens"] == tokens) for name in names}
        for tokens in sorted({row["tokens"] for row in rows})
    ]


def _sum(values: Iterable[float | None]) -> float | None:
    """None if any is."""
    found = list(values)
    return None if None in found else sum(value for value in found if value is not None)


def _distinct(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _text(tile: Tile | None) -> str:
    return "library" if tile is None else "x".join(map(str, astuple(tile)))


def products_named(model: str) -> tuple[Product, ...]:
    """Of the demo model, a published shape, or a checkpoint's folder."""
    if model == DEMO:
        return DEMO_PRODUCTS
    return products_of(SHAPES[model] if model in SHAPES else read_config(Path(model)))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=DEMO, help="the demo model, a published shape or a folder")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for compiling and timing")
    parser.add_argument("--replays", type=int, default=5, help="of each graph")
    parser.add_argument("--workers", type=int, default=min(16, os.cpu_count() or 1), help="that compile")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    options.output = options.output or RESULTS / f"product_tiles-{Path(options.model).name}.json"
    return options


def main() -> None:
    options = parse()
    cases = [Case(product, n) for product in products_named(options.model) for n in options.tokens]
    settings = {
        "model": options.model,
        "budget_s": options.budget,
        "replays": options.replays,
        "time": "a product and the norm beside it, microseconds in a CUDA graph over weights no cache holds",
    }
    context = get_context("forkserver")  # forks of this process could not use its GPU
    context.set_forkserver_preload([compile_tile.__module__])
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool, torch.inference_mode():
        search = Search(cases, pool, options.budget, options.replays)
        for line in search.run():
            print(line, flush=True)
            write_result(
                options.output,
                settings=settings,
                rows=[case.row() for case in cases],
                curve=layer_rows(cases),
                device=torch.device("cuda"),
            )
    for fault in search.failures[:10]:
        print(fault)
    print(text_table([case.row() for case in cases], COLUMNS))
    print(text_table(layer_rows(cases), LAYER_COLUMNS))
    print("\n".join(case.entry() for case in cases))


if __name__ == "__main__":
    main()
