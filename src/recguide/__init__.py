"""RecGuide: self-speculative decoding, one backbone that drafts and verifies for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recguide.core import (
        Chunk,
        Completion,
        Generation,
        ParameterError,
        RecGuideError,
        SamplingParams,
        Structure,
    )
    from recguide.llm import LLM

__all__ = [
    "LLM",
    "Chunk",
    "Completion",
    "Generation",
    "ParameterError",
    "RecGuideError",
    "SamplingParams",
    "Structure",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Imports on first use, so that `recguide --help` does not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'recguide' has no attribute {name!r}")
    import importlib

    room = "recguide.llm" if name == "LLM" else "recguide.core"
    return getattr(importlib.import_module(room), name)
