"""Traces on disk: a header, then a round a line; JSON lines, compressed with zstd."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import zstandard

from recguide.core import RecGuideError
from recguide.guidance.records import RoundRecord

FORMAT = "recguide-trace-1"


class MalformedTrace(RecGuideError):  # noqa: N818 - it names what was found
    """A file that is no trace; names the file and what is wrong with it."""


def write_trace(file: Path, header: Mapping[str, object], records: Iterable[RoundRecord]) -> None:
    """`header`: policy and provenance."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with zstandard.open(file, "wt", encoding="utf-8") as stream:
        stream.write(json.dumps({"format": FORMAT, **header}) + "\n")
        for record in records:
            stream.write(json.dumps(asdict(record)) + "\n")


def read_trace(file: Path) -> tuple[dict[str, Any], list[RoundRecord]]:
    """Header and rounds; MalformedTrace if there are none to be had."""
    try:
        with file.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as plain:
            lines = io.TextIOWrapper(plain, encoding="utf-8")
            header: dict[str, Any] = json.loads(next(lines))
            if header.get("format") != FORMAT:
                raise MalformedTrace(f"{file} is no trace of format {FORMAT}")
            return header, [record_of(json.loads(line)) for line in lines]
    except OSError as error:
        raise MalformedTrace(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration, zstandard.ZstdError) as error:
        raise MalformedTrace(f"{file} is no trace ({error})") from error


def record_of(content: dict[str, Any]) -> RoundRecord:
    """A round from its JSON object; TypeError or KeyError for anything else."""
    for name in ("margins", "entropies", "signals"):
        content[name] = tuple(content[name])
    content["branches"] = tuple(tuple(branch) for branch in content["branches"])
    return RoundRecord(**content)
