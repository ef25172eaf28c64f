"""What is taken: parameters that can be honoured, prompts that fit, sampling seeds of choices."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import blake2b

from recguide.core import MAX_SEED, ParameterError, SamplingParams, Vocabulary
from recguide.engine.request import Request
from recguide.engine.scheduler import kv_tokens
from recguide.speculation.methods import Method, check_parameters
from recguide.speculation.picks import validate


def check_request(
    prompt: Sequence[int],
    params: SamplingParams,
    method: Method,
    block: int,
    *,
    vocabulary: Vocabulary,
    limit: int,
) -> None:
    """Raises ParameterError for what cannot be honoured; `limit` are a request's tokens at most."""
    check_parameters(method, params)
    validate(params, vocabulary)
    if not prompt:
        raise ParameterError("prompt", "is empty; give at least one token")
    outside = [token for token in prompt if not 0 <= token < vocabulary.size]
    if outside:
        raise ParameterError("prompt", f"token {outside[0]} lies outside the vocabulary of {vocabulary.size}")
    room = limit - (1 if params.max_tokens else 0)
    if len(prompt) > room:
        raise ParameterError(
            "prompt",
            f"has {len(prompt)} tokens, and with the limit of {limit} it may have {room}; shorten "
            "it or raise max_model_len",
        )
    longest = len(prompt) + params.max_tokens + (0 if method.verifies else block)
    if longest > limit:
        raise ParameterError(
            "max_tokens",
            f"the prompt's {len(prompt)} tokens and {longest - len(prompt)} more exceed the limit of "
            f"{limit}; shorten the prompt or lower max_tokens",
        )


def check_memory(request: Request, have: int) -> None:
    """Raises ParameterError for a request that may need more KV than that of `have` tokens."""
    need = kv_tokens(request)
    if need > have:
        raise ParameterError(
            "max_tokens",
            f"the request may need KV for {need} tokens and the cache holds {have}; "
            "raise kv_cache_tokens or lower max_tokens",
        )


def fresh_seed(params: SamplingParams) -> int:
    """Greedy picks use no noise, so they need no fresh seed."""
    return secrets.randbelow(MAX_SEED) if params.temperature > 0 else 0


def choice_seed(seed: int, choice: int) -> int:
    """Sampling seed of one of n choices: choice 0 has the request's own, the others derived ones."""
    if choice == 0:
        return seed
    digest = blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % MAX_SEED
