"""POST /v1/completions: text or token ids go in and are continued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from recguide.core import Chunk, Completion, ParameterError, SamplingParams, TokenLogprobs
from recguide.serving.answering import Answering, Arrival, Job
from recguide.serving.bodies import StrictRoute
from recguide.serving.documents import ANSWERS
from recguide.serving.errors import api_error
from recguide.serving.logprobs import text_logprobs
from recguide.serving.parameters import (
    check_completion,
    completion_names,
    output_tokens,
    sampling_params,
    spare_tokens,
)
from recguide.serving.replies import (
    UNSET,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    Usage,
    fresh_id,
    json_response,
    now,
)
from recguide.serving.requests import CompletionRequest
from recguide.serving.service import Service
from recguide.serving.tokens import Coder
from recguide.serving.usage import usage_of

ROUTE = "/v1/completions"

router = APIRouter(route_class=StrictRoute)


@router.post(ROUTE, response_class=Response, responses=ANSWERS["TextCompletion"], tags=["generate"])
async def complete(body: CompletionRequest, request: Request) -> Response:
    """Continues prompts."""
    arrival = Arrival.of(body, request)
    service = arrival.service
    check_completion(body)
    given = _listed(body.prompt)
    prompts = [await _token_ids(service.coder, prompt) for prompt in given]
    echoes = [await _echo(service.coder, prompt) if body.echo else "" for prompt in given]
    words = TextWords(service, arrival.model, body, prompts, echoes)
    if body.max_tokens == 0 and body.logprobs is None:
        return json_response(words.echoed())
    asks = [(prompt, _params(service, body, prompt)) for prompt in prompts]
    return await Answering(arrival, Job(ROUTE, asks, completion_names(body)), words).respond()


def _listed(prompt: str | list[int] | list[str] | list[list[int]]) -> list[str | list[int]]:
    """The prompts of a request, each as text or as token ids."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    return [ids] if ids else [item for item in prompt if not isinstance(item, int)]


async def _token_ids(coder: Coder, prompt: str | list[int]) -> list[int]:
    try:
        return await coder.encode(prompt) if isinstance(prompt, str) else prompt
    except ParameterError as error:
        raise api_error(error, {}) from error


async def _echo(coder: Coder, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else await coder.decode(prompt)


def _params(service: Service, body: CompletionRequest, prompt: Sequence[int]) -> SamplingParams:
    facts = service.facts
    most = output_tokens(
        body.max_tokens,
        len(prompt),
        facts.max_model_len,
        field="max_tokens",
        spare=spare_tokens(body, facts.method),
    )
    return sampling_params(
        body,
        max_tokens=most,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        names=completion_names(body),
    )


class TextWords:
    """Says completions."""

    def __init__(
        self,
        service: Service,
        model: str,
        body: CompletionRequest,
        prompts: Sequence[Sequence[int]],
        echoes: Sequence[str],
    ) -> None:
        self._coder = service.coder
        self._model = model
        self._fingerprint = service.facts.fingerprint
        self._body = body
        self._prompts = prompts
        self._echoes = echoes
        self._n = body.n or 1
        self._id, self._created = fresh_id("cmpl"), now()
        self._lengths: dict[int, int] = {}

    def part(self, prompt: int, chunk: Chunk) -> TextCompletion | None:
        index = prompt * self._n + chunk.index
        first, done = index not in self._lengths, chunk.completion
        offset = self._lengths.get(index, 0)
        text = (self._echoes[prompt] if first else "") + chunk.text
        self._lengths[index] = offset + len(text)
        by_token = self._body.logprobs is not None or self._body.return_token_ids or self._body.return_origins
        if not (text or done or by_token):
            return None
        choice = TextChoice(
            index=index,
            text=text,
            finish_reason=None if done is None else done.finish_reason.value,
            stop_reason=UNSET if done is None else done.stop_reason,
            logprobs=self._logprobs(chunk.token_ids, chunk.logprobs, offset),
            token_ids=list(chunk.token_ids) if self._body.return_token_ids else UNSET,
            prompt_token_ids=list(self._prompts[prompt]) if first and self._body.return_token_ids else UNSET,
            origins=[origin.value for origin in chunk.origins] if self._body.return_origins else UNSET,
        )
        return self._answer([choice])

    def total(self, use: Usage, metrics: dict[str, Any]) -> TextCompletion:
        return self._answer([], use, metrics)

    def whole(self, done: Sequence[Completion], use: Usage, metrics: dict[str, Any]) -> TextCompletion:
        return self._answer([self._choice(at, each) for at, each in enumerate(done)], use, metrics)

    def echoed(self) -> TextCompletion:
        """The prompts alone."""
        choices = [
            TextChoice(index=prompt * self._n + choice, text=echo, finish_reason="length")
            for prompt, echo in enumerate(self._echoes)
            for choice in range(self._n)
        ]
        return self._answer(choices, usage_of(self._prompts, (), None))

    def _choice(self, index: int, done: Completion) -> TextChoice:
        prompt = index // self._n
        echo = self._echoes[prompt]
        return TextChoice(
            index=index,
            text=echo + done.text,
            finish_reason=done.finish_reason.value,
            stop_reason=done.stop_reason,
            logprobs=self._whole_logprobs(prompt, done),
            token_ids=list(done.token_ids) if self._body.return_token_ids else UNSET,
            prompt_token_ids=list(self._prompts[prompt]) if self._body.return_token_ids else UNSET,
            origins=[origin.value for origin in done.origins] if self._body.return_origins else UNSET,
        )

    def _whole_logprobs(self, prompt: int, done: Completion) -> TextLogprobs | None:
        """Of the prompt too, where it is echoed; nothing stands before its first token."""
        if done.logprobs is None or done.prompt_logprobs is None:
            return self._logprobs(done.token_ids, done.logprobs, 0)
        ids = [*self._prompts[prompt], *done.token_ids]
        return text_logprobs(ids, [None, *done.prompt_logprobs, *done.logprobs], self._coder.named)

    def _logprobs(
        self, ids: Sequence[int], entries: Sequence[TokenLogprobs] | None, offset: int
    ) -> TextLogprobs | None:
        return None if entries is None else text_logprobs(ids, entries, self._coder.named, offset)

    def _answer(
        self, choices: list[TextChoice], use: Usage | None = None, metrics: dict[str, Any] | None = None
    ) -> TextCompletion:
        return TextCompletion(
            id=self._id,
            object="text_completion",
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=choices,
            usage=UNSET if use is None else use,
            metrics=UNSET if metrics is None else metrics,
        )
