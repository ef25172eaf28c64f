"""The nouns that every room shares: errors, sampling parameters, rows, the packed batch, results.

Words are those of the architecture: a *slot* is a position inside a block counted from 0, slot 0 is the
*seed* (a token already emitted whose KV is not cached yet), and a *row* is the one primitive that a forward
knows: either causal (KV written, logits at slot i predict token i+1) or draft (KV in flight only, every slot
sees every own slot, logits at slot i predict token i).
"""

from recguide.core.backbone import Attend, Backbone, KVShape, Turn, Vocabulary, opens_thinking
from recguide.core.errors import CheckpointError, ParameterError, RecGuideError
from recguide.core.light import light
from recguide.core.parameters import MAX_BLOCK, MAX_LOGPROBS, MAX_SEED, MIN_TEMPERATURE, SamplingParams
from recguide.core.results import (
    Chunk,
    Completion,
    FinishReason,
    Generation,
    Origin,
    RoundStats,
    TokenLogprobs,
)
from recguide.core.rows import CANDIDATES, AdapterUse, PackedBatch, Row
from recguide.core.structure import MAX_STRUCTURE, STRUCTURES, Structure

__all__ = [
    "CANDIDATES",
    "MAX_BLOCK",
    "MAX_LOGPROBS",
    "MAX_SEED",
    "MAX_STRUCTURE",
    "MIN_TEMPERATURE",
    "STRUCTURES",
    "AdapterUse",
    "Attend",
    "Backbone",
    "CheckpointError",
    "Chunk",
    "Completion",
    "FinishReason",
    "Generation",
    "KVShape",
    "Origin",
    "PackedBatch",
    "ParameterError",
    "RecGuideError",
    "RoundStats",
    "Row",
    "SamplingParams",
    "Structure",
    "TokenLogprobs",
    "Turn",
    "Vocabulary",
    "light",
    "opens_thinking",
]
