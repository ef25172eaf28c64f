"""What a decoder is: the fields of a checkpoint's config.json that change its arithmetic, typed and checked.

Each family maps its own file to `ModelConfig`; the decoder knows nothing else about families.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from recguide.core import CheckpointError

LARGEST = 2**31 - 1
"""No count or length in a file is larger; positions fit 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1's stretch of the slow rotary frequencies; the fast ones stay."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Every rotary frequency divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): fast frequencies stay, slow ones are divided by `factor`, a ramp between.

    `factor` may be below 1. `attention_factor` multiplies cos and sin; None derives it from `mscale` and
    `mscale_all_dim`. `truncate` rounds the ramp's ends to whole dimensions.
    """

    factor: float
    original_max_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position encoding: base `theta` and how its frequencies are scaled (None: not at all)."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScale:
    """Llama-4 style: queries at position p are scaled by 1 + beta·ln(1 + ⌊p / original_max_positions⌋)."""

    beta: float
    original_max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer with pre-norm residual blocks, grouped-query attention and SwiGLU.

    Attributes:
        family: `model_type` of the checkpoint.
        heads, kv_heads: query heads and key/value heads of one layer.
        head_dim: not hidden_size / heads in every family.
        query_scale: None for none.
        tie_embeddings: the head is the embedding.
        max_positions: positions the model was made for.
        eos_token_ids: any of them ends a text.
        mask_token_id: id fed to MASK slots; None if the file names none.
        block_size: block length the model was trained to draft, as the file says; None if it does not.
        native_drafts: the backbone itself learned to draft, without an adapter.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeConfig
    query_scale: QueryScale | None
    tie_embeddings: bool
    max_positions: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    mask_token_id: int | None
    block_size: int | None
    native_drafts: bool

    @property
    def reserved_token_ids(self) -> tuple[int, ...]:
        """Ids that begin or end texts: never a mask token."""
        return self.eos_token_ids if self.bos_token_id is None else (self.bos_token_id, *self.eos_token_ids)

    @property
    def query_size(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads."""
        return self.kv_heads * self.head_dim


class Fields:
    """Typed access to one JSON object of a file; every complaint names file and field."""

    def __init__(self, values: Mapping[str, object], file: Path, prefix: str = "") -> None:
        self._values = values
        self.file = file
        self._prefix = prefix

    @classmethod
    def read(cls, file: Path) -> Fields:
        """Raises CheckpointError if the file is missing, unreadable or not a JSON object."""
        try:
            values: object = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{file} is missing; the folder is not a checkpoint") from None
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{file} cannot be read as JSON ({error}); fetch it again") from error
        if not isinstance(values, dict):
            raise CheckpointError(f"{file} does not hold a JSON object")
        return cls(cast("dict[str, object]", values), file)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def get(self, name: str) -> object:
        """The raw value, None if absent."""
        return self._values.get(name)

    def fail(self, name: str, message: str) -> CheckpointError:
        """The error to raise about a field."""
        return CheckpointError(f"{self.file}, field {self._prefix}{name}: {message}")

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(name, f"must be an integer (got {value!r})")
        return value

    def positive(self, name: str, default: int | None = None, most: int = LARGEST) -> int:
        value = self.integer(name, default)
        if not 1 <= value <= most:
            raise self.fail(name, f"must lie in [1, {most}] (got {value})")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive, finite number."""
        value = self._value(name, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value <= sys.float_info.max
        ):
            raise self.fail(name, f"must be a positive number (got {value!r})")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.fail(name, f"must be true or false (got {value!r})")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.fail(name, f"must be a string (got {value!r})")
        return value

    def token(self, name: str) -> int | None:
        """A token id or null."""
        return None if self.get(name) is None else self.integer(name)

    def tokens(self, name: str) -> tuple[int, ...]:
        """One token id, a list of them, or null for none."""
        value = self.get(name)
        values = cast("list[object]", value) if isinstance(value, list) else [value]
        ids = tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool))
        if value is not None and len(ids) != len(values):
            raise self.fail(name, f"must be a token id or a list of token ids (got {value!r})")
        return ids

    def object(self, name: str) -> Fields | None:
        """A nested object, None if absent or null."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fail(name, f"must be an object (got {value!r})")
        return Fields(cast("dict[str, object]", value), self.file, f"{self._prefix}{name}.")

    def refuse(self, name: str, *allowed: object) -> None:
        """Raises unless the field is absent, null or one of the allowed values."""
        value = self.get(name)
        if value is not None and value not in allowed:
            raise self.fail(name, f"{value!r} is not supported by RecGuide")

    def _value(self, name: str, default: object) -> object:
        value = self._values.get(name)
        value = default if value is None else value
        if value is None:
            raise self.fail(name, "is missing")
        return value
