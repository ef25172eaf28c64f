"""What an engine is told once, before any request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recguide.core import MAX_BLOCK, ParameterError
from recguide.guidance.batching import batching_named
from recguide.guidance.policy import check_policy
from recguide.speculation.methods import method_named

_COUNTS = ("block_size", "max_running", "max_batch_tokens", "kv_cache_tokens", "page_size")
_OPTIONAL = ("block_size", "kv_cache_tokens", "page_size")

BLOCK_SIZE = 16
"""Of a request for which neither it nor the engine names one, and no policy chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How requests share a forward, the KV cache and the device.

    Attributes:
        method, block_size: what a request gets that names none; method None is "recguide" for a model that
            can draft and "ar" for one that cannot. Block size None leaves method "recguide" to the policy,
            and is 16 for others.
        policy: who chooses blocks and branches where no block size is named: one of guidance.policy.POLICIES.
        batching: how such requests share forwards: "ragged", "bucketed" or "padded".
        cost_table, value_table: files that policies go by; None takes those found in the user's cache, or
            priors.
        trace: file that every verified round is recorded in; None records nothing.
        max_running: requests that decode together at most.
        max_batch_tokens: query tokens of a forward at most (a single request may exceed it).
        max_waiting: requests that may wait for their turn; more are refused. None sets no limit.
        kv_cache_tokens: tokens that the KV cache holds; None is 32,768 on a CPU, and on a GPU what is left of
            the memory, but no more than `max_running` requests of the greatest length can use.
        page_size: tokens of a KV page; None is 16 on a CPU and 64 on a GPU.
        prefix_cache: whether KV is kept, while there is room, for other texts that begin alike.
        max_model_len: prompt and output tokens of a request at most; None is the model's limit.
        gpu_memory_utilisation: share of a GPU's memory that may be in use, other programs' use included.
        exact: attention whose results do not depend on what else runs; the model has to be loaded so too.
        graphs: whether forwards run through CUDA graphs; None wherever they can.
    """

    method: str | None = None
    block_size: int | None = None
    policy: str = "price"
    batching: str = "ragged"
    cost_table: Path | None = None
    value_table: Path | None = None
    trace: Path | None = None
    max_running: int = 64
    max_batch_tokens: int = 1024
    max_waiting: int | None = None
    kv_cache_tokens: int | None = None
    page_size: int | None = None
    prefix_cache: bool = True
    max_model_len: int | None = None
    gpu_memory_utilisation: float = 0.9
    exact: bool = False
    graphs: bool | None = None

    def __post_init__(self) -> None:
        if self.method is not None:
            method_named(self.method)
        check_policy(self.policy)
        batching_named(self.batching)
        for name in _COUNTS:
            value: object = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ParameterError(name, f"must be an integer of at least 1 (got {value!r})")
        if self.max_waiting is not None and self.max_waiting < 0:
            raise ParameterError("max_waiting", f"must be at least 0 (got {self.max_waiting!r})")
        if self.block_size is not None and self.block_size > MAX_BLOCK:
            raise ParameterError("block_size", f"must lie in [1, {MAX_BLOCK}] (got {self.block_size!r})")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ParameterError("max_model_len", "must be at least 2, a prompt and an output token")
        if not 0 < self.gpu_memory_utilisation <= 1:
            raise ParameterError(
                "gpu_memory_utilisation", f"must lie in (0, 1] (got {self.gpu_memory_utilisation!r})"
            )
