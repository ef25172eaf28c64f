"""POST /v1/chat/completions: a conversation goes in, and the assistant's turn comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from recguide.core import (
    Chunk,
    Completion,
    FinishReason,
    ParameterError,
    TokenLogprobs,
    opens_thinking,
)
from recguide.serving.answering import Answering, Arrival, Job
from recguide.serving.bodies import StrictRoute
from recguide.serving.conversation import prompt_ids
from recguide.serving.documents import ANSWERS
from recguide.serving.errors import api_error
from recguide.serving.hearing import Hearing, Said
from recguide.serving.logprobs import chat_logprobs
from recguide.serving.parameters import (
    chat_logprobs_wanted,
    chat_max_tokens,
    chat_names,
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
    Function,
    Message,
    ToolCall,
    UnsetType,
    Usage,
    fresh_id,
    now,
)
from recguide.serving.requests import ChatRequest
from recguide.serving.service import Service
from recguide.serving.tools import Call, ToolPlan, plan_tools

ROUTE = "/v1/chat/completions"

router = APIRouter(route_class=StrictRoute)


@router.post(ROUTE, response_class=Response, responses=ANSWERS["ChatCompletion"], tags=["generate"])
async def chat(body: ChatRequest, request: Request) -> Response:
    """Answers a conversation."""
    arrival = Arrival.of(body, request)
    service = arrival.service
    logprobs = chat_logprobs_wanted(body)
    most, field = chat_max_tokens(body)
    tools = _tool_plan(service, body)
    prompt = await prompt_ids(service.coder, body.messages, body.chat_template_kwargs or {}, tools)
    names = chat_names(body, field)
    facts = service.facts
    fitting = output_tokens(
        most, len(prompt), facts.max_model_len, field=field, spare=spare_tokens(body, facts.method)
    )
    params = sampling_params(
        body,
        max_tokens=fitting,
        logprobs=logprobs,
        names=names,
        structure=None if tools is None else tools.structure,
        stop=() if tools is None else tools.stop,
    )
    words = ChatWords(service, arrival.model, body, prompt, tools)
    return await Answering(arrival, Job(ROUTE, [(prompt, params)], names), words).respond()


def _tool_plan(service: Service, body: ChatRequest) -> ToolPlan | None:
    parallel = body.parallel_tool_calls is not False
    try:
        return plan_tools(
            body.tools or (), body.tool_choice, service.coder.tokenizer.chat_template, parallel=parallel
        )
    except ParameterError as error:
        raise api_error(error, {}) from error


class ChatWords:
    """Says chat completions."""

    def __init__(
        self,
        service: Service,
        model: str,
        body: ChatRequest,
        prompt: Sequence[int],
        tools: ToolPlan | None,
    ) -> None:
        self._coder = service.coder
        self._model = model
        self._fingerprint = service.facts.fingerprint
        self._body = body
        self._prompt = prompt
        self._id, self._created = fresh_id("chatcmpl"), now()
        self._opened = opens_thinking(prompt, service.facts.think)
        self._tools = tools
        self._hearings: dict[int, Hearing] = {}

    def part(self, prompt: int, chunk: Chunk) -> ChatCompletionChunk | None:
        del prompt  # there is one
        first, done, body = chunk.index not in self._hearings, chunk.completion, self._body
        opening = not self._hearings
        if first:
            self._hearings[chunk.index] = self._hearing()
        hearing = self._hearings[chunk.index]
        before = hearing.calls
        said = hearing.hear(chunk.text, last=done is not None)
        by_token = body.logprobs or body.return_token_ids or body.return_origins
        if not (first or said or done or by_token):
            return None
        choice = ChatChunkChoice(
            index=chunk.index,
            delta=_delta(said, before, first=first),
            finish_reason=None if done is None else _finish_reason(done, hearing),
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
        body, hearing = self._body, self._hearing()
        said = hearing.hear(done.text, last=True)
        return ChatChoice(
            index=done.index,
            message=Message(
                None if said.calls and not said.content else said.content,
                reasoning_content=said.reasoning or UNSET,
                tool_calls=[_tool_call(call) for call in said.calls] or UNSET,
            ),
            finish_reason=_finish_reason(done, hearing),
            stop_reason=done.stop_reason,
            logprobs=self._logprobs(done.token_ids, done.logprobs),
            token_ids=list(done.token_ids) if body.return_token_ids else UNSET,
            origins=[origin.value for origin in done.origins] if body.return_origins else UNSET,
        )

    def _hearing(self) -> Hearing:
        return Hearing(opened=self._opened, parser=None if self._tools is None else self._tools.parser())

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


def _delta(said: Said, calls_before: int, *, first: bool) -> Delta:
    calls = [_tool_call(call, calls_before + at) for at, call in enumerate(said.calls)]
    return Delta(
        role="assistant" if first else UNSET,
        content=said.content if said.content or (first and not calls) else UNSET,
        reasoning_content=said.reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def _tool_call(call: Call, index: int | UnsetType = UNSET) -> ToolCall:
    return ToolCall(call.id, Function(call.name, call.arguments), index=index)


def _finish_reason(done: Completion, hearing: Hearing) -> str:
    """Who calls a tool stops to hear what it says."""
    stopped = done.finish_reason is FinishReason.STOP
    return "tool_calls" if stopped and hearing.calls else done.finish_reason.value
