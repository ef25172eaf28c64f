"""How the factors move: learning rates, AdamW, orthogonalised momentum, averaged parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recguide.training.config import OptimiserConfig
from recguide.training.factors import Factors


def rate(step: int, steps: int, config: OptimiserConfig) -> float:
    """Share of the peak learning rate at step 0..steps − 1."""
    warmup = max(1, round(config.warmup * steps))
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "cosine":
        done = (step - warmup) / max(1, steps - warmup)
        return config.final + (1 - config.final) * 0.5 * (1 + math.cos(math.pi * done))
    falling = max(1, round(config.decay * steps))
    left = min(1.0, (steps - step) / falling)
    return config.final + (1 - config.final) * left


class Muon(torch.optim.Optimizer):
    """Momentum, its update orthogonalised for each matrix of a stack [n, rows, columns] (Jordan 2024).

    The update is scaled by 0.2·√max(rows, columns), which gives it the size of an AdamW update (Liu et al.,
    arXiv 2502.16982), so learning rates carry over.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(groups, {"lr": 1e-3, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 (torch's signature)
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                buffer: Tensor = state["momentum"]
                buffer.lerp_(gradient, 1 - group["momentum"])
                update = orthogonalise(gradient.lerp(buffer, group["momentum"]))
                size = 0.2 * max(parameter.shape[-2:]) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update.to(parameter.dtype), alpha=-group["lr"] * size)


def orthogonalise(matrices: Tensor, iterations: int = 5) -> Tensor:
    """[n, rows, columns] → matrices of the same singular vectors, singular values near 1 (Newton-Schulz)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Optimiser:
    """All optimisers of a run under one schedule."""

    def __init__(self, factors: Factors, config: OptimiserConfig, steps: int) -> None:
        self._config = config
        self._steps = steps
        device = factors.mask_embedding.device
        matrices = [
            {"params": list(factors.inner), "lr": config.lr, "peak": config.lr},
            {"params": list(factors.outer), "lr": config.lr, "peak": config.lr * config.b_ratio},
        ]
        vector = {"params": [factors.mask_embedding], "lr": config.lr, "peak": config.lr, "weight_decay": 0.0}
        fused = device.type == "cuda"

        def adamw(groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
            return torch.optim.AdamW(
                groups, betas=config.betas, weight_decay=config.weight_decay, fused=fused
            )

        if config.kind == "muon":
            self._parts = [Muon(matrices, weight_decay=config.weight_decay), adamw([vector])]
        else:
            self._parts = [adamw([*matrices, vector])]
        self._parameters = list(factors.parameters())

    def step(self, index: int) -> Tensor:
        """Clips, moves the parameters, clears gradients; returns the gradient norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self._parameters, self._config.grad_clip)
        share = rate(index, self._steps, self._config)
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = group["peak"] * share
            part.step()
            part.zero_grad(set_to_none=True)
        return norm

    def state(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part in self._parts]

    def restore(self, state: Sequence[dict[str, Any]]) -> None:
        """Takes over the moments; the peak rates stay those of this run."""
        for part, saved in zip(self._parts, state, strict=True):
            peaks = [group["peak"] for group in part.param_groups]
            part.load_state_dict(saved)
            for group, peak in zip(part.param_groups, peaks, strict=True):
                group["peak"] = peak


class Average:
    """Exponential average of a module's parameters."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay = decay
        self._live = list(module.parameters())
        self.values = [parameter.detach().clone() for parameter in self._live]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Moves the average; early on it follows faster, so that the start is forgotten."""
        decay = min(self._decay, (step + 1) / (step + 10))
        for value, parameter in zip(self.values, self._live, strict=True):
            value.lerp_(parameter.detach(), 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchanges average and live values; a second call restores them."""
        for value, parameter in zip(self.values, self._live, strict=True):
            held = parameter.detach().clone()
            parameter.copy_(value)
            value.copy_(held)
