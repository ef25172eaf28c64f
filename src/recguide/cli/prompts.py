"""Prompts from an argument, a file or stdin."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from pathlib import Path

from recguide.core import ParameterError


def read_prompts(texts: list[str], file: Path | None) -> list[str]:
    """The prompts given on the command line, then those of `file`; stdin where neither is given.

    `.jsonl` and `.jsonl.gz` hold one {"prompt": ...} a line; any other file, like stdin and the argument `-`,
    is one prompt. Raises ParameterError that names file and line.
    """
    prompts = [sys.stdin.read() if text == "-" else text for text in texts]
    if file is not None:
        prompts += read_file(file)
    if not prompts and not sys.stdin.isatty():
        prompts = [sys.stdin.read()]
    if not prompts or not all(prompt.strip() for prompt in prompts):
        raise ParameterError("prompt", "none given; pass text, --file, or pipe it in")
    return prompts


def read_file(file: Path) -> list[str]:
    try:
        data = file.read_bytes()
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise ParameterError("file", f"{file} cannot be read: {error}") from error
    if ".jsonl" not in file.suffixes:
        return [text]
    # Not splitlines(): U+2028 and the like may stand unescaped inside a JSON string.
    lines = enumerate(text.split("\n"), 1)
    prompts = [_prompt(file, number, line) for number, line in lines if line.strip()]
    if not prompts:
        raise ParameterError("file", f"{file} holds no prompts")
    return prompts


def _prompt(file: Path, number: int, line: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:  # also too many digits, or too deep
        raise ParameterError("file", f'{file}, line {number}: not a JSON object with "prompt"') from error
    if not isinstance(prompt, str):
        raise ParameterError("file", f'{file}, line {number}: "prompt" must be a string')
    return prompt
