"""Numbers measured elsewhere on one H200 (torch 2.11, CUDA 13.0) that ours are held against.

Published shapes in bfloat16 with random weights. Times are milliseconds, medians.
"""

from __future__ import annotations

from collections.abc import Mapping

from recguide.models.config import ModelConfig

COPY_BYTES_PER_MS = 4.29e9
"""Device-to-device copy, bytes read plus written."""

QUERY_TOKENS = (1, 8, 16, 32, 64, 80, 96, 128, 160, 192, 256, 384, 512, 1024, 2048, 4096)

PRODUCTS_MS: Mapping[str, tuple[float, ...]] = {
    "nld-8b": (
        4.26,
        4.29,
        4.35,
        4.44,
        4.60,
        4.67,
        4.80,
        4.99,
        5.34,
        6.05,
        7.32,
        9.94,
        12.6,
        24.6,
        49.7,
        96.1,
    ),
    "nld-14b": (
        6.73,
        6.77,
        6.85,
        6.83,
        7.05,
        7.19,
        7.31,
        7.67,
        8.58,
        9.65,
        11.5,
        16.1,
        21.1,
        40.5,
        79.6,
        158,
    ),
}
"""All linear layers and the head alone under one CUDA graph, by QUERY_TOKENS."""

PLAIN_MS: Mapping[str, tuple[float, ...]] = {
    "nld-8b": (4.90, 5.83, 5.91, 6.04, 6.35, 6.50, 6.60, 6.91, 7.47, 8.35, 9.53),
    "nld-14b": (7.66, 8.60, 8.70, 8.80, 9.19, 9.43, 9.47, 10.0, 10.9, 11.9, 14.2),
}
"""An unfused torch decoder with SDPA over 1,024 prefix tokens under one CUDA graph, by QUERY_TOKENS."""

VLLM_STEP_MS: Mapping[str, Mapping[int, float]] = {
    "nld-8b": {1: 5.20, 2: 5.23, 8: 5.49, 32: 6.43, 64: 7.74, 128: 10.45}
}
"""vLLM 0.26.0, plain decoding (FlashAttention 3, full CUDA graphs), prefix about 1,000, by load."""


def weight_bytes(config: ModelConfig, item_bytes: int = 2) -> int:
    """Bytes of the weights that a forward reads: layers and head, but only a few rows of the embedding."""
    hidden = config.hidden_size
    attention = hidden * (config.query_size + 2 * config.kv_size) + config.query_size * hidden
    layer = attention + 3 * hidden * config.intermediate_size + 2 * hidden
    return item_bytes * (config.layers * layer + hidden + config.vocab_size * hidden)


def floor_ms(config: ModelConfig, item_bytes: int = 2) -> float:
    """No forward is faster: its weights have to be read once."""
    return weight_bytes(config, item_bytes) / COPY_BYTES_PER_MS


def anchor(line: Mapping[str, tuple[float, ...]], model: str, query_tokens: int) -> float | None:
    """A line's value where it was measured; None elsewhere."""
    if query_tokens not in QUERY_TOKENS:
        return None
    values = line.get(model, ())
    index = QUERY_TOKENS.index(query_tokens)
    return values[index] if index < len(values) else None
