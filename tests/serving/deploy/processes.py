"""What a test needs that starts servers: ports, patience, and the processes that come from its own."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def until(true: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "not within the time that it has"
        time.sleep(0.3)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def descendants(pid: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (parent := _parent(folder)) is not None:
            children.setdefault(parent, []).append(int(folder.name))
    found = list(children.get(pid, ()))
    for child in found:
        yield child
        found.extend(children.get(child, ()))


def named(pid: int, words: str) -> set[int]:
    """Descendants whose command line has these words."""
    return {child for child in descendants(pid) if words in _command(child)}


def _parent(folder: Path) -> int | None:
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None  # it ended meanwhile


def _command(pid: int) -> str:
    try:
        return (
            (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""
