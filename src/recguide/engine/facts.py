"""What is said of a model and its engine to whoever serves them from another process."""

from __future__ import annotations

from recguide.core import SamplingParams
from recguide.engine.engine import Engine
from recguide.engine.wire import Facts
from recguide.models.loading import Model


def facts_of(model: Model, engine: Engine, acceptance: str = "") -> Facts:
    tokenizer, vocabulary = model.tokenizer, model.vocabulary
    return Facts(
        name=model.name,
        fingerprint=model.fingerprint,
        tokenizer=None if tokenizer is None or tokenizer.folder is None else str(tokenizer.folder),
        device=str(model.kv_shape.device),
        dtype=str(model.kv_shape.dtype).removeprefix("torch."),
        max_model_len=min(engine.limit, engine.memory.kv_tokens),
        vocabulary_size=vocabulary.size,
        eos=vocabulary.eos,
        think=vocabulary.think,
        method=engine.method_for(SamplingParams()).name,
        block_size=engine.config.block_size,
        planning=engine.planning,
        drafts=vocabulary.mask is not None,
        max_running=engine.config.max_running,
        memory=engine.memory,
        acceptance=acceptance,
    )
