"""Response bodies, encoded without a detour: a stream writes thousands of them a second."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec
from fastapi import Response
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[TokenLogprob]


class Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    """In a stream it comes whole, with its index."""

    id: str
    function: Function
    type: str = "function"
    index: int | UnsetType = UNSET


class Message(msgspec.Struct, frozen=True):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """What choices of every kind can have beside OpenAI's fields."""

    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    origins: list[str] | UnsetType = UNSET


class ChatChoice(Extras, frozen=True):
    index: int
    message: Message
    finish_reason: str
    logprobs: ChatLogprobs | None = None


class ChatChunkChoice(Extras, frozen=True):
    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Extras, frozen=True):
    index: int
    text: str
    finish_reason: str | None = None
    logprobs: TextLogprobs | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class ChatCompletion(Answer, frozen=True, kw_only=True):
    choices: list[ChatChoice]
    usage: Usage
    metrics: dict[str, Any]
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(Answer, frozen=True, kw_only=True):
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: dict[str, Any] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class TextCompletion(Answer, frozen=True, kw_only=True):
    """Whole, and as a chunk of a stream."""

    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: dict[str, Any] | UnsetType = UNSET


class ModelCard(msgspec.Struct, frozen=True):
    id: str
    created: int
    root: str
    max_model_len: int
    object: str = "model"
    owned_by: str = "recguide"
    parent: None = None


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: str = "list"


class Tokenized(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str


class Health(msgspec.Struct, frozen=True):
    status: str
    detail: str | None = None


class Version(msgspec.Struct, frozen=True):
    version: str


def fresh_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def now() -> int:
    return int(time.time())


def json_response(body: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
