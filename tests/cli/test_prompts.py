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


def test_only_a_line_feed_ends_a_line(tmp_path):
    """JSON may hold U+2028 and its like unescaped; a Windows file may begin with a byte order mark."""
    file = tmp_path / "prompts.jsonl"
    texts = ["a\u2028b\u2029c\x85d", "e"]
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) for text in texts]
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n")
    assert read_file(file) == texts


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"\xef\xbb\xbfHello")
    assert read_file(file) == ["Hello"]


DEEP, LONG = "[" * 100_000, '{"prompt": "x", "id": ' + "9" * 5000 + "}"


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"text": "x"}', '{"prompt": 3}', DEEP, LONG])
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
    whole = gzip.compress(LINES.encode())
    for broken in (whole[:-9], whole[:10] + b"\xff" * 20, b"text"):
        file.write_bytes(broken)
        with pytest.raises(ParameterError, match="cannot be read"):
            read_file(file)


def test_arguments_come_before_the_file(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("last")
    assert read_prompts(["first"], file) == ["first", "last"]


def test_an_empty_prompt_is_refused():
    with pytest.raises(ParameterError, match="prompt"):
        read_prompts(["fine", "  "], None)
