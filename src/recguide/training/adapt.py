"""`recguide adapt`: any Llama-family model learns to draft.

Prompts → the model's own continuations → a draft adapter trained on them → a folder ready for `--adapter`.
Every stage keeps what it made in the work folder, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from recguide.core import ParameterError, RecGuideError
from recguide.models.adapter_files import save_adapter
from recguide.models.loading import Model, load
from recguide.models.sources import resolve
from recguide.training.acceptance import Measured
from recguide.training.card import Report, write_card
from recguide.training.config import AdaptConfig, ContinuationConfig, JointConfig
from recguide.training.continuations import chunk_file, chunks, read_continuations, write_continuations
from recguide.training.corpus import Corpus
from recguide.training.joint import JointTrainer, save_joint
from recguide.training.lanes import Lanes
from recguide.training.network import Backbone
from recguide.training.prepared import Prepared, prepare, unused_special
from recguide.training.prompts import held_out, limited, read_prompts, shared
from recguide.training.start import Start
from recguide.training.trainer import Entry, Trainer
from recguide.training.workers import Workers, close_workers, open_workers, wait_for_all


@dataclass(frozen=True, slots=True)
class Event:
    """What `on_progress` is told: the stage, how far it is, and a line of history while training."""

    stage: str
    done: int
    total: int
    entry: Entry | None = None


OnProgress = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class AdaptResult:
    """What came out.

    Attributes:
        folder: the adapter (the whole checkpoint for a joint run).
        finished: False if `max_seconds` ended the run; the same call goes on from the checkpoint.
        history: lines of the training log.
        measured: name of a measured prompt file (or held-out task) → block size → acceptance.
    """

    folder: Path
    finished: bool
    history: tuple[Entry, ...]
    measured: Mapping[str, Mapping[int, Measured]]


def adapt(config: AdaptConfig, on_progress: OnProgress = lambda _: None) -> AdaptResult:
    """Runs all stages.

    Raises ParameterError for settings or prompt files that cannot be honoured, CheckpointError for a damaged
    model, corpus or checkpoint, RecGuideError with advice when memory runs out.
    """
    workers = open_workers(config.device)
    try:
        return _adapt(config, workers, on_progress if workers.index == 0 else _silent)
    finally:
        close_workers(workers)


def _silent(_event: Event) -> None:
    """Processes other than the first report nothing."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A model and its texts, ready for training."""

    model: Model
    backbone: Backbone
    prepared: Prepared
    mask_token: int
    measured: Mapping[str, Corpus]


def open_run(config: AdaptConfig, workers: Workers, on_progress: OnProgress) -> Opened:
    """Loads the model and makes sure that its continuations are there."""
    model = load(config.model, adapter=None, dtype=config.dtype, device=workers.device(config.device))
    prepared = prepare_prompts(config, model, on_progress)
    mask_token = mask_token_of(config, model, prepared)
    backbone = Backbone.of(model.decoder)
    measured = _write(config, model, backbone, prepared, mask_token, workers, on_progress)
    return Opened(model, backbone, prepared, mask_token, measured)


def _adapt(config: AdaptConfig, workers: Workers, on_progress: OnProgress) -> AdaptResult:
    opened = open_run(config, workers, on_progress)
    texts = read_continuations(config.work_folder, opened.prepared.tokens, config.continuation)
    training, held = split(texts, opened.prepared)
    if config.joint is not None:
        return _train_jointly(config, config.joint, opened, training, on_progress)
    start = None if config.start is None else Start.read(config.start, opened.model.config)
    trainer = Trainer(
        opened.backbone,
        training,
        config.train,
        opened.mask_token,
        held_out=held,
        workers=workers,
        start=start,
    )
    return train_run(config, opened, trainer, training, on_progress)


def prepare_prompts(config: AdaptConfig, model: Model, on_progress: OnProgress = lambda _: None) -> Prepared:
    """Reads, limits and tokenises the prompts, or takes them from the work folder; then takes their shares.

    What is held out does not depend on the shares: a run that continues another holds out the same.
    """
    if model.tokenizer is None:
        raise ParameterError("model", f"{model.name} has no tokenizer, so no prompt can be asked")
    chosen = limited(read_prompts(config.prompts), config.limit, config.train.seed)

    def on_count(done: int, total: int) -> None:
        on_progress(Event("tokenising prompts", done, total))

    everything = prepare(chosen, model.tokenizer, config.work_folder / "prompts.npz", on_count)
    held = held_out(chosen, config.held_out, config.train.seed)
    kept = shared(chosen, config.shares, held, config.train.seed)
    return replace(everything, held=frozenset(held)).select(kept)


def mask_token_of(config: AdaptConfig, model: Model, prepared: Prepared) -> int:
    """The checkpoint's mask token, the one asked for, or an unused special token."""
    own = model.config.mask_token_id
    asked = config.mask_token_id
    if own is not None and asked not in (None, own):
        raise ParameterError("mask_token_id", f"the checkpoint says {own} (got {asked}); leave it out")
    if own is not None:
        return own
    if asked is not None:
        if not 0 <= asked < model.config.vocab_size:
            raise ParameterError("mask_token_id", f"must lie in [0, {model.config.vocab_size}) (got {asked})")
        return asked
    assert model.tokenizer is not None  # prepare_prompts has refused a model without
    special = [
        *model.config.eos_token_ids,
        *([] if model.config.bos_token_id is None else [model.config.bos_token_id]),
    ]
    return unused_special(model.tokenizer, prepared, special)


def _write(
    config: AdaptConfig,
    model: Model,
    backbone: Backbone,
    prepared: Prepared,
    mask_token: int,
    workers: Workers,
    on_progress: OnProgress,
) -> dict[str, Corpus]:
    """Continuations of the training prompts, in files; returns the greedy ones of the measured prompts."""
    began = time.perf_counter()

    def on_written(done: int, total: int, tokens: int) -> None:
        speed = tokens / max(time.perf_counter() - began, 1e-9)
        on_progress(
            Event(f"writing continuations ({tokens / 1e6:.1f} M tokens, {speed / 1e3:.0f} k/s)", done, total)
        )

    asked = {name: _measured_prompts(config, model, path) for name, path in config.measure.items()}
    once = replace(config.continuation, temperatures=(0.0,), chunk=max(1, config.measure_limit))
    folders = {name: config.work_folder / f"measure-{name}" for name in asked}
    if _missing(config.work_folder, len(prepared.tokens), config.continuation) or any(
        _missing(folders[name], len(tokens), once) for name, tokens in asked.items()
    ):
        try:
            lanes = _lanes(config, model, backbone, mask_token)
            part = (workers.index, workers.count)
            write_continuations(
                lanes,
                prepared.tokens,
                config.continuation,
                config.work_folder,
                part=part,
                on_written=on_written,
            )
            for name, tokens in asked.items():
                write_continuations(lanes, tokens, once, folders[name], part=part)
        except torch.OutOfMemoryError as error:
            raise RecGuideError(
                f"out of memory with {config.continuation.lanes} lanes; halve them (--lanes)"
            ) from error
        del lanes  # the caches are as large as the card allows; training needs the room
        if backbone.device.type == "cuda":
            torch.cuda.empty_cache()
    wait_for_all(workers)
    return {name: read_continuations(folders[name], tokens, once) for name, tokens in asked.items()}


def _measured_prompts(config: AdaptConfig, model: Model, path: Path) -> tuple[tuple[int, ...], ...]:
    assert model.tokenizer is not None
    prompts = read_prompts(path)[: config.measure_limit]
    return prepare(prompts, model.tokenizer, config.work_folder / f"measure-{path.name}.npz").tokens


def _missing(folder: Path, count: int, config: ContinuationConfig) -> bool:
    return not all(chunk_file(folder, t, number).is_file() for t, number, _ in chunks(count, config))


def _lanes(config: AdaptConfig, model: Model, backbone: Backbone, mask_token: int) -> Lanes:
    written = config.continuation
    return Lanes(
        backbone,
        lanes=written.lanes,
        positions=written.max_prompt_tokens + written.max_new_tokens,
        max_new_tokens=written.max_new_tokens,
        end_tokens=model.config.eos_token_ids,
        mask_token=mask_token,
    )


def split(texts: Corpus, prepared: Prepared) -> tuple[Corpus, dict[str, Corpus]]:
    """Texts to train on, and greedy texts of the held-out prompts by task."""
    out = np.isin(texts.prompts, np.array(sorted(prepared.held), dtype=np.int32))
    tasks = sorted({prepared.prompts[index].task for index in prepared.held})
    task_of = np.array([prepared.prompts[index].task for index in texts.prompts.tolist()])
    greedy = texts.temperatures == 0
    groups = {task: texts.select(out & greedy & (task_of == task)) for task in tasks}
    return texts.select(~out), {task: group for task, group in groups.items() if len(group)}


def _train_jointly(
    config: AdaptConfig, joint: JointConfig, opened: Opened, training: Corpus, on_progress: OnProgress
) -> AdaptResult:
    """The whole backbone instead of an adapter; the result is a checkpoint folder."""
    history: list[Entry] = []

    def on_step(step: int, ar: float, diffusion: float) -> None:
        tokens = step * config.train.clean_tokens
        entry = Entry(step, ar + joint.alpha * diffusion, 0.0, 0.0, time.perf_counter() - began, tokens)
        history.append(entry)
        on_progress(Event("joint training", step, config.train.steps, entry))

    began = time.perf_counter()
    trainer = JointTrainer(opened.backbone, training, config.train, joint, opened.mask_token)
    trainer.run(on_step)
    save_joint(trainer, resolve(config.model), config.output, opened.mask_token, joint.block_size)
    return AdaptResult(config.output, True, tuple(history), {})


def train_run(
    config: AdaptConfig, opened: Opened, trainer: Trainer, training: Corpus, on_progress: OnProgress
) -> AdaptResult:
    """Trains, from a checkpoint if the work folder has one, measures, and writes the adapter's folder."""
    checkpoint = config.work_folder / "checkpoint.pt"
    if checkpoint.is_file():
        trainer.resume(checkpoint)

    def on_entry(entry: Entry) -> None:
        on_progress(Event("training", entry.step, config.train.steps, entry))

    trainer.run(on_entry, checkpoint)
    finished = trainer.stopped_early or trainer.steps_done >= config.train.steps
    results = trainer.measure(opened.measured) if trainer.first else {}
    history = tuple(trainer.history)
    if trainer.first:
        model = opened.model
        adapter = trainer.finished().adapter(model.config, opened.mask_token, torch.float32)
        notes = {"block_sizes": sorted(config.train.blocks.sizes)}
        save_adapter(adapter, config.output, base=model.name, dtype=torch.bfloat16, notes=notes)
        report = Report(
            config, model.name, opened.mask_token, opened.prepared, training, history, results, trainer.start
        )
        write_card(report, config.output)
    wait_for_all(trainer.workers)
    return AdaptResult(config.output, finished, history, results)
