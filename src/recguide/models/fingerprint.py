"""Short hashes that tell models and adapters apart, without reading them whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

SAMPLES = 64
SAMPLE_BYTES = 4096
HEAD_BYTES = 1 << 16
DIGITS = 16


def file_fingerprint(files: Iterable[Path]) -> str:
    """Hash of each file's size, first 64 KiB (small files whole) and 64 pages spread over the rest.

    Names of folders do not count: the same files anywhere have the same fingerprint.
    """
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}\n".encode())
        with file.open("rb") as content:
            digest.update(content.read(HEAD_BYTES))
            for sample in range(SAMPLES if size > HEAD_BYTES else 0):
                content.seek(HEAD_BYTES + (size - HEAD_BYTES) * sample // SAMPLES)
                digest.update(content.read(SAMPLE_BYTES))
    return digest.hexdigest()[:DIGITS]


def text_fingerprint(text: str) -> str:
    """Hash of a description, for models that were never files."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
