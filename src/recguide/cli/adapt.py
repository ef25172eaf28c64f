"""`recguide adapt`: train a draft adapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from recguide.cli.console import Progress, note, out, print_json, steps
from recguide.cli.options import Json, Model, fills

if TYPE_CHECKING:
    from recguide.training.adapt import AdaptResult, Event
    from recguide.training.config import ContinuationConfig, JointConfig, LoraConfig, TrainConfig

_TEXTS, _ADAPTER, _TRAINING, _JOINT = "Continuations", "Adapter", "Training", "Joint training"


def _texts(help_text: str) -> Any:  # noqa: ANN401
    return typer.Option(help=help_text, rich_help_panel=_TEXTS)


def _adapter(help_text: str) -> Any:  # noqa: ANN401
    return typer.Option(help=help_text, rich_help_panel=_ADAPTER)


def _training(help_text: str) -> Any:  # noqa: ANN401
    return typer.Option(help=help_text, rich_help_panel=_TRAINING)


@dataclass(frozen=True, slots=True)
class Course:
    """How it is trained; `joint` None trains an adapter."""

    train: TrainConfig
    joint: JointConfig | None


def continuations(
    temperatures: Annotated[str, _texts("One pass over the prompts for each.")] = "0,0.7",
    max_new_tokens: Annotated[int, _texts("Tokens of a text at most.")] = 256,
    max_prompt_tokens: Annotated[int, _texts("Longer prompts are left out.")] = 384,
) -> ContinuationConfig:
    """The options that say how the model writes its texts."""
    from recguide.training.config import ContinuationConfig

    return ContinuationConfig(
        temperatures=tuple(number("temperatures", text) for text in temperatures.split(",")),
        max_new_tokens=max_new_tokens,
        max_prompt_tokens=max_prompt_tokens,
    )


def lora(
    rank: Annotated[int, _adapter("Rank of the low-rank deltas.")] = 64,
    alpha: Annotated[float | None, _adapter("Deltas count alpha / rank; twice the rank if absent.")] = None,
    targets: Annotated[str, _adapter("Linear layers with a delta.")] = (
        "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
    ),
    rank_pattern: Annotated[str, _adapter("Other ranks: down_proj=32,layers.0.self_attn.q_proj=16")] = "",
) -> LoraConfig:
    """The options that say what shape the adapter has."""
    from recguide.training.config import LoraConfig

    ranks = {name: whole("rank_pattern", text) for name, text in pairs("rank_pattern", rank_pattern, "=")}
    return LoraConfig(rank=rank, alpha=alpha, targets=tuple(targets.split(",")), rank_pattern=ranks)


def course(
    steps: Annotated[int, _training("Optimiser steps.")] = 2000,
    tokens: Annotated[int, _training("Drafted slots of a step, and as many tokens of text.")] = 16_384,
    optimiser: Annotated[Literal["adamw", "muon"], _training("How parameters move.")] = "adamw",
    lr: Annotated[float | None, _training("Peak learning rate; 1e-3, or 1e-5 for --joint.")] = None,
    schedule: Annotated[
        Literal["cosine", "wsd"] | None, _training("cosine, or wsd, the one for --joint.")
    ] = None,
    ema: Annotated[float, _training("Decay of averaged weights; 0 for none.")] = 0.0,
    blocks: Annotated[str, _training("Block sizes and their share of the slots.")] = "8:0.35,16:0.5,32:0.15",
    hard: Annotated[
        float, _training("Share of the text's token in the target; the rest is distilled.")
    ] = 0.5,
    reach: Annotated[float, _training("Share of the weight that only reachable slots get.")] = 0.5,
    eval_every: Annotated[int, _training("Steps between measurements.")] = 250,
    checkpoint_every: Annotated[int, _training("Steps between checkpoints; 0 for one at the end.")] = 500,
    patience: Annotated[int, _training("Stop after that many measurements without gain; 0 never.")] = 0,
    max_seconds: Annotated[
        float | None, _training("Stop after that training time; call again to go on.")
    ] = None,
    joint: Annotated[
        bool,
        typer.Option("--joint", help="Train the whole backbone instead: it changes.", rich_help_panel=_JOINT),
    ] = False,
    alpha_diffusion: Annotated[
        float, typer.Option(help="Weight of its diffusion loss.", rich_help_panel=_JOINT)
    ] = 0.3,
) -> Course:
    """The options that say how it is trained."""
    from recguide.training.config import (
        JOINT_OPTIMISER,
        BlockConfig,
        JointConfig,
        LossConfig,
        OptimiserConfig,
        TrainConfig,
    )

    default = JOINT_OPTIMISER if joint else OptimiserConfig()
    train = TrainConfig(
        steps=steps,
        clean_tokens=tokens,
        noisy_tokens=tokens,
        eval_every=eval_every,
        checkpoint_every=checkpoint_every,
        patience=patience,
        max_seconds=max_seconds,
        blocks=BlockConfig(
            sizes={
                whole("blocks", size): number("blocks", share) for size, share in pairs("blocks", blocks, ":")
            }
        ),
        loss=LossConfig(hard=hard, reach=reach),
        optimiser=replace(
            default,
            kind=optimiser,
            lr=default.lr if lr is None else lr,
            schedule=default.schedule if schedule is None else schedule,
            ema=ema,
        ),
    )
    return Course(train, JointConfig(alpha=alpha_diffusion) if joint else None)


@fills(texts=continuations, shape=lora, how=course)
def adapt(
    model: Model,
    *,
    prompts: Annotated[
        Path, typer.Option(help="JSON Lines with `prompt`, perhaps `source`, `licence`, `task`.")
    ],
    output: Annotated[Path, typer.Option(help="Folder of the finished adapter.")],
    work: Annotated[Path | None, typer.Option(help="Folder of texts and checkpoints; OUTPUT/work.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    limit: Annotated[int | None, _texts("Prompts used, spread over the sources; all if absent.")] = None,
    held_out: Annotated[int, _texts("Prompts of each task that are measured instead of trained on.")] = 32,
    share: Annotated[
        str, _texts("Share of a task's prompts that is trained on: code=0.6,chat=0.5; others keep all.")
    ] = "",
    measure: Annotated[
        list[str] | None, _texts("NAME=FILE of prompts to measure at the end; repeatable.")
    ] = None,
    lanes: Annotated[int | None, _texts("Sequences written together; 8 on a CPU, 512 on a GPU.")] = None,
    mask_token: Annotated[
        int | None, _adapter("Id for MASK slots; an unused special token if absent.")
    ] = None,
    start_from: Annotated[
        str | None, _adapter("Go on from that adapter of the same shape; shipped: the demo model's own.")
    ] = None,
    json_output: Json = False,
    texts: ContinuationConfig,
    shape: LoraConfig,
    how: Course,
) -> None:
    """Train a draft adapter, so that a model learns to draft.

    The model continues the prompts itself; the adapter learns to draft those texts. Interrupted, the same
    call goes on where it was.

    Example: [bold]recguide adapt smollm2-135m --prompts prompts.jsonl --output my-adapter[/bold]
    """
    from recguide.training.adapt import adapt as run
    from recguide.training.config import AdaptConfig
    from recguide.training.start import start_folder

    config = AdaptConfig(
        model=model,
        prompts=prompts,
        output=output,
        work=work,
        device=device,
        dtype=dtype,
        limit=limit,
        held_out=held_out,
        mask_token_id=mask_token,
        start=None if start_from is None else start_folder(start_from),
        shares={task: number("share", text) for task, text in pairs("share", share, "=")},
        joint=how.joint,
        measure={name: Path(file) for text in measure or () for name, file in pairs("measure", text, "=")},
        continuation=replace(texts, lanes=_default_lanes(device) if lanes is None else lanes, seed=seed),
        train=replace(how.train, lora=shape, seed=seed),
    )
    with steps("adapting") as move:
        result = run(config, _shower(move))
    if json_output:
        print_json(summary(result))
    else:
        show(result)


def _default_lanes(device: str) -> int:
    import torch

    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    return 512 if on_gpu else 8


def pairs(option: str, text: str, mark: str) -> list[tuple[str, str]]:
    """ "a=1,b=2" → [("a", "1"), ("b", "2")]."""
    from recguide.core import ParameterError

    found: list[tuple[str, str]] = []
    for piece in filter(None, text.split(",")):
        left, middle, right = piece.partition(mark)
        if not (left and middle and right):
            raise ParameterError(option, f"{piece!r} is not of the form name{mark}value")
        found.append((left, right))
    return found


def number(option: str, text: str) -> float:
    from recguide.core import ParameterError

    try:
        return float(text)
    except ValueError:
        raise ParameterError(option, f"{text!r} is no number") from None


def whole(option: str, text: str) -> int:
    from recguide.core import ParameterError

    try:
        return int(text)
    except ValueError:
        raise ParameterError(option, f"{text!r} is no whole number") from None


def _shower(move: Progress) -> Callable[[Event], None]:
    """Moves the progress line; a line of history stays where acceptance was measured."""

    def on_event(event: Event) -> None:
        entry = event.entry
        if entry is None:
            move(event.stage, event.done, event.total)
            return
        move(f"{event.stage}, loss {entry.loss:.3f}", event.done, event.total)
        if entry.acceptance:
            tasks = "   ".join(
                f"{task} " + "/".join(f"{a:.2f}" for a in sizes.values())
                for task, sizes in entry.acceptance.items()
            )
            sizes = "/".join(str(size) for size in next(iter(entry.acceptance.values())))
            note(f"step {entry.step}: loss {entry.loss:.3f}, held-out acceptance at B = {sizes}: {tasks}")

    return on_event


def summary(result: AdaptResult) -> dict[str, object]:
    last = result.history[-1] if result.history else None
    return {
        "folder": str(result.folder),
        "finished": result.finished,
        "steps": 0 if last is None else last.step,
        "seconds": 0.0 if last is None else last.seconds,
        "loss": None if last is None else last.loss,
        "held_out": {} if last is None else {task: dict(sizes) for task, sizes in last.acceptance.items()},
        "measured": {name: {b: m.mean for b, m in sizes.items()} for name, sizes in result.measured.items()},
    }


def show(result: AdaptResult) -> None:
    if not result.finished:
        note("time was up; the same command goes on from the checkpoint")
    grid = Table(box=None, show_header=False, pad_edge=False)
    grid.add_row("adapter", str(result.folder))
    for name, sizes in result.measured.items():
        grid.add_row(f"A on {name}", "  ".join(f"B{block} {m.mean:.2f}" for block, m in sizes.items()))
    out().print(grid)
