"""Decoding methods: one file each, chosen by name."""

from __future__ import annotations

from dataclasses import fields

from recguide.core import ParameterError, SamplingParams
from recguide.speculation.methods.ar import AR
from recguide.speculation.methods.diffusion import DIFFUSION
from recguide.speculation.methods.linear import LINEAR
from recguide.speculation.methods.method import Method
from recguide.speculation.methods.recguide import RECGUIDE
from recguide.speculation.methods.tidar import TIDAR

__all__ = [
    "AR",
    "DIFFUSION",
    "LINEAR",
    "METHODS",
    "RECGUIDE",
    "TIDAR",
    "Method",
    "check_parameters",
    "method_named",
]

METHODS = (AR, LINEAR, TIDAR, RECGUIDE, DIFFUSION)


def method_named(name: str) -> Method:
    for method in METHODS:
        if method.name == name:
            return method
    raise ParameterError("method", f"{name!r} is not one of {', '.join(method.name for method in METHODS)}")


def check_parameters(method: Method, params: SamplingParams) -> None:
    """Raises ParameterError for a parameter that `method` cannot honour."""
    default = SamplingParams(max_tokens=params.max_tokens, prompt_logprobs=params.prompt_logprobs)
    for field in fields(SamplingParams):
        if field.name in method.refuses and getattr(params, field.name) != getattr(default, field.name):
            accepted = sorted({f.name for f in fields(SamplingParams)} - method.refuses)
            raise ParameterError(
                field.name, f"method {method.name!r} does not take it; it takes {', '.join(accepted)}"
            )
