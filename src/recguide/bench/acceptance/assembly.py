"""An engine whose acceptance is replayed, as a process of its own is told to make one."""

from __future__ import annotations

from recguide.bench.acceptance.process import fitted
from recguide.bench.workload import replay_engine
from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.models.loading import Model


def assemble(model: Model, config: EngineConfig) -> Engine:
    """ParameterError for a model that no process was fitted to."""
    return replay_engine(model, fitted(model.name).process, config)
