"""What an adaptation is asked to do: frozen settings that check themselves, with the recipe's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from recguide.core import ParameterError

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TILE = 128
"""Noisy tokens are laid out in tiles of this many; a tile holds blocks of one size, so a size divides it."""


def _require(ok: bool, parameter: str, message: str, value: object) -> None:
    if not ok:
        raise ParameterError(parameter, f"{message} (got {value!r})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationConfig:
    """How the model writes the texts it will be trained on.

    Attributes:
        temperatures: one pass over the prompts for each; 0 is greedy.
        max_new_tokens: tokens per text at most.
        max_prompt_tokens: longer prompts are left out.
        lanes: sequences that decode together.
        chunk: prompts per saved file; an interrupted run starts again at the first missing file.
        seed: sampling seed of the passes.
    """

    temperatures: tuple[float, ...] = (0.0, 0.7)
    max_new_tokens: int = 256
    max_prompt_tokens: int = 384
    lanes: int = 256
    chunk: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        _require(bool(self.temperatures), "temperatures", "must name one pass at least", self.temperatures)
        _require(all(t >= 0 for t in self.temperatures), "temperatures", "must be ≥ 0", self.temperatures)
        for name in ("max_new_tokens", "max_prompt_tokens", "lanes", "chunk"):
            _require(getattr(self, name) >= 1, name, "must be at least 1", getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Shape of the adapter.

    Attributes:
        rank: rank of every target without an entry in `rank_pattern`.
        alpha: the delta is alpha / rank · B·A (alpha / √rank with `rslora`); None is twice the rank.
        targets: linear layers that get a delta, by their names in the checkpoint.
        rank_pattern: target, or "layers.<index>.<…>.<target>" → rank. Alpha follows, so the scale stays.
        rslora: scale by alpha / √rank.
    """

    rank: int = 64
    alpha: float | None = None
    targets: tuple[str, ...] = TARGETS
    rank_pattern: Mapping[str, int] = field(default_factory=dict[str, int])
    rslora: bool = False

    def __post_init__(self) -> None:
        _require(self.rank >= 1, "rank", "must be at least 1", self.rank)
        _require(bool(self.targets), "targets", "must name one linear layer at least", self.targets)
        unknown = [name for name in self.targets if name not in TARGETS]
        _require(not unknown, "targets", f"must be among {', '.join(TARGETS)}", unknown)
        _require(
            all(r >= 1 for r in self.rank_pattern.values()), "rank_pattern", "must be ≥ 1", self.rank_pattern
        )

    @property
    def scale(self) -> float:
        """Multiplier of B·A for a target of rank `rank`."""
        alpha = 2.0 * self.rank if self.alpha is None else self.alpha
        return alpha / (self.rank**0.5 if self.rslora else self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """Which blocks are drafted while training.

    Attributes:
        sizes: block size → share of the noisy tokens.
        continuation_share: share of blocks that are all MASK; the others begin with a seed.
        hard_start_bias: a block's start is drawn with weight 1 + bias · (1 − p), p the probability that the
            model gave to the seed. Rounds begin where a draft failed, so decoding sees hard seeds more often
            than uniform positions would.
    """

    sizes: Mapping[int, float] = field(default_factory=lambda: {8: 0.35, 16: 0.5, 32: 0.15})
    continuation_share: float = 0.1
    hard_start_bias: float = 2.0

    def __post_init__(self) -> None:
        bad = [size for size in self.sizes if size < 2 or TILE % size]
        _require(
            bool(self.sizes) and not bad, "block_sizes", f"must be ≥ 2 and divide {TILE}", tuple(self.sizes)
        )
        _require(
            all(w > 0 for w in self.sizes.values()), "block_sizes", "shares must be positive", self.sizes
        )
        share = self.continuation_share
        _require(0 <= share <= 1, "continuation_share", "must lie in [0, 1]", share)
        _require(self.hard_start_bias >= 0, "hard_start_bias", "must be ≥ 0", self.hard_start_bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """What a drafted slot is trained towards, and how much it counts.

    The target of a slot is hard · (the text's token) + (1 − hard) · (the model's own next-token distribution
    at `teacher_temperature`). Its weight is (1 − reach) · exp(−(k − 1) / decay) + reach · Π p, with k the
    tokens it looks ahead and Π p the probability that all earlier slots of its block are right (no gradient):
    slots behind a sure mismatch do not count, as in decoding.
    """

    hard: float = 0.5
    teacher_temperature: float = 1.0
    decay: float = 8.0
    reach: float = 0.5

    def __post_init__(self) -> None:
        _require(0 <= self.hard <= 1, "hard", "must lie in [0, 1]", self.hard)
        _require(0 <= self.reach <= 1, "reach", "must lie in [0, 1]", self.reach)
        _require(self.teacher_temperature > 0, "teacher_temperature", "must be > 0", self.teacher_temperature)
        _require(self.decay > 0, "decay", "must be > 0", self.decay)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserConfig:
    """How parameters move.

    Attributes:
        kind: "adamw", or "muon" (orthogonalised momentum for the matrices, AdamW for the rest).
        lr: peak learning rate.
        b_ratio: learning rate of the B matrices over that of A (LoRA+).
        warmup: share of the steps in which the rate rises.
        schedule: "cosine" after the rise, or "wsd": constant, then linear over the last `decay` of the steps.
        final: rate at the end over the peak.
        ema: decay of the averaged parameters that are evaluated and saved; 0 for none.
    """

    kind: Literal["adamw", "muon"] = "adamw"
    lr: float = 1e-3
    b_ratio: float = 1.0
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    warmup: float = 0.02
    schedule: Literal["cosine", "wsd"] = "cosine"
    decay: float = 0.4
    final: float = 0.02
    ema: float = 0.0

    def __post_init__(self) -> None:
        _require(self.kind in ("adamw", "muon"), "optimiser", "must be adamw or muon", self.kind)
        _require(self.schedule in ("cosine", "wsd"), "schedule", "must be cosine or wsd", self.schedule)
        _require(self.lr > 0, "lr", "must be > 0", self.lr)
        _require(self.b_ratio > 0, "b_ratio", "must be > 0", self.b_ratio)
        _require(0 <= self.warmup < 1, "warmup", "must lie in [0, 1)", self.warmup)
        _require(0 < self.decay <= 1, "decay", "must lie in (0, 1]", self.decay)
        _require(0 <= self.ema < 1, "ema", "must lie in [0, 1)", self.ema)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run.

    Attributes:
        steps: optimiser steps.
        clean_tokens: tokens of text per step and device.
        noisy_tokens: drafted slots per step and device.
        eval_every: steps between held-out measurements; 0 for only one at the end.
        checkpoint_every: steps between checkpoints; 0 for only one at the end.
        patience: measurements without a better held-out acceptance before the run stops; 0 never stops.
        max_seconds: stop after that much training time (a checkpoint is written; the run can be resumed).
        seed: order of texts, choice of blocks and the first adapter.
        compiled: fuse the layers with torch.compile; None does so on a GPU.
    """

    steps: int = 2000
    clean_tokens: int = 16_384
    noisy_tokens: int = 16_384
    eval_every: int = 250
    checkpoint_every: int = 0
    patience: int = 0
    max_seconds: float | None = None
    seed: int = 0
    compiled: bool | None = None
    lora: LoraConfig = field(default_factory=LoraConfig)
    blocks: BlockConfig = field(default_factory=BlockConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)

    def __post_init__(self) -> None:
        _require(self.steps >= 1, "steps", "must be at least 1", self.steps)
        for name in ("clean_tokens", "noisy_tokens"):
            size = getattr(self, name)
            _require(size >= TILE and size % TILE == 0, name, f"must be a multiple of {TILE}", size)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointConfig:
    """Joint AR + diffusion training of the whole backbone (arXiv 2607.05722): it changes the model.

    Attributes:
        block_size: tokens of one block of the noisy half.
        alpha: weight of the diffusion loss beside the next-token loss.
    """

    block_size: int = 32
    alpha: float = 0.3

    def __post_init__(self) -> None:
        _require(self.block_size >= 2, "block_size", "must be at least 2", self.block_size)
        _require(self.alpha > 0, "alpha", "must be > 0", self.alpha)


JOINT_OPTIMISER = OptimiserConfig(
    lr=1e-5, schedule="wsd", weight_decay=0.1, warmup=0.01, decay=0.2, final=0.1
)
"""Rates for training all weights, far below those of an adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptConfig:
    """Everything `recguide adapt` needs.

    Attributes:
        model: folder, Hugging Face id or known name.
        prompts: JSON Lines with `prompt` and, optionally, `source` and `licence`; .gz and .zst are read too.
        output: folder of the finished adapter.
        work: folder of the continuations and checkpoints; None is `output`/work.
        limit: prompts used at most, spread over the sources; None for all.
        held_out: prompts of each source group that are measured, never trained on.
        mask_token_id: id fed to MASK slots where the checkpoint names none; None picks an unused special
        token.
        start: PEFT folder of an adapter of the same ranks and scales, to go on from; None starts anew.
        shares: task → share of its prompts that is trained on, in (0, 1]; tasks not named keep all.
        joint: train the whole backbone for AR and diffusion together instead of an adapter; None does not.
        measure: name → prompt file; acceptance on them is measured at the end, they are never trained on.
        measure_limit: prompts of each such file, from its beginning.
    """

    model: str
    prompts: Path
    output: Path
    work: Path | None = None
    device: str = "auto"
    dtype: str = "auto"
    limit: int | None = None
    held_out: int = 32
    mask_token_id: int | None = None
    start: Path | None = None
    shares: Mapping[str, float] = field(default_factory=dict[str, float])
    joint: JointConfig | None = None
    measure: Mapping[str, Path] = field(default_factory=dict[str, Path])
    measure_limit: int = 100
    continuation: ContinuationConfig = field(default_factory=ContinuationConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        _require(self.start is None or self.joint is None, "start", "is for adapters, not joint", self.start)
        _require(all(0 < s <= 1 for s in self.shares.values()), "shares", "must lie in (0, 1]", self.shares)

    @property
    def work_folder(self) -> Path:
        return self.output / "work" if self.work is None else self.work
