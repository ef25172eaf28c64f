"""POST /v1/chat/completions: a conversation goes in, and the assistant's turn comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from recguide.core import Chunk, Completion, ParameterError, TokenLogprobs
from recguide.serving.answering import Answering, Job
from recguide.serving.bodies import StrictRoute
from recguide.serving.documents import ANSWERS
from recguide.serving.errors import api_error
from recguide.serving.logprobs import chat_logprobs
from recguide.serving.parameters import (
    TIMEOUT_HEADER,
    chat_logprobs_wanted,
    chat_max_tokens,
    chat_names,
    check_stream,
    deadline_of,
    output_tokens,
    sampling_params,
    spare_tokens,
)
from recguide.serving.replies import (
    UNSET,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    Delta,
    Message,
    Usage,
    fresh_id,
    now,
)
from recguide.serving.requests import ChatRequest, Turn
from recguide.serving.service import Service, service_of
from recguide.serving.tokens import Coder

ROUTE = "/v1/chat/completions"

router = APIRouter(route_class=StrictRoute)


@router.post(ROUTE, response_class=Response, responses=ANSWERS["ChatCompletion"], tags=["generate"])
async def chat(body: ChatRequest, request: Request) -> Response:
    """Answers a conversation."""
    service = service_of(request)
    arrived = service.follower.clock()
    model = service.model(body.model)
    check_stream(body)
    deadline = deadline_of((body.timeout, request.headers.get(TIMEOUT_HEADER)), service.settings.timeout_s)
    logprobs = chat_logprobs_wanted(body)
    most, field = chat_max_tokens(body)
    prompt = await prompt_ids(service.coder, body.messages, body.chat_template_kwargs or {})
    names = chat_names(body, field)
    facts = service.facts
    fitting = output_tokens(
        most, len(prompt), facts.max_model_len, field=field, spare=spare_tokens(body, facts.method)
    )
    params = sampling_params(body, max_tokens=fitting, logprobs=logprobs, names=names)
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    job = Job(ROUTE, [(prompt, params)], deadline, names, arrived, bool(body.stream), include_usage)
    return await Answering(service, request, job, ChatWords(service, model, body, prompt)).respond()


async def prompt_ids(
    coder: Coder, messages: Sequence[Turn], template_arguments: Mapping[str, Any]
) -> list[int]:
    """Token ids of a conversation; ApiError if the template refuses it."""
    try:
        return await coder.chat([_turn(turn) for turn in messages], template_arguments)
    except ParameterError as error:
        raise api_error(error, {}) from error


def _turn(turn: Turn) -> dict[str, Any]:
    """A turn as templates know it: one text, and no role that only OpenAI has."""
    fields = turn.model_dump(exclude_none=True)
    if isinstance(turn.content, list):
        fields["content"] = "\n".join(part.text for part in turn.content)
    if turn.role == "developer":
        fields["role"] = "system"
    return fields


class ChatWords:
    """Says chat completions."""

    def __init__(self, service: Service, model: str, body: ChatRequest, prompt: Sequence[int]) -> None:
        self._coder = service.coder
        self._model = model
        self._fingerprint = service.facts.fingerprint
        self._body = body
        self._prompt = prompt
        self._id, self._created = fresh_id("chatcmpl"), now()
        self._begun: set[int] = set()

    def part(self, prompt: int, chunk: Chunk) -> ChatCompletionChunk | None:
        del prompt  # there is one
        first, done, body = chunk.index not in self._begun, chunk.completion, self._body
        if not (
            first or chunk.text or done or chunk.logprobs or body.return_token_ids or body.return_origins
        ):
            return None
        opening = first and not self._begun
        self._begun.add(chunk.index)
        choice = ChatChunkChoice(
            index=chunk.index,
            delta=_delta(chunk.text, first=first),
            finish_reason=None if done is None else done.finish_reason.value,
            stop_reason=UNSET if done is None else done.stop_reason,
            logprobs=self._logprobs(chunk.token_ids, chunk.logprobs),
            token_ids=list(chunk.token_ids) if body.return_token_ids else UNSET,
            origins=[origin.value for origin in chunk.origins] if body.return_origins else UNSET,
        )
        return self._chunk([choice], opening=opening)

    def total(self, use: Usage, metrics: dict[str, Any]) -> ChatCompletionChunk:
        return self._chunk([], use, metrics)

    def whole(self, done: Sequence[Completion], use: Usage, metrics: dict[str, Any]) -> ChatCompletion:
        return ChatCompletion(
            id=self._id,
            object="chat.completion",
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=[self._choice(each) for each in done],
            usage=use,
            metrics=metrics,
            prompt_token_ids=list(self._prompt) if self._body.return_token_ids else UNSET,
        )

    def _choice(self, done: Completion) -> ChatChoice:
        body = self._body
        return ChatChoice(
            index=done.index,
            message=Message(done.text),
            finish_reason=done.finish_reason.value,
            stop_reason=done.stop_reason,
            logprobs=self._logprobs(done.token_ids, done.logprobs),
            token_ids=list(done.token_ids) if body.return_token_ids else UNSET,
            origins=[origin.value for origin in done.origins] if body.return_origins else UNSET,
        )

    def _logprobs(self, ids: Sequence[int], entries: Sequence[TokenLogprobs] | None) -> ChatLogprobs | None:
        return None if entries is None else chat_logprobs(ids, entries, self._coder.named)

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        use: Usage | None = None,
        metrics: dict[str, Any] | None = None,
        *,
        opening: bool = False,
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._id,
            object="chat.completion.chunk",
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=choices,
            usage=UNSET if use is None else use,
            metrics=UNSET if metrics is None else metrics,
            prompt_token_ids=list(self._prompt) if opening and self._body.return_token_ids else UNSET,
        )


def _delta(text: str, *, first: bool) -> Delta:
    if first:
        return Delta(role="assistant", content=text)
    return Delta(content=text) if text else Delta()
