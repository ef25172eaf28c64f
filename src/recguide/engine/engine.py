"""The engine: one loop for every method, any number of requests, any mix of phases in a forward."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count

from recguide.core import MAX_BLOCK, MAX_SEED, Backbone, Chunk, FinishReason, ParameterError, SamplingParams
from recguide.engine.commit import commit
from recguide.engine.plan import lay_out
from recguide.engine.request import Request
from recguide.engine.rounds import UnpickableLogits, judge
from recguide.engine.runner import Runner
from recguide.engine.scheduler import Scheduler, kv_tokens
from recguide.engine.text import Decode, TextStream
from recguide.kv.pages import BlockTable
from recguide.speculation.methods import Method, check_parameters, method_named
from recguide.speculation.noise import LuckyTokens
from recguide.speculation.picks import validate
from recguide.speculation.rows import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How requests share a forward and the KV cache.

    Attributes:
        method, block_size: what a request gets that names none; method None is "recguide" for a model that
            can draft and "ar" for one that cannot.
        max_running: requests that decode together at most.
        max_batch_tokens: query tokens of a forward at most (a single request may exceed it).
        kv_cache_tokens: tokens that the KV cache holds.
        page_size: tokens of a KV page.
        max_model_len: prompt and output tokens of a request at most; None is the model's limit.
    """

    method: str | None = None
    block_size: int = 16
    max_running: int = 64
    max_batch_tokens: int = 1024
    kv_cache_tokens: int = 32_768
    page_size: int = 16
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        if self.method is not None:
            method_named(self.method)
        for name in ("block_size", "max_running", "max_batch_tokens", "kv_cache_tokens", "page_size"):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ParameterError(name, f"must be an integer of at least 1 (got {value!r})")
        if self.block_size > MAX_BLOCK:
            raise ParameterError("block_size", f"must lie in [1, {MAX_BLOCK}] (got {self.block_size!r})")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ParameterError("max_model_len", "must be at least 2, a prompt and an output token")


class Engine:
    """Runs requests to their end; `step` is one forward and everything that follows from it.

    Args:
        backbone: the model.
        decode: token ids → text without special tokens.
        config: how requests share a forward and the KV cache.
    """

    def __init__(self, backbone: Backbone, decode: Decode, config: EngineConfig) -> None:
        self.vocabulary = backbone.vocabulary
        self.config = config
        self.runner = Runner(
            backbone, pages=-(-config.kv_cache_tokens // config.page_size), page_size=config.page_size
        )
        self._backbone = backbone
        self._decode = decode
        self._scheduler = Scheduler(
            self.runner.pool, max_running=config.max_running, max_batch_tokens=config.max_batch_tokens
        )
        self._luck = LuckyTokens(self.vocabulary.size, device=backbone.kv_shape.device)
        self._arrivals = count()
        most = backbone.max_positions
        self._limit = most if config.max_model_len is None else min(config.max_model_len, most)

    @property
    def busy(self) -> bool:
        return bool(self._scheduler.waiting or self._scheduler.running)

    def add(self, prompt: Sequence[int], params: SamplingParams) -> list[Request]:
        """Queues a prompt: one request for each of its n choices.

        Raises:
            ParameterError: the parameters, the prompt or their lengths cannot be honoured.
        """
        method = self.method_for(params)
        block = (params.block_size or self.config.block_size) if method.drafts else 1
        self._check(prompt, params, method, block)
        seed = params.seed if params.seed is not None else _fresh_seed(params)
        requests = [
            Request(
                arrival=next(self._arrivals),
                choice=choice,
                prompt=tuple(prompt),
                params=params.with_seed(choice_seed(seed, choice)),
                method=method,
                block=block,
                table=BlockTable(self.runner.pool),
                text=TextStream(self._decode, prompt, params.stop),
            )
            for choice in range(params.n)
        ]
        self._check_memory(requests[0])
        for request in requests:
            self._scheduler.add(request)
        return requests

    def step(self) -> list[tuple[Request, Chunk]]:
        """One forward of everything that is ready; returns what it emitted, in order.

        Every chunk also lands in its request's inbox, for callers that share the engine.

        Requests whose logits are NaN are aborted and carry the error; the others go on in the next step.
        """
        plan = self._scheduler.schedule(self._plan)
        if not plan:
            return []
        logits = self.runner.forward(
            [row for scheduled in plan for row in scheduled.layout.rows],
            [scheduled.request.table.pages for scheduled in plan],
        )
        try:
            verdicts = judge(logits, plan, self.vocabulary, self._luck)
        except UnpickableLogits as error:
            for request in error.requests:
                request.error = error
                self.abort(request)
            return []
        emitted: list[tuple[Request, Chunk]] = []
        for scheduled, verdict in zip(plan, verdicts, strict=True):
            request = scheduled.request
            try:
                chunk = commit(request, verdict)
            finally:
                if request.finish_reason is not None:
                    self._scheduler.remove(request)
            if chunk is not None:
                request.inbox.append(chunk)
                emitted.append((request, chunk))
        return emitted

    def abort(self, request: Request) -> None:
        """Ends a request early and frees what it holds; a finished one is left alone."""
        if request.finish_reason is None:
            # First what others depend on: turning held bytes into text may fail, as all text may.
            request.finish_reason = FinishReason.ABORT
            self._scheduler.remove(request)
            request.text.finish()

    def _plan(self, request: Request, index: int, chunk: int) -> Layout:
        return lay_out(
            request, index, self.vocabulary.mask, chunk, diffusion_adapter=self._backbone.diffusion_adapter
        )

    def method_for(self, params: SamplingParams) -> Method:
        """The method that a request with these parameters gets; ParameterError if the model cannot run it."""
        name = params.method or self.config.method
        if name is None:
            return method_named("recguide" if self.vocabulary.mask is not None else "ar")
        method = method_named(name)
        if method.drafts and self.vocabulary.mask is None:
            raise ParameterError(
                "method",
                f"{name!r} drafts, but this model has no mask token; load a draft adapter or use 'ar'",
            )
        return method

    def _check(self, prompt: Sequence[int], params: SamplingParams, method: Method, block: int) -> None:
        check_parameters(method, params)
        validate(params, self.vocabulary)
        if not prompt:
            raise ParameterError("prompt", "is empty; give at least one token")
        outside = [token for token in prompt if not 0 <= token < self.vocabulary.size]
        if outside:
            raise ParameterError(
                "prompt", f"token {outside[0]} lies outside the vocabulary of {self.vocabulary.size}"
            )
        longest = len(prompt) + params.max_tokens + (0 if method.verifies else block)
        if longest > self._limit:
            raise ParameterError(
                "max_tokens",
                f"the prompt's {len(prompt)} tokens and {longest - len(prompt)} more exceed the limit of "
                f"{self._limit}; shorten the prompt or lower max_tokens",
            )

    def _check_memory(self, request: Request) -> None:
        need, have = kv_tokens(request), self.config.kv_cache_tokens
        if need > have:
            raise ParameterError(
                "max_tokens",
                f"the request may need KV for {need} tokens and the cache holds {have}; "
                "raise kv_cache_tokens or lower max_tokens",
            )


def _fresh_seed(params: SamplingParams) -> int:
    """Greedy picks use no noise, so they need no fresh seed."""
    return secrets.randbelow(MAX_SEED) if params.temperature > 0 else 0


def choice_seed(seed: int, choice: int) -> int:
    """Sampling seed of one of n choices: choice 0 has the request's own, the others derived ones."""
    if choice == 0:
        return seed
    digest = blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % MAX_SEED
