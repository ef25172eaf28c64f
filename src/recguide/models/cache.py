"""The user's cache folder, and folders in it that exist whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

ENVIRONMENT = "RECGUIDE_CACHE"


def cache_root() -> Path:
    """Where RecGuide keeps what it fetched; the environment variable RECGUIDE_CACHE overrides the default."""
    override = os.environ.get(ENVIRONMENT)
    return Path(override).expanduser() if override else user_cache_path("recguide", appauthor=False)


def whole_folder(target: Path, build: Callable[[Path], None]) -> Path:
    """Returns `target`, built first if it does not exist.

    `build` fills a temporary sibling that is renamed when complete, so an interrupted build leaves nothing
    that looks finished; the next one starts afresh. Concurrent callers wait for the first.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{target.name}.lock")):
        if target.is_dir():
            return target
        for leftover in target.parent.glob(f".{target.name}.part-*"):
            shutil.rmtree(leftover)  # of a build that was killed: the lock is ours, so nobody works there
        part = Path(tempfile.mkdtemp(prefix=f".{target.name}.part-", dir=target.parent))
        try:
            build(part)
            part.chmod(0o755)  # mkdtemp's folders are private
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target
