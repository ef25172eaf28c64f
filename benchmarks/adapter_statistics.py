"""What the demo adapter's drafts are worth, slot by slot: acceptance, ranks, margins, coverage and reuse.

    python benchmarks/adapter_statistics.py --measure gsm8k=FILE --measure humaneval=FILE \
        --measure mt-bench=FILE --measure ifeval=FILE

The model writes each text once for every temperature, with the noise of the engine's own picks; decoding is
then replayed over the finished texts (the text does not depend on the method). A test holds the replay to the
engine's numbers. Without a GPU, ask for little: --limit 2 --blocks 16 --temperatures 0. Without --measure it
draws the figure of a result file that is there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recguide.bench.results import Target, write_result
from recguide.bench.targets import read_result
from recguide.models.loading import Model, load
from recguide.speculation.fused import FusedPicker
from recguide.speculation.slots import torch_picker
from recguide.training import draft_statistics as statistics
from recguide.training.corpus import Corpus
from recguide.training.drafted import DraftReader
from recguide.training.halves import Halves
from recguide.training.lanes import Lanes
from recguide.training.network import Backbone
from recguide.training.prepared import prepare
from recguide.training.prompts import read_prompts
from recguide.training.rounds import Replay, everywhere

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TARGETS = {"gsm8k": 4.6, "humaneval": 4.4, "mt-bench": 3.4, "ifeval": 4.2}
"""Mean acceptance to reach at B = 16, greedy."""
EVERY = "all"
ENOUGH = 30
"""Rounds that must have reached a slot for the figure to show it."""
SIZES = {"cuda": (8192, 32_768), "cpu": (1024, 1024)}
"""Tokens of text and drafted slots of a step."""


def main() -> None:
    arguments = parser().parse_args()
    if arguments.measure:
        measure(arguments)
    if arguments.figure is not None:
        draw(read_result(arguments.result).rows, arguments.figure)


def measure(arguments: argparse.Namespace) -> None:
    """Writes the result file."""
    model = load(arguments.model, adapter=arguments.adapter, device=arguments.device, dtype=arguments.dtype)
    asked = {name: prompts(model, Path(file), arguments) for name, file in arguments.measure}
    rows = list(measured(model, asked, arguments))
    reached = {
        row["task"]: row["acceptance"]
        for row in rows
        if (row["table"], row["block"], row["temperature"]) == ("acceptance", 16, 0.0)
    }
    write_result(
        arguments.result,
        device=model.decoder.embedding.device,
        settings={
            "model": model.name,
            "fingerprint": model.fingerprint,
            "prompts": {name: len(tokens) for name, tokens in asked.items()},
            "max_new_tokens": arguments.max_new_tokens,
            "sampling_seeds": "the prompt's place among all prompts, from 0",
            "dtype": str(model.decoder.embedding.dtype).removeprefix("torch."),
            "method": "replayed over the model's own texts",
        },
        targets=[
            Target.at_least(
                f"{name}: A at B=16, greedy, replayed over the model's own texts", reached[name], least
            )
            for name, least in TARGETS.items()
            if reached.get(name) is not None
        ],
        rows=rows,
    )


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--measure",
        action="append",
        default=[],
        metavar="NAME=FILE",
        type=lambda text: tuple(text.split("=", 1)),
        help="prompts to test; repeatable",
    )
    options.add_argument("--model", default="smollm2-135m")
    options.add_argument("--adapter", default="auto")
    options.add_argument("--device", default="auto")
    options.add_argument("--dtype", default="auto")
    options.add_argument("--limit", type=int, default=100, help="prompts of each file")
    options.add_argument("--max-new-tokens", type=int, default=256)
    options.add_argument("--blocks", type=numbers(int), default=[8, 16, 32])
    options.add_argument("--temperatures", type=numbers(float), default=[0.0, 0.7, 1.0])
    options.add_argument("--work", type=Path, default=Path("work"), help="folder of tokenised prompts")
    options.add_argument(
        "--result", type=Path, default=Path("benchmarks/results/demo_adapter_statistics.json")
    )
    options.add_argument("--figure", type=Path, help="PNG of acceptance by slot and task")
    return options


def numbers(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [kind(part) for part in text.split(",")]


def prompts(model: Model, file: Path, arguments: argparse.Namespace) -> Sequence[Sequence[int]]:
    """Token ids of the first prompts of a file."""
    assert model.tokenizer is not None
    chosen = read_prompts(file)[: arguments.limit]
    return prepare(chosen, model.tokenizer, arguments.work / f"measure-{file.name}.npz").tokens


@dataclass(frozen=True, slots=True)
class Bench:
    """A model that drafts, ready to write texts and to read drafts from them."""

    backbone: Backbone
    reader: DraftReader
    lanes: Lanes


def bench_of(model: Model, asked: Sequence[Sequence[int]], arguments: argparse.Namespace) -> Bench:
    assert model.adapter is not None
    backbone, vocabulary = Backbone.of(model.decoder), model.vocabulary
    device = backbone.device
    on_gpu = device.type == "cuda"
    sizes = SIZES[device.type]
    reader = DraftReader(
        backbone,
        model.adapter,
        vocabulary,
        Halves(backbone, *sizes, compiled=on_gpu),
        sizes,
        FusedPicker(vocabulary, device) if on_gpu else torch_picker(vocabulary),
        compiled=on_gpu,
    )
    assert vocabulary.mask is not None
    lanes = Lanes(
        backbone,
        lanes=len(asked) if on_gpu else min(8, len(asked)),
        positions=max(map(len, asked)) + arguments.max_new_tokens,
        max_new_tokens=arguments.max_new_tokens,
        end_tokens=vocabulary.eos,
        mask_token=vocabulary.mask,
    )
    return Bench(backbone, reader, lanes)


def measured(
    model: Model, asked: Mapping[str, Sequence[Sequence[int]]], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """The rows of every temperature and block size."""
    began = time.perf_counter()
    every = [tokens for found in asked.values() for tokens in found]
    tasks = [name for name, found in asked.items() for _ in found]
    bench = bench_of(model, every, arguments)
    for temperature in arguments.temperatures:
        corpus = texts(bench.lanes, every, temperature)
        print(
            f"{time.perf_counter() - began:5.0f} s  T = {temperature}: {corpus.response_lengths.sum()} tokens"
        )
        for block in arguments.blocks:
            rows = replayed(bench.reader, corpus, tasks, block, temperature, arguments.max_new_tokens)
            for row in rows:
                yield {**row, "block": block, "temperature": temperature}
                if row["table"] == "overlap":
                    shown = f"A {row['acceptance']}  coverage {row['coverage']}  reuse {row['reuse']}"
                    print(
                        f"{time.perf_counter() - began:5.0f} s  B = {block:2}  {row['task']:10} {shown}",
                        flush=True,
                    )


def texts(lanes: Lanes, asked: Sequence[Sequence[int]], temperature: float) -> Corpus:
    """What plain decoding with sampling seeds 0, 1, ... emits."""
    written = {w.index: w.tokens for w in lanes.write(asked, temperature, 0, range(len(asked)))}
    return Corpus.of(
        [[*prompt, *written[index]] for index, prompt in enumerate(asked)], [len(prompt) for prompt in asked]
    )


def replayed(
    reader: DraftReader, corpus: Corpus, tasks: Sequence[str], block: int, temperature: float, cap: int
) -> Iterator[dict[str, Any]]:
    """All tables of one temperature and block size, for each task and for all prompts together."""
    seeds = range(len(corpus))
    drafted = reader.read(corpus, everywhere(corpus, block, cap), block, temperature, seeds)
    replay = Replay(
        corpus, drafted, block, cap, lambda places: reader.read(corpus, places, block, temperature, seeds)
    )
    linear, (overlapped, _) = replay.linear(), replay.overlapped()
    for task in (*dict.fromkeys(tasks), EVERY):
        members = [index for index, name in enumerate(tasks) if task in (name, EVERY)]
        mine = [linear[index] for index in members]
        reached = statistics.Reached.of(corpus, drafted, mine)
        for table, row in (
            ("acceptance", statistics.acceptance(mine, block)),
            ("slots", reached.acceptance_of_slots()),
            ("ranks", reached.ranks()),
            ("margins", reached.margins()),
            ("calibration", reached.calibration()),
            (
                "overlap",
                statistics.overlap(
                    [overlapped[index] for index in members], int(corpus.response_lengths[members].sum())
                ),
            ),
        ):
            yield {"table": table, "task": task, **row}


def draw(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """How often a reached slot is right, greedy, and A by temperature, at the middle block size."""
    from matplotlib.figure import Figure  # an extra, and slow to import

    blocks = sorted({row["block"] for row in rows})
    block = blocks[len(blocks) // 2]
    mine = [row for row in rows if row["block"] == block and row["task"] != EVERY]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_slots(left, [row for row in mine if row["table"] == "slots" and row["temperature"] == 0])
    left.set(title=f"B = {block}, greedy")
    draw_temperatures(right, [row for row in mine if row["table"] == "acceptance"])
    right.set(title=f"B = {block}")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)


def draw_slots(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Slots that few rounds reached are left out."""
    for row in rows:
        rates = [rate for rate, count in zip(row["rate"], row["reached"], strict=True) if count >= ENOUGH]
        axes.plot(range(1, len(rates) + 1), rates, marker=".", label=row["task"])
    axes.set(xlabel="slot", ylabel="share right, given that it is reached", ylim=(0, 1))
    axes.legend(fontsize="small")


def draw_temperatures(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    temperatures = sorted({row["temperature"] for row in rows})
    width = 0.8 / len(temperatures)
    for place, temperature in enumerate(temperatures):
        heights = [row["acceptance"] for row in rows if row["temperature"] == temperature]
        left = [task + place * width - 0.4 for task in range(len(tasks))]
        axes.bar(left, heights, width, align="edge", label=f"T = {temperature:g}")
    axes.set(ylabel="mean acceptance A", xticks=range(len(tasks)), xticklabels=tasks)
    axes.margins(y=0.2)
    axes.legend(fontsize="small", ncols=len(temperatures), loc="upper center")


if __name__ == "__main__":
    main()
