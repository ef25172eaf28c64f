"""The page that docstrings refer to has what they refer to."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "recguide"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_section_that_code_names_is_there():
    named = {
        place
        for file in SOURCE.rglob("*.py")
        for place in re.findall(r"architecture §(\d)(?:, (\w+))?", file.read_text(encoding="utf-8"))
    }
    assert named
    for number, part in named:
        (section,) = re.findall(rf"^## {number}\. .*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
        assert not part or f"### {part}\n" in section


def test_every_room_is_on_the_map():
    rooms = {f"{path.name}/" for path in SOURCE.iterdir() if (path / "__init__.py").exists()} | {"llm.py"}
    assert set(re.findall(r"^\| `([\w.]+/?)` \|", PAGE, re.MULTILINE)) == rooms


def test_links_between_pages_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page.name
