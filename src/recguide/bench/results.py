"""Result files: a number is worth what is known of how it came about."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that a benchmark was asked to reach; `met` says whether it did."""

    name: str
    value: float
    target: float
    met: bool

    @classmethod
    def at_least(cls, name: str, value: float, target: float) -> Target:
        return cls(name, value, target, value >= target)

    @classmethod
    def at_most(cls, name: str, value: float, target: float) -> Target:
        return cls(name, value, target, value <= target)


def write_result(
    file: Path,
    *,
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    targets: Sequence[Target] = (),
    curve: Sequence[Mapping[str, Any]] = (),
    device: torch.device | None = None,
) -> None:
    """Writes provenance, settings, rows and targets as one JSON file, and the curve of what was trained."""
    result: dict[str, Any] = {
        "provenance": provenance(device),
        "settings": dict(settings),
        "targets": [asdict(target) for target in targets],
        "rows": [dict(row) for row in rows],
    }
    if curve:
        result["curve"] = [dict(point) for point in curve]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n")


def provenance(device: torch.device | None) -> dict[str, str]:
    """Device (None is the CPU), versions, commit and time of a measurement of models."""
    import torch  # not for who only sends load

    from recguide.models.devices import device_name

    return {
        "device": device_name(device or torch.device("cpu")),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        **origin(),
    }


def origin() -> dict[str, str]:
    """What is known of any measurement: Python, RecGuide, commit and time."""
    return {
        "python": platform.python_version(),
        "recguide": _installed_version(),
        "commit": _commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _installed_version() -> str:
    """RecGuide's version; a tree that is only on Python's path has none."""
    try:
        return version("recguide")
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit of the source tree, marked when files differ from it.

    Outside a checkout it is what RECGUIDE_COMMIT says (of a tree unpacked from an archive), or "unknown".
    """
    if named := os.environ.get("RECGUIDE_COMMIT"):
        return named
    folder = Path(__file__).parent
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        return head + ("+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ("git", "-C", str(folder), *words), check=True, capture_output=True, text=True
    ).stdout.strip()
