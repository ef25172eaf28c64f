"""A loaded model for a verb, with progress on the way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recguide.cli.console import steps
from recguide.cli.options import LoadOptions
from recguide.core import ParameterError
from recguide.engine.text import Decode
from recguide.llm import LLM
from recguide.models import published
from recguide.models.loading import Model, load
from recguide.models.tokenizer import Tokenizer


def open_model(source: str, options: LoadOptions) -> Model:
    with steps(f"loading {source}") as progress:
        return load(
            source,
            adapter=options.adapter,
            dtype=options.dtype,
            device=options.device,
            revision=options.revision,
            load_format=options.load_format,
            exact=options.exact,
            progress=progress,
        )


def open_llm(source: str, options: LoadOptions, trace: Path | None = None) -> LLM:
    model = open_model(source, options)
    model.arrange()
    return LLM(
        model,
        max_model_len=options.max_model_len,
        kv_cache_tokens=options.kv_cache_tokens,
        prefix_cache=options.prefix_cache,
        exact=options.exact,
        batching=options.batching,
        cost_table=options.cost_table,
        value_table=options.value_table,
        trace=trace,
    )


def tokenizer_of(model: Model) -> Tokenizer:
    if model.tokenizer is None:
        raise ParameterError("model", f"{model.name} has no tokenizer; add its tokenizer.json")
    return model.tokenizer


def decode_of(model: Model) -> Decode:
    """Token ids → text; numbers for a model that has no tokenizer because its weights are random."""
    return published.decode if model.tokenizer is None else model.tokenizer.decode


def tokens_of(model: Model, prompt: str, chat: bool | None, template: Mapping[str, Any]) -> list[int]:
    """Token ids of a prompt: one user turn through the chat template, or the text as it is.

    `chat` None takes the template if there is one. Without a tokenizer they are the text's bytes.
    """
    if model.tokenizer is None and not chat and not template:
        return published.encode(prompt)
    tokenizer = tokenizer_of(model)
    if chat is None:
        chat = tokenizer.chat_template is not None
    if not chat and template:
        raise ParameterError("chat_template_kwargs", "no chat template is applied; add --chat")
    if chat:
        return tokenizer.chat([{"role": "user", "content": prompt}], **template)
    return tokenizer.encode(prompt)
