"""Start-up: memory for keys and values, and the graphs that are ready before the first request."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from recguide.core import Backbone
from recguide.engine.backends import has_kernels
from recguide.engine.collecting import collect_seldom
from recguide.engine.config import EngineConfig
from recguide.engine.memory import CPU_TOKENS, Device, MemoryPlan, plan_memory
from recguide.engine.rooms import Limits
from recguide.engine.runner import Runner
from recguide.speculation.fused import ALIKE, FusedPicker
from recguide.speculation.slots import Picker

_LOG = logging.getLogger(__name__)

CPU_PAGE, GPU_PAGE = 16, 64
"""Tokens of a page where none are asked for. On a GPU one holds the keys that a kernel reads at once."""


def start(
    backbone: Backbone, config: EngineConfig, picker: Picker | None, most_length: int
) -> tuple[Runner, MemoryPlan]:
    """A runner with all the memory that it may have, and its graphs captured.

    From then on this process collects cyclic garbage seldom.

    Args:
        picker: what picks on the device; None is the fused one where there are kernels, and else the host.
        most_length: tokens of a request at most.
    """
    began, shape = time.perf_counter(), backbone.kv_shape
    kernels = has_kernels(shape)
    page_size = config.page_size or (GPU_PAGE if kernels else CPU_PAGE)
    if picker is None and kernels:
        picker = FusedPicker(backbone.vocabulary, shape.device, ALIKE if config.exact else None)
    limits = None
    if kernels and config.graphs is not False:
        limits = Limits(
            tokens=config.max_batch_tokens,
            requests=config.max_running,
            length=most_length,
            block=max(32, config.block_size or 0),
            stops=len(backbone.vocabulary.eos) + 4,
        )

    def runner(pages: int) -> Runner:
        return Runner(
            backbone, pages=pages, page_size=page_size, picker=picker, exact=config.exact, graphs=limits
        )

    wanted = config.kv_cache_tokens
    if wanted is None and not kernels:
        wanted = CPU_TOKENS
    plan = plan_memory(
        _measured(shape.device, runner) if wanted is None else _known(shape.device),
        shape,
        page_size=page_size,
        wanted=wanted,
        most=config.max_running * most_length,
        utilisation=config.gpu_memory_utilisation,
    )
    made = runner(plan.kv_pages)
    graphs = _growth(shape.device, made.prepare)
    plan = replace(plan, graphs=graphs, logits=made.logits_bytes, seconds=time.perf_counter() - began)
    _LOG.info("%s", plan)
    collect_seldom()
    return made, plan


def _known(device: torch.device) -> Device:
    """Enough where the KV cache has its size already."""
    return Device(total=0, taken=0, weights=_allocated(device), graphs=0)


def _measured(device: torch.device, runner: Callable[[int], Runner]) -> Device:
    """What there is, and what graphs and the largest forward need: tried with a cache of one page."""
    _tidy()
    free, total = torch.cuda.mem_get_info(device)
    weights = _allocated(device)
    made = runner(1)
    graphs = _allocated(device) - weights + made.trial()
    del made
    _tidy()
    return Device(total=total, taken=total - free, weights=weights, graphs=graphs)


def _growth(device: torch.device, work: Callable[[], None]) -> int:
    """Bytes of device memory that are in use after some work and were not before."""
    if device.type != "cuda":
        work()
        return 0
    before = torch.cuda.mem_get_info(device)[0]
    work()
    torch.cuda.synchronize(device)
    return max(0, before - torch.cuda.mem_get_info(device)[0])


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _tidy() -> None:
    gc.collect()
    torch.cuda.empty_cache()
