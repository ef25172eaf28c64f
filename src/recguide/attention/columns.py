"""Named arrays that share one buffer, so that one copy brings all of them to a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 16
"""Bytes; kernels load the beginning of every array in whole vectors."""

Arrays = dict[str, NDArray[Any]]

_TORCH = {np.int32: torch.int32, np.int64: torch.int64, np.float32: torch.float32, np.bool_: torch.bool}


@dataclass(frozen=True, slots=True)
class Column:
    """One array: its shape, and an element type that NumPy and PyTorch both know."""

    shape: tuple[int, ...]
    dtype: type[np.int32] | type[np.int64] | type[np.float32] | type[np.bool_] = np.int32

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


class Columns:
    """Where each array lies in the buffer.

    Attributes:
        size: bytes of the whole buffer.
        starts: byte at which each array begins, in the order in which they were named.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = dict(columns)
        self.starts: dict[str, int] = {}
        at = 0
        for name, column in columns.items():
            self.starts[name] = at
            at += -(-column.nbytes // ALIGNMENT) * ALIGNMENT
        self.size = at

    def arrays(self, buffer: NDArray[np.uint8]) -> Arrays:
        """Views of a host buffer of `size` bytes or more."""
        return {
            name: buffer[start : start + column.nbytes].view(column.dtype).reshape(column.shape)
            for name, column, start in self._placed()
        }

    def tensors(self, buffer: Tensor) -> dict[str, Tensor]:
        """Views of a buffer [`size` or more] uint8 on any device."""
        return {
            name: buffer[start : start + column.nbytes].view(_TORCH[column.dtype]).view(column.shape)
            for name, column, start in self._placed()
        }

    def _placed(self) -> list[tuple[str, Column, int]]:
        return [(name, column, self.starts[name]) for name, column in self._columns.items()]
