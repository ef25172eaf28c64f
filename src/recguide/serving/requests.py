"""Request bodies. Strict: a field of the wrong type, or one that nobody honours, is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_STOPS = 64
Refused = Annotated[None, Field(description="Not supported; null or left out.")]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=-1, lt=2**31)]
Ids = Annotated[list[TokenId], Field(min_length=1)]


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class StreamOptions(Body):
    include_usage: bool | None = Field(None, description="End with a chunk that has usage and no choices.")
    include_obfuscation: Literal[False] | None = None


class Speculation(Body):
    """How this request is decoded; its text is the same whatever is chosen."""

    method: str | None = Field(None, description="recguide, linear, tidar, ar or diffusion.")
    block_size: int | None = Field(None, ge=1, description="Slots drafted and verified together.")
    policy: str | None = Field(
        None, description="Who chooses block sizes and branches: price, paper, fixed, fixed-16 and so on, ar."
    )
    max_block_size: int | None = Field(None, ge=1, description="No block is larger, whoever chooses.")
    threshold: float | None = Field(None, description="Confidence that fixes a slot, diffusion only.")


class JsonSchema(Body):
    name: str
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = Field(None, description="The output always satisfies the schema.")


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """The form of the whole output; exactly one field."""

    json_: dict[str, Any] | bool | str | None = Field(None, alias="json", description="A JSON schema.")
    json_object: Literal[True] | None = Field(None, description="Any JSON object.")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = Field(None, description="One of these texts.")
    grammar: str | None = Field(None, description="Lark, in the syntax of llguidance.")


class Generate(Body):
    """What both ways to generate take."""

    model: str | None = Field(None, description="One of /v1/models.")
    temperature: float | None = Field(None, description="0 is greedy; 1 if left out.")
    top_p: float | None = None
    top_k: Count | None = Field(None, description="0 or -1 is off.")
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = Field(None, description="Token id, as a string, to its bias.")
    seed: int | None = Field(None, description="Sampling seed.")
    min_tokens: int | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOPS)] | None = None
    ignore_eos: bool | None = None
    n: int | None = Field(None, description="Choices per prompt.")
    thinking_budget: Count | None = Field(None, description="Close an open <think> after that many tokens.")
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = Field(None, description="Add token ids of prompt and output.")
    return_origins: bool | None = Field(None, description="Add how each output token came to be.")
    speculation: Speculation | bool | None = Field(None, description="false is plain decoding.")
    timeout: float | None = Field(None, gt=0, description="Seconds after which the request ends in error.")
    user: str | None = Field(None, description="Accepted, and not used.")


class CompletionRequest(Generate):
    prompt: str | Ids | Annotated[list[str], Field(min_length=1)] | Annotated[list[Ids], Field(min_length=1)]
    max_tokens: Count | None = Field(16, description="null is the rest of the context.")
    logprobs: int | None = Field(None, description="Log-probabilities of the k likeliest tokens.")
    echo: bool | None = Field(None, description="Begin the text with the prompt.")
    best_of: int | None = Field(None, description="Only as many as n.")
    suffix: Refused = None


class TextPart(Body):
    type: Literal["text"]
    text: str


class Turn(Body):
    """One message; `developer` is `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: Refused = None


class ChatRequest(Generate):
    messages: Annotated[list[Turn], Field(min_length=1)]
    max_tokens: Count | None = Field(None, description="The rest of the context if left out.")
    max_completion_tokens: Count | None = Field(None, description="The same as max_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="For the model's chat template.")
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = Field(None, description="none, auto, required, or one tool.")
    parallel_tool_calls: bool | None = Field(None, description="Whether there may be several calls.")
    functions: Refused = None
    function_call: Refused = None
    modalities: list[Literal["text"]] | None = None
    audio: Refused = None
    prediction: Refused = None
    reasoning_effort: Refused = None
    verbosity: Refused = None
    web_search_options: Refused = None
    store: Literal[False] | None = None
    metadata: Refused = None
    service_tier: Refused = None


class TokenizeRequest(Body):
    """A prompt, or messages for the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Turn], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = Field(None, description="Of a prompt; true if left out.")
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: list[TokenId]
