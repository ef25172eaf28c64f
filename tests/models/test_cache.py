"""Folders that exist whole or not at all."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from recguide.models.cache import ENVIRONMENT, cache_root, whole_folder


def test_the_environment_overrides_the_place(monkeypatch, tmp_path):
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.setenv(ENVIRONMENT, "~/there")
    assert cache_root() == Path.home() / "there"
    monkeypatch.delenv(ENVIRONMENT)
    assert cache_root().name == "recguide"


def fill(folder):
    (folder / "file").write_text("whole")


def test_it_is_built_once(tmp_path):
    built = []

    def build(folder):
        built.append(folder)
        fill(folder)

    for _ in range(2):
        folder = whole_folder(tmp_path / "deep" / "model", build)
        assert folder == tmp_path / "deep" / "model"
        assert (folder / "file").read_text() == "whole"
    assert len(built) == 1
    assert folder.stat().st_mode & 0o777 == 0o755


def test_an_interrupted_build_leaves_nothing_and_the_next_one_starts_afresh(tmp_path):
    def interrupted(folder):
        (folder / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        whole_folder(tmp_path / "model", interrupted)
    assert [path.name for path in tmp_path.iterdir()] == [".model.lock"]
    assert [path.name for path in whole_folder(tmp_path / "model", fill).iterdir()] == ["file"]


def test_what_a_killed_build_left_is_removed(tmp_path):
    (tmp_path / ".model.part-abc").mkdir()
    (tmp_path / ".model.part-abc" / "half").write_text("half")
    (tmp_path / ".other.part-abc").mkdir()
    whole_folder(tmp_path / "model", fill)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".model.lock", ".other.part-abc", "model"]


def test_concurrent_callers_wait_for_the_first(tmp_path):
    built = []

    def build(folder):
        built.append(folder)
        time.sleep(0.2)
        fill(folder)

    def call():
        assert (whole_folder(tmp_path / "model", build) / "file").read_text() == "whole"

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
