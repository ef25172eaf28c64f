"""What a measured table holds for: a table of another model, device or version is worse than none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from recguide.models.devices import device_name

PACKAGES = ("recguide", "torch", "triton")
"""Whose versions decide how fast a forward is."""

Setting = str | int | bool


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was measured, where and how.

    Attributes:
        model: its name, for readers; `fingerprint` tells models and adapters apart.
        device: as it calls itself.
        versions: of PACKAGES, as far as they are installed.
        settings: of the engine, as far as they change what a forward costs: dtype, graphs, exact, …
    """

    model: str
    fingerprint: str
    device: str
    versions: Mapping[str, str]
    settings: Mapping[str, Setting]

    @classmethod
    def here(
        cls, model: str, fingerprint: str, device: torch.device, settings: Mapping[str, Setting]
    ) -> Conditions:
        """Those of this process."""
        return cls(model, fingerprint, device_name(device), _versions(), dict(settings))

    def mismatch(self, wanted: Conditions) -> str | None:
        """Why what was measured under these conditions says nothing about those; None if it does."""
        if self.fingerprint != wanted.fingerprint:
            return (
                f"it is of the model {self.model} ({self.fingerprint}), not of {wanted.model} "
                f"({wanted.fingerprint})"
            )
        if self.device != wanted.device:
            return f"it was measured on {self.device}, not on {wanted.device}"
        return _difference(self.versions, wanted.versions) or _difference(self.settings, wanted.settings)


def _difference(had: Mapping[str, Setting], wanted: Mapping[str, Setting]) -> str | None:
    for name in sorted({*had, *wanted}):
        if had.get(name) != wanted.get(name):
            return f"it was measured with {name} {had.get(name)}, not {wanted.get(name)}"
    return None


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # triton comes with torch on GPUs only
            continue
    return found
