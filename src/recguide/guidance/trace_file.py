"""Traces on disk: a header, then a round a line; JSON lines, compressed with zstd."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import zstandard

from recguide.core import RecGuideError
from recguide.guidance.records import RoundRecord

FORMAT = "recguide-trace-1"

FLUSH_S = 1.0
"""Rounds reach the file within that many seconds, as long as others come."""


CHUNK = 1 << 16
"""Bytes of a file that are read at once."""


class MalformedTrace(RecGuideError):  # noqa: N818 - it names what was found
    """A file that is no trace; names the file and what is wrong with it."""


class TraceWriter:
    """Writes a trace as rounds come; what was flushed can be read at once.

    Args:
        file: replaced if it exists.
        header: policy and provenance.

    Raises OSError, as all methods do, if the file cannot be written.
    """

    def __init__(self, file: Path, header: Mapping[str, object]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("wb")
        self._packed = zstandard.ZstdCompressor().stream_writer(self._file)
        self._ends = weakref.finalize(self, _end, self._packed)
        self._flushed = monotonic()
        try:
            self._line({"format": FORMAT, **header})
            self.flush()
        except OSError:
            self.abandon()
            raise

    def add(self, record: RoundRecord) -> None:
        self._line({name: getattr(record, name) for name in RoundRecord.__slots__})
        if monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Brings all rounds so far into the file."""
        self._packed.flush(zstandard.FLUSH_BLOCK)
        self._file.flush()
        self._flushed = monotonic()

    def close(self) -> None:
        """Ends the file; nothing may follow."""
        self._ends.detach()
        _end(self._packed)

    def abandon(self) -> None:
        """Leaves the file as it is."""
        self._ends.detach()
        with suppress(OSError):
            self._file.close()

    def _line(self, content: Mapping[str, object]) -> None:
        self._packed.write(json.dumps(content).encode() + b"\n")


def _end(packed: zstandard.ZstdCompressionWriter) -> None:
    """Ends the compressed stream and closes its file."""
    packed.close()


def write_trace(file: Path, header: Mapping[str, object], records: Iterable[RoundRecord]) -> None:
    """`header`: policy and provenance."""
    writer = TraceWriter(file, header)
    for record in records:
        writer.add(record)
    writer.close()


def read_trace(file: Path) -> tuple[dict[str, Any], list[RoundRecord]]:
    """Header and rounds; MalformedTrace if there are none to be had."""
    try:
        with file.open("rb") as packed:
            lines = _lines(packed)
            header: dict[str, Any] = json.loads(next(lines))
            if header.get("format") != FORMAT:
                raise MalformedTrace(f"{file} is no trace of format {FORMAT}")
            return header, [record_of(json.loads(line)) for line in lines]
    except OSError as error:
        raise MalformedTrace(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration, zstandard.ZstdError) as error:
        raise MalformedTrace(f"{file} is no trace ({error})") from error


def _lines(packed: BinaryIO) -> Iterator[bytes]:
    """All that reached the file. A line that is still being written, or never was to its end, is none."""
    unpacking, rest = zstandard.ZstdDecompressor().decompressobj(), b""
    while chunk := packed.read(CHUNK):
        *lines, rest = (rest + unpacking.decompress(chunk)).split(b"\n")
        yield from lines


def record_of(content: dict[str, Any]) -> RoundRecord:
    """A round from its JSON object; TypeError or KeyError for anything else."""
    for name in ("margins", "entropies", "signals", "likely", "candidates"):
        if name in content:
            content[name] = tuple(content[name])
    content["branches"] = tuple(tuple(branch) for branch in content["branches"])
    return RoundRecord(**content)
