"""Dataclasses for what is made for every request in every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def light(cls: type[T]) -> type[T]:
    """A dataclass whose fields are not to be changed, by type checkers' word alone.

    For what is made for every request in every step: one that enforced it would take seven times as long.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
