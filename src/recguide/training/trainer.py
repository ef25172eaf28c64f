"""The training loop: steps, measurements, checkpoints that resume bit for bit."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from recguide.core import CheckpointError, RecGuideError
from recguide.training.acceptance import Drafter, Measured
from recguide.training.config import TrainConfig
from recguide.training.corpus import Corpus
from recguide.training.factors import Factors
from recguide.training.halves import Halves, load
from recguide.training.loss import ChunkFunction, DraftLoss, chunk_outcome, slot_weights
from recguide.training.network import Backbone
from recguide.training.optimiser import Average, Optimiser, rate
from recguide.training.start import Start, require_same_mask, require_same_shape
from recguide.training.steps import Step, StepPlan
from recguide.training.workers import Workers

LOG_EVERY = 10
LOSS_CHUNK = 4096
MEASURED_BLOCKS = (8, 16, 32)
CHANGEABLE = frozenset(
    {
        "steps",
        "eval_every",
        "checkpoint_every",
        "patience",
        "max_seconds",
        "compiled",
        "optimiser.lr",
        "optimiser.schedule",
        "optimiser.decay",
        "optimiser.final",
    }
)
"""Fields of TrainConfig that a resumed run may choose anew; the data seen and the state kept are the same."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a run's history.

    Attributes:
        step: optimiser steps done.
        loss: weighted mean over the steps since the last line.
        first: share of first slots (one token ahead) that were right.
        lr: share of the peak rate.
        seconds: training time so far, measurements left out.
        tokens: drafted slots trained so far, all devices.
        acceptance: task → block size → mean A; empty where nothing was measured.
    """

    step: int
    loss: float
    first: float
    lr: float
    seconds: float
    tokens: int
    acceptance: Mapping[str, Mapping[int, float]] = field(default_factory=dict[str, Mapping[int, float]])

    @property
    def mean(self) -> float | None:
        """Mean held-out A over tasks, at the middle block size."""
        sizes = [dict(a) for a in self.acceptance.values()]
        found = [a[sorted(a)[len(a) // 2]] for a in sizes if a]
        return sum(found) / len(found) if found else None


OnEntry = Callable[[Entry], None]


class Trainer:
    """One run over one corpus. `factors` hold the live parameters; `save` and `resume` a checkpoint."""

    def __init__(
        self,
        backbone: Backbone,
        corpus: Corpus,
        config: TrainConfig,
        mask_token: int,
        *,
        held_out: Mapping[str, Corpus] | None = None,
        workers: Workers | None = None,
        blocks_measured: tuple[int, ...] = MEASURED_BLOCKS,
        start: Start | None = None,
    ) -> None:
        """
        Args:
            held_out: task → texts that are measured while training.
            workers: this process among those of the run.
            blocks_measured: block sizes of the measurements.
            start: the adapter to go on from; None starts with a delta of zero.

        Raises ParameterError if `start` has other ranks, scales or modules, or another mask token.
        """
        device = backbone.device
        compiled = device.type == "cuda" if config.compiled is None else config.compiled
        sizes = (config.clean_tokens, config.noisy_tokens)
        self.config = config
        self.backbone = backbone
        self.mask_token = mask_token
        self.history: list[Entry] = []
        self.steps_done = 0
        self.seconds = 0.0
        self.stopped_early = False
        self._held_out = dict(held_out or {})
        self.workers = workers or Workers()
        self._blocks_measured = blocks_measured
        self._plan = StepPlan(corpus, *sizes, config.blocks, config.seed)
        self.start = start
        self.factors = _factors(backbone, config, mask_token, start).to(device)
        self._optimiser = Optimiser(self.factors, config.optimiser, config.steps)
        self._average = Average(self.factors, config.optimiser.ema) if config.optimiser.ema else None
        self._halves = Halves(backbone, *sizes, compiled=compiled)
        self._drafter = Drafter(backbone, self._halves, sizes, mask_token)
        chunk = min(LOSS_CHUNK, config.noisy_tokens)
        function = _compiled_outcome() if compiled else chunk_outcome
        self._loss = DraftLoss(backbone.head, config.loss, mask_token, chunk, function)

    @property
    def first(self) -> bool:
        """Whether this process is the one that measures and saves."""
        return self.workers.index == 0

    def run(self, on_entry: OnEntry = lambda _: None, checkpoint: Path | None = None) -> None:
        """Trains until the steps are done, time is up or held-out acceptance stops rising.

        Raises RecGuideError with advice if the device runs out of memory.
        """
        try:
            with ThreadPoolExecutor(1) as pool:
                self._run(pool, on_entry, checkpoint)
        except torch.OutOfMemoryError as error:
            raise RecGuideError(_memory_advice(self.config)) from error

    def _run(self, pool: ThreadPoolExecutor, on_entry: OnEntry, checkpoint: Path | None) -> None:
        config = self.config
        ahead: Future[Step] = self._ask(pool, self.steps_done)
        sums = torch.zeros(4, dtype=torch.float64, device=self.backbone.device)
        began, before = time.perf_counter(), self.seconds
        stopping = False
        while self.steps_done < config.steps and not stopping:
            step = ahead.result()
            ahead = self._ask(pool, self.steps_done + 1)
            sums += self._train(step)
            self._optimiser.step(self.steps_done)
            if self._average is not None:
                self._average.update(self.steps_done)
            self.steps_done += 1
            measuring = _due(self.steps_done, config.eval_every) or self.steps_done == config.steps
            if measuring or self.steps_done % LOG_EVERY == 0:
                values = sums.tolist()
                sums.zero_()
                self.seconds = before + time.perf_counter() - began
                stopping = self._out_of_time()
                self._log(values, measuring or stopping, on_entry)
                began, before = time.perf_counter(), self.seconds
                self.stopped_early = self._stalled()
                stopping = stopping or self.stopped_early
            if checkpoint is not None and _due(self.steps_done, config.checkpoint_every):
                self.save(checkpoint)
        if checkpoint is not None:
            self.save(checkpoint)

    def _ask(self, pool: ThreadPoolExecutor, step: int) -> Future[Step]:
        return pool.submit(self._plan.step, step * self.workers.count + self.workers.index)

    def _train(self, step: Step) -> Tensor:
        """Forward and backward of one step; (loss, 1, right first slots, first slots)."""
        loaded = load(step, self.backbone.device, self.mask_token)
        clean_mask, noisy_mask = self._halves.masks(loaded)
        with torch.no_grad():
            teacher, kept = self._halves.clean(loaded, clean_mask)
        layers = self.factors.merged(self.backbone)
        hidden = self._halves.noisy(loaded, noisy_mask, layers, self.factors.mask_embedding, kept)
        valid = loaded.labels >= 0
        outcome = self._loss(hidden, teacher[loaded.teacher], loaded.labels.clamp(min=0))
        weights = slot_weights(outcome.hard, loaded.ahead, loaded.block_first, valid, self.config.loss)
        loss = (weights * outcome.loss).sum() / weights.sum().clamp(min=1e-6)
        loss.backward()
        self._share_gradients()
        first = valid & (loaded.ahead == 1)
        one = torch.ones((), dtype=torch.float64, device=loss.device)
        return torch.stack(
            (loss.detach().double(), one, (outcome.hit & first).sum().double(), first.sum().double())
        )

    def _share_gradients(self) -> None:
        if self.workers.count > 1:
            for parameter in self.factors.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.workers.count

    def _log(self, values: list[float], measuring: bool, on_entry: OnEntry) -> None:
        loss, count, hits, firsts = values
        entry = Entry(
            step=self.steps_done,
            loss=loss / max(count, 1),
            first=hits / max(firsts, 1),
            lr=rate(self.steps_done - 1, self.config.steps, self.config.optimiser),
            seconds=self.seconds,
            tokens=self.steps_done * self.config.noisy_tokens * self.workers.count,
            acceptance=_means(self.measure(self._held_out)) if measuring and self.first else {},
        )
        self.history.append(entry)
        on_entry(entry)

    def measure(
        self, texts: Mapping[str, Corpus], blocks: tuple[int, ...] | None = None
    ) -> dict[str, dict[int, Measured]]:
        """Acceptance of the current (averaged, if so configured) adapter on sets of texts."""
        if not texts:
            return {}
        if self._average is not None:
            self._average.swap()
        with torch.no_grad():
            layers = self.factors.merged(self.backbone)
            found = {
                name: {
                    block: self._drafter.measure(corpus, block, layers, self.factors.mask_embedding)
                    for block in blocks or self._blocks_measured
                }
                for name, corpus in texts.items()
            }
        if self._average is not None:
            self._average.swap()
        return found

    def finished(self) -> Factors:
        """The parameters to save: the average if there is one. The live ones are lost; call it at the end."""
        if self._average is not None:
            self._average.swap()
        return self.factors

    def _out_of_time(self) -> bool:
        limit = self.config.max_seconds
        if limit is None:
            return False
        over = torch.tensor(float(self.seconds > limit), device=self.backbone.device)
        if self.workers.count > 1:
            dist.broadcast(over, 0)  # all processes stop at the same step
        return bool(over.item())

    def _stalled(self) -> bool:
        patience = self.config.patience
        means = [entry.mean for entry in self.history if entry.mean is not None]
        if not patience or self.workers.count > 1 or len(means) <= patience:
            return False
        return max(means[-patience:]) <= max(means[:-patience])

    def save(self, file: Path) -> None:
        """Writes a checkpoint whole or not at all (first process only)."""
        if not self.first:
            return
        part = file.with_suffix(".part")
        file.parent.mkdir(parents=True, exist_ok=True)
        state: dict[str, Any] = {
            "settings": self._settings(),
            "step": self.steps_done,
            "seconds": self.seconds,
            "factors": self.factors.state_dict(),
            "average": None if self._average is None else self._average.values,
            "optimiser": self._optimiser.state(),
            "history": [asdict(entry) for entry in self.history],
        }
        torch.save(state, part)
        part.replace(file)

    def _settings(self) -> dict[str, Any]:
        return _settings(self.config) | {"start": None if self.start is None else self.start.fingerprint}

    def resume(self, file: Path) -> None:
        """Continues from a checkpoint.

        How long the run is, how often it looks up and its learning rate may differ from the run that wrote
        it (`CHANGEABLE`). Raises CheckpointError if it is damaged, or naming the other settings that differ.
        """
        try:
            state = torch.load(file, map_location=self.backbone.device, weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(f"{file} is no checkpoint ({error}); delete it to start anew") from error
        differing = _differing(state["settings"], self._settings())
        if differing:
            raise CheckpointError(
                f"{file} was written with other settings: {differing}; ask for those, or delete "
                "it to start anew"
            )
        self.steps_done, self.seconds = state["step"], state["seconds"]
        self.factors.load_state_dict(state["factors"])
        if self._average is not None:
            for value, saved in zip(self._average.values, state["average"], strict=True):
                value.copy_(saved)
        self._optimiser.restore(state["optimiser"])
        self.history = [Entry(**entry) for entry in state["history"]]


def _factors(backbone: Backbone, config: TrainConfig, mask_token: int, start: Start | None) -> Factors:
    """Anew, MASK slots beginning as the mean embedding, or as the adapter to start from has them."""
    embedding = backbone.embedding.float()
    mask_start = embedding.mean(0) if start is None else embedding[mask_token]
    factors = Factors(backbone.decoder.config, config.lora, mask_start, config.seed)
    if start is not None:
        require_same_shape(start.adapter.ranks, factors.ranks())
        require_same_mask(start, mask_token)
        factors.take(start.adapter)
    return factors


def _compiled_outcome() -> ChunkFunction:
    return torch.compile(chunk_outcome, fullgraph=True, dynamic=False)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _means(measured: Mapping[str, Mapping[int, Measured]]) -> dict[str, dict[int, float]]:
    return {name: {size: found.mean for size, found in sizes.items()} for name, sizes in measured.items()}


def _settings(config: TrainConfig) -> dict[str, Any]:
    """What a resumed run must share with the one it continues: field → value, as in optimiser.kind."""
    found: dict[str, Any] = {}
    for name, value in asdict(config).items():
        if is_dataclass(getattr(config, name)):
            found |= {f"{name}.{inner}": held for inner, held in value.items()}
        else:
            found[name] = value
    return {name: value for name, value in found.items() if name not in CHANGEABLE}


def _differing(written: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    names = sorted(name for name in {*written, *now} if written.get(name) != now.get(name))
    return ", ".join(f"{name} {written.get(name)!r} (now {now.get(name)!r})" for name in names)


def _memory_advice(config: TrainConfig) -> str:
    return (
        f"out of memory with {config.clean_tokens} clean and {config.noisy_tokens} noisy tokens a step; "
        "halve both (--tokens), and double --steps to train on as many; a lower --rank saves little"
    )
