"""An engine with all that belongs to a loaded model: its decoder of tokens, its compiler of structures, its
name for tables."""

from __future__ import annotations

from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.engine.tables import Identity
from recguide.models import published
from recguide.models.loading import Model
from recguide.speculation.grammar import Grammars


def assemble(model: Model, config: EngineConfig) -> Engine:
    """Without a tokenizer, text is numbers and there are no structures."""
    tokenizer, identity = model.tokenizer, Identity(model.name, model.fingerprint)
    if tokenizer is None:
        return Engine(model, published.decode, config, identity=identity, joins=True)
    grammars = Grammars(tokenizer.json, tokenizer.size, model.vocabulary)
    return Engine(
        model, tokenizer.decode, config, grammars=grammars, identity=identity, joins=tokenizer.joins
    )
