"""What the process that serves and the process that runs the engine say to each other.

Orders go to the engine, notices come back; both are msgpack. The nouns of `core` travel as they are, so a new
sampling parameter needs no line here. Nothing in this module needs torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, get_origin

import msgspec

from recguide.core import Chunk, ParameterError, RecGuideError, SamplingParams
from recguide.engine.errors import QueueFull
from recguide.engine.memory import MemoryPlan
from recguide.engine.reports import StepReport


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Continue a prompt.

    Attributes:
        number: tells requests apart; never used twice.
        request_id: what the client calls it, for logs and traces.
        sent: when, in seconds since the epoch.
        deadline: seconds since the epoch after which nobody waits for it; None is never.
    """

    number: int
    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    sent: float
    deadline: float | None = None


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Nobody reads this request any more."""

    number: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Abort everything and leave."""


Order = Submit | Abort | Stop


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server has to know of a model that another process holds.

    Attributes:
        name, fingerprint: of the model.
        tokenizer: folder of its tokenizer; None for a model without one.
        device, dtype: where and in what it runs.
        max_model_len: prompt and output tokens of a request at most: the model's limit or the cache's.
        vocabulary_size, eos, think: of its vocabulary; `think` holds the ids of <think> and </think>.
        method, block_size: what a request gets that names none; block size None is a policy's choice.
        planning: the same in words, with policy and batching.
        drafts: whether the model can draft.
        max_running: requests that decode together at most.
        memory: where the memory went.
        acceptance: what has to stand beside figures of speculation; "" if drafts are the model's own.
    """

    name: str
    fingerprint: str
    tokenizer: str | None
    device: str
    dtype: str
    max_model_len: int
    vocabulary_size: int
    eos: tuple[int, ...]
    think: tuple[int, int] | None
    method: str
    block_size: int | None
    planning: str = ""
    drafts: bool
    max_running: int
    memory: MemoryPlan
    acceptance: str = ""


class Loading(msgspec.Struct, frozen=True, tag=True):
    """How far loading the model is; total 0 where it is not known."""

    what: str
    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine takes requests."""

    facts: Facts


class Failure(msgspec.Struct, frozen=True):
    """Why a request was refused or ended without a completion.

    Attributes:
        kind: name of the error's class.
        parameter: the field that cannot be honoured, for a ParameterError.
        retry_after_s: seconds after which there should be room, for a QueueFull.
    """

    kind: str
    message: str
    parameter: str | None = None
    retry_after_s: float | None = None


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """What became of a request: a chunk of one of its choices, the reason why nothing more comes, or neither.

    The first piece is neither: the engine has taken the request.
    """

    number: int
    chunk: Chunk | None = None
    failure: Failure | None = None


class Brought(msgspec.Struct, frozen=True, tag=True):
    """What a step, or the taking of requests, brought: all pieces, and what the step was."""

    pieces: tuple[Piece, ...] = ()
    reports: tuple[StepReport, ...] = ()


class Logged(msgspec.Struct, frozen=True, tag=True):
    """A record of the engine's log, for the server's."""

    logger: str
    level: int
    message: str


class Fault(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot go on; its process ends.

    Attributes:
        refusal: whether it never started because an argument or a file cannot be honoured.
    """

    message: str
    refusal: bool = False


Notice = Loading | Ready | Brought | Logged | Fault


def failure_of(error: RecGuideError) -> Failure:
    parameter = error.parameter if isinstance(error, ParameterError) else None
    message = str(error).removeprefix(f"{parameter}: ") if parameter else str(error)
    retry_after_s = error.retry_after_s if isinstance(error, QueueFull) else None
    return Failure(type(error).__name__, message, parameter, retry_after_s)


def encode(message: Order | Notice) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_order(data: bytes) -> Order:
    return _ORDERS.decode(data)


def decode_notice(data: bytes) -> Notice:
    return _NOTICES.decode(data)


def _hook(kind: type, value: Any) -> Any:  # noqa: ANN401  the signature is msgspec's
    """Counters come as plain maps."""
    if (get_origin(kind) or kind) is Counter and isinstance(value, Mapping):
        return Counter(value)
    raise NotImplementedError(f"no message carries {kind}")


_ORDERS: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_NOTICES: msgspec.msgpack.Decoder[Notice] = msgspec.msgpack.Decoder(Notice, dec_hook=_hook)
