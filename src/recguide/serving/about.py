"""What a server says of itself: models, health, version, and how text becomes tokens."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Request, Response

from recguide.core import ParameterError
from recguide.serving.bodies import StrictRoute
from recguide.serving.conversation import prompt_ids
from recguide.serving.documents import ANSWERS
from recguide.serving.errors import ApiError, api_error, refusal
from recguide.serving.replies import Detokenized, Health, Tokenized, Version, json_response
from recguide.serving.requests import DetokenizeRequest, TokenizeRequest
from recguide.serving.service import Service, service_of

router = APIRouter(route_class=StrictRoute, default_response_class=Response)


@router.get("/health", responses=ANSWERS["Health"], tags=["server"])
async def health(request: Request) -> Response:
    """200 while the engine lives, whatever it is busy with."""
    engine = service_of(request).engine
    if engine.healthy:
        return json_response(Health("ok"))
    return json_response(Health("failed", engine.fault), 503)


@router.get("/ready", responses=ANSWERS["Health"], tags=["server"])
async def ready(request: Request) -> Response:
    """200 while new requests are served."""
    service = service_of(request)
    if service.ready:
        return json_response(Health("ready"))
    return json_response(Health("not ready", _hindrance(service)), 503)


def _hindrance(service: Service) -> str:
    if service.engine.fault is not None:
        return service.engine.fault
    return "stopping" if service.draining else service.engine.loading.what


@router.get("/version", responses=ANSWERS["Version"], tags=["server"])
async def tell_version() -> Response:
    return json_response(Version(version("recguide")))


@router.get("/v1/models", responses=ANSWERS["ModelList"], tags=["models"])
async def list_models(request: Request) -> Response:
    return json_response(service_of(request).cards())


@router.get("/v1/models/{model:path}", responses=ANSWERS["ModelCard"], tags=["models"])
async def show_model(model: str, request: Request) -> Response:
    service = service_of(request)
    name = service.model(model)
    return json_response(next(card for card in service.cards().data if card.id == name))


@router.post("/tokenize", responses=ANSWERS["Tokenized"], tags=["tokens"])
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Token ids of a prompt, or of messages through the chat template."""
    service = service_of(request)
    service.model(body.model)
    ids = await _ids(service, body)
    names = [service.coder.tokenizer.token(token) for token in ids] if body.return_token_strs else None
    return json_response(Tokenized(len(ids), service.facts.max_model_len, ids, names))


async def _ids(service: Service, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise refusal("prompt", "give either a prompt or messages")
    if body.messages is not None:
        if body.add_special_tokens is not None:
            raise refusal("add_special_tokens", "is the chat template's affair; leave it out")
        return await prompt_ids(service.coder, body.messages, body.chat_template_kwargs or {})
    if body.chat_template_kwargs is not None:
        raise refusal("chat_template_kwargs", "needs messages")
    try:
        return await service.coder.encode(body.prompt or "", special=body.add_special_tokens is not False)
    except ParameterError as error:
        raise api_error(error, {}) from error


@router.post("/detokenize", responses=ANSWERS["Detokenized"], tags=["tokens"])
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """Text of token ids, special tokens included."""
    service = service_of(request)
    service.model(body.model)
    size = service.facts.vocabulary_size
    outside = next((token for token in body.tokens if not 0 <= token < size), None)
    if outside is not None:
        raise ApiError(400, f"tokens: {outside} lies outside the vocabulary of {size}", param="tokens")
    return json_response(Detokenized(await service.coder.decode(body.tokens)))
