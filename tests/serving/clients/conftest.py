"""One server with the demo model for all clients of a process."""

from __future__ import annotations

import pytest
from tests.serving.clients.demo import MODEL, serving

from recguide.models.sources import resolve


@pytest.fixture(scope="session")
def demo_folder():
    return resolve(MODEL)


@pytest.fixture(scope="session")
def demo_url(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("serve") / "log.txt") as url:
        yield url
