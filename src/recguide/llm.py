"""The offline API: prompts in, text out, with the engine's loop run by the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from numbers import Integral
from pathlib import Path
from typing import Any

import torch

from recguide.core import CheckpointError, Chunk, Completion, Generation, ParameterError, SamplingParams
from recguide.engine.assembly import assemble
from recguide.engine.config import EngineConfig
from recguide.engine.request import Request
from recguide.models.loading import Model, load
from recguide.models.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Progress = Callable[[int, int], None]
"""Called with (choices finished, choices in all)."""


class LLM:
    """A model that drafts and verifies for itself.

    Once there is one, Python collects cyclic garbage seldom in this process (`engine.collecting`).

    Args:
        model: a folder, a Hugging Face id, `smollm2-135m`, or a loaded model.
        adapter: draft adapter; "auto" takes the one that belongs to the model, None runs without.
        device, dtype: "auto" is CUDA in bfloat16 if there is a device, else the CPU in float32.
        method, block_size: what prompts get whose parameters name none; method None is "recguide" for a
            model that can draft and "ar" for one that cannot. Block size None leaves "recguide" to the
            policy, and is 16 for other methods.
        policy: who chooses blocks and branches where no block size is named: "price", "paper", "fixed" (the
            official recipe by load), "fixed-16" and the like, "ar".
        batching: how requests that a policy plans for share forwards: "ragged", "bucketed", "padded".
        cost_table, value_table: files that policies go by; None takes those found in the user's cache, or
            assumptions.
        trace: file that every verified round is recorded in; `close` ends it.
        max_running: choices that decode together at most.
        max_batch_tokens: query tokens of a forward at most.
        max_waiting: choices that may wait for their turn; more are refused. None sets no limit.
        kv_cache_tokens: tokens that the KV cache holds, over all running choices; None is 32,768 on a CPU,
            and on a GPU what memory is left.
        prefix_cache: whether KV is kept, while there is room, for other texts that begin alike.
        max_model_len: prompt and output tokens of a choice at most; None is the model's limit.
        gpu_memory_utilisation: share of a GPU's memory that may be in use, other programs' use included.
        graphs: whether forwards run through CUDA graphs; None wherever they can.
        exact: a token's bits do not depend on what else runs (needs a GPU): slower, and then a text is the
            same alone, in company, after preemption and by every method. A loaded model is loaded so too.

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
        block_size: int | None = None,
        policy: str = "price",
        batching: str = "ragged",
        cost_table: Path | str | None = None,
        value_table: Path | str | None = None,
        trace: Path | str | None = None,
        max_running: int = 64,
        max_batch_tokens: int = 1024,
        max_waiting: int | None = None,
        kv_cache_tokens: int | None = None,
        prefix_cache: bool = True,
        max_model_len: int | None = None,
        gpu_memory_utilisation: float = 0.9,
        graphs: bool | None = None,
        exact: bool = False,
    ) -> None:
        if isinstance(model, str):
            model = load(model, adapter=adapter, device=device, dtype=dtype, exact=exact)
            model.arrange()
        self.model = model
        config = EngineConfig(
            method=method,
            block_size=block_size,
            policy=policy,
            batching=batching,
            cost_table=_path(cost_table),
            value_table=_path(value_table),
            trace=_path(trace),
            max_running=max_running,
            max_batch_tokens=max_batch_tokens,
            max_waiting=max_waiting,
            kv_cache_tokens=kv_cache_tokens,
            prefix_cache=prefix_cache,
            max_model_len=max_model_len,
            gpu_memory_utilisation=gpu_memory_utilisation,
            graphs=graphs,
            exact=exact,
        )
        self.engine = assemble(self.model, config)

    def close(self) -> None:
        """Ends the trace, if one is recorded."""
        self.engine.close()

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
        requests = self.engine.add(self._token_ids(_as_prompt(prompt)), params or SamplingParams())
        try:
            while any(request.inbox or request.finish_reason is None for request in requests):
                for request in requests:
                    while request.inbox:
                        yield request.inbox.popleft()
                    _raise_failure(request)
                if any(request.finish_reason is None for request in requests):
                    self._step(requests)
        finally:
            self._abort([requests])

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        /,
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
        """Steps until these requests have ended; what others emit meanwhile waits in their inboxes."""
        finished = 0
        while finished < len(requests):
            self._step(requests)
            ended = sum(request.finish_reason is not None for request in requests)
            if ended > finished and progress is not None:
                progress(ended, len(requests))
            finished = ended

    def _step(self, requests: Sequence[Request]) -> None:
        """One step of all there is; raises what failed one of these requests, not what failed another's."""
        self.engine.step()
        for request in requests:
            _raise_failure(request)

    def _abort(self, groups: Sequence[Sequence[Request]]) -> None:
        with ExitStack() as each:  # goes through all of them, even if one cannot turn its bytes into text
            for group in groups:
                for request in group:
                    each.callback(self.engine.abort, request)


def _raise_failure(request: Request) -> None:
    if request.error is not None:
        raise request.error


def _path(file: Path | str | None) -> Path | None:
    return None if file is None else Path(file)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many as a list; token ids may be integers of any kind."""
    if isinstance(prompts, str):
        return [prompts]
    listed: Sequence[object] = list(prompts)
    if listed and all(isinstance(item, Integral) for item in listed):
        return [_as_prompt(prompts)]
    return [_as_prompt(prompt) for prompt in listed]


def _as_prompt(prompt: object) -> Prompt:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Iterable):
        tokens: list[object] = list(prompt)
        ids = [int(token) for token in tokens if isinstance(token, Integral)]
        if len(ids) == len(tokens):
            return ids
    raise ParameterError("prompts", f"each must be text or a list of token ids, not {prompt!r:.60}")


def _as_params(
    params: SamplingParams | Sequence[SamplingParams] | None, prompts: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * prompts
    each = [one for one in _listed(params) if isinstance(one, SamplingParams)]
    if len(each) != len(params):
        raise ParameterError("params", "must be SamplingParams, or a list with one for each prompt")
    if len(each) != prompts:
        raise ParameterError("params", f"{len(each)} sets for {prompts} prompts; give one, or one for each")
    return each


def _listed(given: object) -> list[object]:
    """The items of what a caller gave, whatever its type promises; none if it has none."""
    return list(given) if isinstance(given, Iterable) else []


def _generation(prompt: Prompt, requests: Sequence[Request]) -> Generation:
    completions: tuple[Completion, ...] = tuple(request.completion() for request in requests)
    return Generation(prompt if isinstance(prompt, str) else None, requests[0].prompt, completions)
