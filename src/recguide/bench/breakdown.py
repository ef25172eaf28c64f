"""Where the time of a device goes: kernels of a trace by what they do, and the gaps between them."""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

PARTS = ("products", "attention", "picks", "other", "gaps")

OURS: Mapping[str, str] = {
    "recguide.attention.kernels": "attention",
    "recguide.models.kernels.product": "products",
    "recguide.models.kernels.delta": "products",
    "recguide.speculation.kernels": "picks",
    "recguide.bench.acceptance.kernel": "picks",
}
"""Our kernels by the module or package that holds them; those of no module here are "other"."""
KERNELS = ("JITFunction", "InterpretedFunction", "Autotuner")
"""Types of Triton's kernels, by name: it may not be installed."""
LIBRARY = ("gemm", "gemv", "nvjet", "cutlass", "cublas", "splitk")
"""Matrix products of vendors' libraries, by parts of their names."""


@dataclass(frozen=True, slots=True)
class Span:
    """A kernel or copy on the device's timeline, microseconds."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Milliseconds by part, and by kernel (name → (part, milliseconds, launches)); all per step."""

    steps: int
    parts: Mapping[str, float]
    kernels: Mapping[str, tuple[str, float, float]]

    @property
    def total_ms(self) -> float:
        return sum(self.parts.values())


def record(step: Callable[[], object], steps: int) -> list[Span]:
    """What the device does during `steps` calls."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events: Iterable[Any] = trace.events() or ()
    return [
        Span(event.name, event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type.name == "CUDA"
    ]


def break_down(spans: Sequence[Span], steps: int, part_of: Callable[[str], str]) -> Breakdown:
    """Adds time up by part; every instant counts once.

    Where kernels overlap, as dependent launches do, the one that began first is at work and the others wait.
    """
    parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    each: defaultdict[str, list[float]] = defaultdict(list)
    ordered = sorted(spans, key=lambda span: (span.start, span.end))
    reached = ordered[0].start if ordered else 0.0
    for span in ordered:
        parts["gaps"] += max(0.0, span.start - reached)
        alone = max(0.0, span.end - max(span.start, reached))
        reached = max(reached, span.end)
        parts[part_of(span.name)] += alone
        each[span.name].append(alone)
    scale = 1e-3 / steps
    return Breakdown(
        steps=steps,
        parts={part: scale * time for part, time in parts.items()},
        kernels={
            name: (part_of(name), scale * sum(times), len(times) / steps) for name, times in each.items()
        },
    )


def part_of(name: str) -> str:
    """The part that a kernel belongs to, by its name in a trace."""
    ours = _our_kernels()
    if name in ours:
        return ours[name]
    lower = name.lower()
    return "products" if any(word in lower for word in LIBRARY) else "other"


@cache
def _our_kernels() -> Mapping[str, str]:
    """Names of our Triton kernels → part."""
    found: dict[str, str] = {}
    for place, part in OURS.items():
        for module in kernel_modules(place):
            for name, value in vars(module).items():
                if type(value).__name__ in KERNELS:
                    found[name] = part
    return found


def kernel_modules(place: str) -> Iterable[ModuleType]:
    """A module or package of kernels, and the package's modules."""
    module = importlib.import_module(place)
    yield module
    for info in pkgutil.iter_modules(getattr(module, "__path__", ())):
        yield importlib.import_module(f"{place}.{info.name}")
