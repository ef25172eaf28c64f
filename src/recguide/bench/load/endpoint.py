"""An endpoint under load, and the body of a request to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from recguide.bench.load.prompts import Prompt
from recguide.core import ParameterError

Api = Literal["chat", "completions"]
PATHS: Mapping[Api, str] = {"chat": "chat/completions", "completions": "completions"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go, and as what.

    Attributes:
        name: what reports call it.
        base_url: with or without the closing /v1.
        model: as its requests name it.
        api_key: sent as a bearer token, never written anywhere.
        extra_body: fields for every request's body; None for a value drops the field.
        timeout_s: of a whole request.
    """

    name: str
    base_url: str
    model: str
    api: Api = "chat"
    api_key: str | None = field(default=None, repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    timeout_s: float = 600.0

    @property
    def url(self) -> str:
        return f"{api_root(self.base_url)}/{PATHS[self.api]}"

    @property
    def headers(self) -> dict[str, str]:
        return bearer(self.api_key)


@dataclass(frozen=True, slots=True)
class Asking:
    """What all requests of a load share.

    Attributes:
        max_tokens: tokens to emit at most.
        temperature: 0 is greedy.
        unique: puts a mark in front of each prompt, so that no prefix cache helps.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    unique: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ParameterError("max_tokens", f"must be at least 1 (got {self.max_tokens})")
        if self.temperature < 0:
            raise ParameterError(
                "temperature", f"must be at least 0, which is greedy (got {self.temperature})"
            )


def body(endpoint: Endpoint, asking: Asking, prompt: Prompt, seed: int) -> dict[str, Any]:
    """The body of a streamed request. Raises ParameterError for a chat prompt to plain completions.

    Args:
        seed: no other request to this endpoint has it. Greedy requests are sent it too: where acceptance is
            replayed, requests that share a sampling seed would all fare alike.
    """
    if asking.unique:
        prompt = prompt.marked(f"[{seed}]")
    fields: dict[str, Any] = {
        "model": endpoint.model,
        **_content(endpoint.api, prompt),
        "max_tokens": asking.max_tokens,
        "temperature": asking.temperature,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        **endpoint.extra_body,
    }
    return {name: value for name, value in fields.items() if value is not None}


def api_root(base_url: str) -> str:
    """The address that API paths follow: one /v1 at its end. Raises ParameterError where it is no address."""
    if not base_url.startswith(("http://", "https://")):
        raise ParameterError("base_url", f"must begin with http:// or https:// (got {base_url!r})")
    return base_url.rstrip("/").removesuffix("/v1") + "/v1"


def api_named(name: str) -> Api:
    """Raises ParameterError for anything but chat and completions."""
    for api in PATHS:
        if api == name:
            return api
    raise ParameterError("api", f"must be {' or '.join(PATHS)} (got {name!r})")


def extra_fields(text: str) -> Mapping[str, Any]:
    """Fields of a body, as a JSON object; empty text is none. Raises ParameterError."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ParameterError("extra_body", f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ParameterError("extra_body", "must be a JSON object")
    return cast("Mapping[str, Any]", value)


def bearer(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def _content(api: Api, prompt: Prompt) -> dict[str, Any]:
    if api == "chat":
        return {"messages": prompt.messages}
    if not isinstance(prompt.content, str):
        raise ParameterError("api", f"prompt {prompt.number} is a chat; take --api chat for it")
    return {"prompt": prompt.content}
