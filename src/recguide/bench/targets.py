"""What every result file was asked to reach, gathered into one table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from recguide.bench.results import Target, write_result
from recguide.bench.tables import text_table
from recguide.core import RecGuideError

if TYPE_CHECKING:
    import torch

COLUMNS = {
    "result": "result",
    "name": "target",
    "value": "value",
    "target": "asked",
    "met": "met",
    "device": "device",
    "commit": "commit",
}
TARGET_TYPES: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "value": (int, float),
    "target": (int, float),
    "met": (bool,),
}
SECTIONS: Mapping[str, type] = {"provenance": dict, "settings": dict, "targets": list, "rows": list}


class MalformedResult(RecGuideError):  # noqa: N818 - it names what was found
    """A result file that does not hold what `write_result` writes."""


@dataclass(frozen=True, slots=True)
class Result:
    """One result file; `name` is the file's without its suffix."""

    name: str
    provenance: Mapping[str, str]
    settings: Mapping[str, Any]
    targets: tuple[Target, ...]
    rows: tuple[Mapping[str, Any], ...]


def read_result(file: Path) -> Result:
    """Raises MalformedResult naming the file and what is wrong with it."""
    try:
        content: object = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MalformedResult(f"{file.name}: cannot be read as JSON ({error})") from error
    sections = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    for name, kind in SECTIONS.items():
        if not isinstance(sections.get(name), kind):
            raise MalformedResult(f"{file.name}: has no {name}, or not as {kind.__name__}")
    for key in ("device", "commit"):
        if not isinstance(sections["provenance"].get(key), str):
            raise MalformedResult(f"{file.name}: its provenance names no {key}")
    return Result(
        name=file.stem,
        provenance=sections["provenance"],
        settings=sections["settings"],
        targets=tuple(_target(file, entry) for entry in sections["targets"]),
        rows=tuple(sections["rows"]),
    )


def _target(file: Path, entry: object) -> Target:
    fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    for name, kinds in TARGET_TYPES.items():
        value = fields.get(name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise MalformedResult(
                f"{file.name}: target {fields.get('name', entry)!r:.60} lacks a proper {name}"
            )
    return Target(**{name: fields[name] for name in TARGET_TYPES})


def read_results(folder: Path) -> tuple[list[Result], list[MalformedResult]]:
    """All result files of a folder by name, and what is wrong with the others."""
    results: list[Result] = []
    faults: list[MalformedResult] = []
    for file in sorted(folder.glob("*.json")):
        try:
            results.append(read_result(file))
        except MalformedResult as fault:
            faults.append(fault)
    return results, faults


def targets_table(results: Sequence[Result]) -> str:
    """One line for each target, and how many are met."""
    rows = [
        {
            "result": result.name,
            "name": target.name,
            "value": target.value,
            "target": target.target,
            "met": target.met,
            "device": result.provenance["device"],
            "commit": result.provenance["commit"],
        }
        for result in results
        for target in result.targets
    ]
    met = sum(bool(row["met"]) for row in rows)
    return f"{text_table(rows, COLUMNS)}\n\n{met} of {len(rows)} targets met"


def concluded(
    file: Path,
    columns: Mapping[str, str],
    *,
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    targets: Sequence[Target],
    device: torch.device | None = None,
) -> str:
    """Writes a benchmark's result file; returns its rows and targets as text, for the end of its output."""
    write_result(file, settings=settings, rows=rows, targets=targets, device=device)
    return f"{text_table(rows, columns)}\n\n{short_table(targets)}"


def short_table(targets: Sequence[Target]) -> str:
    """The same of one run, for the end of its output."""
    columns = {name: COLUMNS[name] for name in ("name", "value", "target", "met")}
    return text_table([asdict(target) for target in targets], columns)
