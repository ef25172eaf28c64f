"""The offline API: prompts in, text out, with the engine's loop run by the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from recguide.core import CheckpointError, Chunk, Completion, Generation, ParameterError, SamplingParams
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.request import Request
from recguide.models.loading import Model, load
from recguide.models.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Progress = Callable[[int, int], None]
"""Called with (choices finished, choices in all)."""


class LLM:
    """A model that drafts and verifies for itself.

    Args:
        model: a folder, a Hugging Face id, `smollm2-135m`, or a loaded model.
        adapter: draft adapter; "auto" takes the one that belongs to the model, None runs without.
        device, dtype: "auto" is CUDA in bfloat16 if there is a device, else the CPU in float32.
        method, block_size: what prompts get whose parameters name none; method None is "recguide" for a
            model that can draft and "ar" for one that cannot.
        max_running: choices that decode together at most.
        max_batch_tokens: query tokens of a forward at most.
        kv_cache_tokens: tokens that the KV cache holds, over all running choices.
        max_model_len: prompt and output tokens of a choice at most; None is the model's limit.

    Raises:
        CheckpointError: the model's files do not hold what they promise.
        ParameterError: an argument is out of range.
    """

    def __init__(
        self,
        model: str | Model,
        *,
        adapter: str | None = "auto",
        device: str = "auto",
        dtype: str | torch.dtype = "auto",
        method: str | None = None,
        block_size: int = 16,
        max_running: int = 64,
        max_batch_tokens: int = 1024,
        kv_cache_tokens: int = 32_768,
        max_model_len: int | None = None,
    ) -> None:
        self.model = (
            load(model, adapter=adapter, device=device, dtype=dtype) if isinstance(model, str) else model
        )
        config = EngineConfig(
            method=method,
            block_size=block_size,
            max_running=max_running,
            max_batch_tokens=max_batch_tokens,
            kv_cache_tokens=kv_cache_tokens,
            max_model_len=max_model_len,
        )
        self.engine = Engine(self.model, self.tokenizer.decode, config)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; CheckpointError if its folder has none."""
        if self.model.tokenizer is None:
            raise CheckpointError(f"{self.model.name} has no tokenizer files; add them to its folder")
        return self.model.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: Progress | None = None,
    ) -> list[Generation]:
        """Continues all prompts together, whatever their lengths; results in the order of the prompts.

        Args:
            prompts: text (tokenized as it is, without a chat template) or token ids; one or many.
            params: one for all prompts, or one for each; None is greedy with 256 tokens.
            progress: called whenever a choice is finished.

        Raises:
            ParameterError: a prompt or parameter that cannot be honoured; nothing has run then.
        """
        texts = _as_list(prompts)
        each = _as_params(params, len(texts))
        groups: list[list[Request]] = []
        try:
            for prompt, wanted in zip(texts, each, strict=True):
                groups.append(self.engine.add(self._token_ids(prompt), wanted))
            self._run([request for group in groups for request in group], progress)
        except BaseException:
            self._abort(groups)
            raise
        return [_generation(prompt, group) for prompt, group in zip(texts, groups, strict=True)]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Chunk]:
        """Yields what each round adds; the last chunk of every choice carries its completion.

        Closing the iterator aborts the prompt.
        """
        requests = self.engine.add(self._token_ids(prompt), params or SamplingParams())
        try:
            while any(request.finish_reason is None for request in requests):
                yield from (chunk for request, chunk in self.engine.step() if request in requests)
        finally:
            self._abort([requests])

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **chat_template_kwargs: Any,  # noqa: ANN401  templates define their own switches
    ) -> Generation:
        """Answers a conversation of {"role", "content"} turns through the model's chat template.

        `chat_template_kwargs` reach the template, as Nemotron-Labs-Diffusion's thinking switch does.
        """
        ids = self.tokenizer.chat(messages, **chat_template_kwargs)
        return self.generate([ids], params)[0]

    def _token_ids(self, prompt: Prompt) -> Sequence[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def _run(self, requests: Sequence[Request], progress: Progress | None) -> None:
        finished = 0
        while finished < len(requests):
            ended = sum(chunk.completion is not None for _, chunk in self.engine.step())
            finished += ended
            if ended and progress is not None:
                progress(finished, len(requests))

    def _abort(self, groups: Sequence[Sequence[Request]]) -> None:
        for group in groups:
            for request in group:
                self.engine.abort(request)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) == 0:
        return []
    if isinstance(prompts[0], int):
        return [[token for token in prompts if isinstance(token, int)]]
    return [prompt for prompt in prompts if not isinstance(prompt, int)]


def _as_params(
    params: SamplingParams | Sequence[SamplingParams] | None, prompts: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * prompts
    if len(params) != prompts:
        raise ParameterError("params", f"{len(params)} sets for {prompts} prompts; give one, or one for each")
    return list(params)


def _generation(prompt: Prompt, requests: Sequence[Request]) -> Generation:
    completions: tuple[Completion, ...] = tuple(request.completion() for request in requests)
    return Generation(prompt if isinstance(prompt, str) else None, requests[0].prompt, completions)
