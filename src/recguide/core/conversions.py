"""What users give as parameters, taken over: numbers of any library, but never a bool for one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real

from recguide.core.errors import ParameterError
from recguide.core.structure import Structure


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ParameterError(name, f"must be an integer (got {value!r})")
    return int(value)


def _real(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(name, f"must be a number (got {value!r})")
    return float(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ParameterError(name, f"must be True or False (got {value!r})")
    return value


def _name(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ParameterError(name, f"must be a name (got {value!r})")
    return value


def _form(name: str, value: object) -> Structure:
    if not isinstance(value, Structure):
        raise ParameterError(name, f"must be a Structure (got {value!r:.60})")
    return value


def _strings(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    items = _items(name, value)
    texts = tuple(item for item in items if isinstance(item, str))
    if len(texts) != len(items):
        raise ParameterError(name, f"must be a string or a list of strings (got {value!r})")
    return texts


def _integers(name: str, value: object) -> tuple[int, ...]:
    return tuple(_integer(name, item) for item in _items(name, value))


def _items(name: str, value: object) -> tuple[object, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise ParameterError(name, f"must be a list (got {value!r})")
    items: Iterable[object] = value
    return tuple(items)


def _bias(name: str, value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise ParameterError(name, f"must map token ids to numbers (got {value!r})")
    pairs: Mapping[object, object] = value
    return {_integer(name, token): _real(name, bias) for token, bias in pairs.items()}


def _optional(convert: Callable[[str, object], object]) -> Callable[[str, object], object]:
    return lambda name, value: None if value is None else convert(name, value)


CONVERSIONS: Mapping[str, Callable[[str, object], object]] = {
    **dict.fromkeys(
        (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "frequency_penalty",
            "presence_penalty",
        ),
        _real,
    ),
    **dict.fromkeys(("top_k", "max_tokens", "min_tokens", "n"), _integer),
    **dict.fromkeys(
        ("seed", "logprobs", "prompt_logprobs", "thinking_budget", "block_size", "max_block_size"),
        _optional(_integer),
    ),
    "threshold": _optional(_real),
    "method": _optional(_name),
    "structure": _optional(_form),
    "policy": _optional(_name),
    "ignore_eos": _flag,
    "stop": _strings,
    "stop_token_ids": _integers,
    "logit_bias": _bias,
}
"""How each field of SamplingParams is taken over."""
