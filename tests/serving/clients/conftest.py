"""One server with the demo model for all clients of a process."""

from __future__ import annotations

import pytest
from tests.serving.clients.demo import MODEL
from tests.serving.processes import Serving

from recguide.models.sources import resolve


@pytest.fixture(scope="session")
def demo_folder():
    return resolve(MODEL)


@pytest.fixture(scope="session")
def demo_url():
    with Serving(MODEL, "--device=cpu", "--dtype=float32", drain=2.0) as server:
        yield server.url
        assert server.stop() == 0, server.log()
