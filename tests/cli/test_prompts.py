from __future__ import annotations

import gzip
import json

import pytest

from recguide.cli.prompts import read_file, read_prompts
from recguide.core import ParameterError

LINES = "\n".join(json.dumps({"prompt": text, "id": 1}) for text in ("one", "two ä")) + "\n\n"


def test_a_text_file_is_one_prompt(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("two\nlines\n")
    assert read_file(file) == ["two\nlines\n"]


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.jsonl.gz"])
def test_json_lines_hold_one_prompt_each(tmp_path, name):
    file = tmp_path / name
    data = LINES.encode()
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert read_file(file) == ["one", "two ä"]


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"text": "x"}', '{"prompt": 3}'])
def test_a_bad_line_is_named(tmp_path, line):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(ParameterError, match=r"prompts\.jsonl, line 2"):
        read_file(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ParameterError, match="nowhere"):
        read_file(tmp_path / "nowhere.txt")


def test_a_broken_archive_is_named(tmp_path):
    file = tmp_path / "prompts.jsonl.gz"
    file.write_bytes(gzip.compress(LINES.encode())[:-9])
    with pytest.raises(ParameterError, match="cannot be read"):
        read_file(file)


def test_arguments_come_before_the_file(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("last")
    assert read_prompts(["first"], file) == ["first", "last"]


def test_an_empty_prompt_is_refused():
    with pytest.raises(ParameterError, match="prompt"):
        read_prompts(["fine", "  "], None)
