"""One tiny model for all tests of the server, idle and empty after each module."""

from __future__ import annotations

import pytest
from tests.serving.site import app_of, client_of
from tests.tiny import write_checkpoint

from recguide.llm import LLM


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("serving") / "tiny", "nemotron_labs_diffusion")


def load(folder):
    return LLM(str(folder), device="cpu", dtype="float64", kv_cache_tokens=4096)


@pytest.fixture(scope="session")
def llm(tiny_folder):
    """The offline engine, which says what is right; a server's engine is its thread's alone."""
    return load(tiny_folder)


@pytest.fixture(scope="session")
def shared(tiny_folder):
    return load(tiny_folder)


@pytest.fixture(scope="module")
def served(shared):
    """The model of a server; after a module it is idle, every page free or in the prefix tree."""
    yield shared
    assert not shared.engine.busy
    assert_all_free(shared.engine)


def assert_all_free(engine):
    pool = engine.runner.pool
    assert pool.used_pages == 0


@pytest.fixture(scope="module")
def client(served):
    with client_of(app_of(served)) as client:
        yield client
