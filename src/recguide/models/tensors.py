"""One safetensors file that complains by file and tensor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from safetensors import SafetensorError, safe_open
from torch import Tensor

from recguide.core import CheckpointError

PLAIN = ("F64", "F32", "BF16", "F16")
"""Kinds that are numbers by themselves; all smaller ones need scales that stand elsewhere."""


@dataclass(frozen=True, slots=True)
class OpenTensors:
    """One open safetensors file that complains by file and tensor."""

    file: Path
    names: frozenset[str]
    _handle: safe_open

    def read(self, name: str, shape: tuple[int, ...], asked_by: str = "config.json") -> Tensor:
        """A floating-point tensor of that very shape, which the file `asked_by` promises."""
        stored = self._handle.get_slice(name)
        kind = cast("str", stored.get_dtype())
        if kind not in PLAIN:
            raise CheckpointError(f"{self.file}: tensor {name} holds {kind}; quantised weights are not read")
        found = tuple(stored.get_shape())
        if found != shape:
            raise CheckpointError(
                f"{self.file}: tensor {name} has shape {list(found)}, {asked_by} asks for {list(shape)}"
            )
        return self._handle.get_tensor(name)

    def __enter__(self) -> OpenTensors:
        return self

    def __exit__(self, *exception: object) -> None:
        self._handle.__exit__(*exception)


def open_tensors(file: Path) -> OpenTensors:
    """Raises CheckpointError for a missing, truncated or foreign file."""
    try:
        handle = safe_open(file, framework="pt", device="cpu")
        names = frozenset(cast("list[str]", handle.keys()))
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing; fetch it again") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} is truncated or no safetensors file ({error}); fetch it again"
        ) from error
    return OpenTensors(file, names, handle)
