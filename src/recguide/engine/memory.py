"""How a device's memory is shared out: weights, graphs and logits first, the rest holds keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from recguide.core import KVShape, ParameterError
from recguide.kv.pages import pages_for

GIB = 2**30

CPU_TOKENS = 32_768
"""Tokens that the KV cache holds on a CPU unless more or fewer are asked for."""


@dataclass(frozen=True, slots=True)
class Device:
    """What there is before the KV cache is made, in bytes.

    Attributes:
        total: memory of the device.
        taken: what is in use already, by whomever, weights included.
        weights: the model's.
        graphs: what CUDA graphs and the largest forward will need beside the weights, logits included.
    """

    total: int
    taken: int
    weights: int
    graphs: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where the memory goes, in bytes, and what the KV cache holds for it.

    Attributes:
        weights: of the model; 0 on a CPU, where nobody counts.
        graphs: CUDA graphs with what they share, logits included.
        kv: the KV cache, of `kv_pages` pages that hold `kv_tokens` tokens.
        logits: the largest logits of a forward.
        seconds: how long the start-up took, graphs included.
    """

    weights: int
    graphs: int
    kv: int
    kv_pages: int
    kv_tokens: int
    logits: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        weights = f"weights {_gib(self.weights)}, " if self.weights else ""
        graphs = f"graphs {_gib(self.graphs)} (logits {_gib(self.logits)}), " if self.graphs else ""
        cache = f"KV cache {_gib(self.kv)} for {self.kv_tokens} tokens, "
        return f"memory: {weights}{cache}{graphs}ready in {self.seconds:.1f} s"


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"


def plan_memory(
    device: Device, shape: KVShape, *, page_size: int, wanted: int | None, most: int, utilisation: float
) -> MemoryPlan:
    """Sizes the KV cache.

    Args:
        device: what there is.
        shape: what a cached token costs.
        page_size: tokens of a page.
        wanted: tokens asked for; None takes what is left.
        most: tokens that can ever be in use at once; no more are taken without being asked for.
        utilisation: share of the device's memory that may be used, whoever uses it.

    Raises ParameterError if not even one page is left.
    """
    page_bytes = page_size * shape.bytes_per_token
    if wanted is None:
        left = int(device.total * utilisation) - device.taken - device.graphs
        pages = min(left // page_bytes, pages_for(most, page_size))
        if pages < 1:
            raise ParameterError(
                "gpu_memory_utilisation",
                f"{device.taken / GIB:.1f} of {device.total / GIB:.1f} GiB are in use and graphs need "
                f"{device.graphs / GIB:.1f}, so nothing is left for the KV cache; raise it or free memory",
            )
    else:
        pages = pages_for(wanted, page_size)
    return MemoryPlan(
        weights=device.weights,
        graphs=device.graphs,
        kv_pages=pages,
        kv_tokens=pages * page_size,
        kv=pages * page_bytes,
    )
