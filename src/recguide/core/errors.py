"""Errors that RecGuide raises on purpose."""

from __future__ import annotations


class RecGuideError(Exception):
    """Base of every error that RecGuide raises on purpose."""


class ParameterError(RecGuideError, ValueError):
    """A parameter that cannot be honoured; names the field and the remedy."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(f"{parameter}: {message}")
        self.parameter = parameter


class CheckpointError(RecGuideError):
    """A checkpoint, adapter or tokenizer that does not hold what its files promise; names file and tensor."""
