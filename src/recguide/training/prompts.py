"""Prompts of a training run: reading them, spreading a limit over their sources, and holding some out."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import zstandard

from recguide.core import ParameterError


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user turn; `source` and `licence` for credit, `task` is what acceptance is reported by."""

    text: str
    source: str
    licence: str
    task: str


def read_prompts(file: Path) -> list[Prompt]:
    """JSON Lines with `prompt` and, optionally, `source`, `licence` and `task` (the source stands in for it).

    Raises ParameterError naming the file and line that cannot be read.
    """
    found: list[Prompt] = []
    for number, line in enumerate(_lines(file), 1):
        if line.strip():
            found.append(_prompt(line, f"{file}, line {number}"))
    if not found:
        raise ParameterError("prompts", f"{file} holds no prompt")
    return found


def _lines(file: Path) -> Iterator[str]:
    try:
        with file.open("rb") as raw:
            yield from io.TextIOWrapper(_unpacked(raw, file.suffix), encoding="utf-8")
    except (OSError, zstandard.ZstdError, UnicodeDecodeError) as error:
        raise ParameterError("prompts", f"{file} cannot be read ({error})") from error


def _unpacked(raw: IO[bytes], suffix: str) -> IO[bytes]:
    if suffix == ".zst":
        return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(raw))
    if suffix == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    return raw


def _prompt(line: str, where: str) -> Prompt:
    try:
        content: object = json.loads(line)
    except ValueError as error:
        raise ParameterError("prompts", f"{where}: no JSON ({error})") from error
    fields = cast("dict[str, object]", content) if isinstance(content, dict) else {}
    text = fields.get("prompt")
    if not isinstance(text, str) or not text:
        raise ParameterError("prompts", f"{where}: `prompt` must be a text")
    source = str(fields.get("source", "prompts"))
    return Prompt(text, source, str(fields.get("licence", "unknown")), str(fields.get("task", source)))


def limited(prompts: Sequence[Prompt], limit: int | None, seed: int) -> list[Prompt]:
    """At most `limit` prompts, every source giving the same number as far as it has them."""
    if limit is None or limit >= len(prompts):
        return list(prompts)
    rng = np.random.default_rng([seed, 2])
    sources: dict[str, list[int]] = {}
    for index in rng.permutation(len(prompts)).tolist():
        sources.setdefault(prompts[index].source, []).append(index)
    chosen: list[int] = []
    depth = 0
    while len(chosen) < limit:
        layer = [indices[depth] for indices in sources.values() if depth < len(indices)]
        chosen += layer[: limit - len(chosen)]
        depth += 1
    return [prompts[index] for index in sorted(chosen)]


def shared(prompts: Sequence[Prompt], shares: Mapping[str, float], keep: Set[int], seed: int) -> list[int]:
    """Indices, in order, of each task's share of the prompts (all of a task not named), and of `keep`.

    A larger share holds every prompt of a smaller one. Raises ParameterError for a task that no prompt has.
    """
    unknown = set(shares) - {prompt.task for prompt in prompts}
    if unknown:
        raise ParameterError("shares", f"no prompt has the task {sorted(unknown)[0]!r}")
    drawn = np.random.default_rng([seed, 4]).random(len(prompts))
    return [
        index
        for index, prompt in enumerate(prompts)
        if index in keep or drawn[index] < shares.get(prompt.task, 1.0)
    ]


def held_out(prompts: Sequence[Prompt], count: int, seed: int) -> set[int]:
    """Indices of prompts to measure and never train on: `count` of each task, a tenth of it at most."""
    rng = np.random.default_rng([seed, 3])
    tasks: dict[str, list[int]] = {}
    for index in rng.permutation(len(prompts)).tolist():
        tasks.setdefault(prompts[index].task, []).append(index)
    return {index for found in tasks.values() for index in found[: min(count, len(found) // 10)]}
