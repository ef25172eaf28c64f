"""Options that several verbs share: how a model is loaded, and one option for every sampling parameter.

A verb asks for the built value, `params: "SamplingParams"`, and `fills` puts the options that make it in its
place. The type of the value is never evaluated, so that a verb's help needs no torch.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from recguide.core import SamplingParams, Structure

Model = Annotated[
    str,
    typer.Argument(
        help="smollm2-135m, a folder, a Hugging Face id; nld-8b and the like with --load-format dummy.",
        metavar="MODEL",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
ChatTemplateKwargs = Annotated[
    str,
    typer.Option(
        help="JSON for the chat template, such as '{\"enable_thinking\": true}'.", show_default=False
    ),
]
_SAMPLING = "Sampling"
_SPECULATION = "Speculation"
_LOADING = "Loading"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Where a model comes from and how it is held; `adapter` None is none."""

    adapter: str | None
    device: str
    dtype: str
    revision: str | None
    load_format: str
    max_model_len: int | None
    kv_cache_tokens: int | None
    prefix_cache: bool
    exact: bool
    batching: str = "ragged"
    cost_table: Path | None = None
    value_table: Path | None = None


def loading(
    adapter: Annotated[
        str, typer.Option(help="Draft adapter: auto, none, or a folder.", rich_help_panel=_LOADING)
    ] = "auto",
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda, cuda:1 ...", rich_help_panel=_LOADING)
    ] = "auto",
    dtype: Annotated[
        str, typer.Option(help="auto, float32, bfloat16, float16, float64.", rich_help_panel=_LOADING)
    ] = "auto",
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a Hugging Face id.", rich_help_panel=_LOADING)
    ] = None,
    load_format: Annotated[
        str,
        typer.Option(
            help="auto reads the weights; dummy makes random ones for a published shape (nld-8b).",
            rich_help_panel=_LOADING,
        ),
    ] = "auto",
    max_model_len: Annotated[
        int | None, typer.Option(help="Prompt and output tokens of a request.", rich_help_panel=_LOADING)
    ] = None,
    kv_cache_tokens: Annotated[
        int | None, typer.Option(help="Tokens that the KV cache holds.", rich_help_panel=_LOADING)
    ] = None,
    prefix_cache: Annotated[
        bool,
        typer.Option(help="Keep KV for other texts that begin alike.", rich_help_panel=_LOADING),
    ] = True,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Bits do not depend on what else runs: slower, GPU only.",
            rich_help_panel=_LOADING,
        ),
    ] = False,
    batching: Annotated[
        str,
        typer.Option(
            help="How planned requests share forwards: ragged, bucketed, padded.",
            rich_help_panel=_SPECULATION,
        ),
    ] = "ragged",
    cost_table: Annotated[
        Path | None,
        typer.Option(
            help="By recguide profile, for policies.",
            show_default="found in the user's cache, or assumed",
            rich_help_panel=_SPECULATION,
        ),
    ] = None,
    value_table: Annotated[
        Path | None,
        typer.Option(
            help="By recguide calibrate, for policies.",
            show_default="found in the user's cache, or published statistics",
            rich_help_panel=_SPECULATION,
        ),
    ] = None,
) -> LoadOptions:
    """The options that say how a model is loaded and how its forwards are planned."""
    return LoadOptions(
        adapter=None if adapter == "none" else adapter,
        device=device,
        dtype=dtype,
        revision=revision,
        load_format=load_format,
        max_model_len=max_model_len,
        kv_cache_tokens=kv_cache_tokens,
        prefix_cache=prefix_cache,
        exact=exact,
        batching=batching,
        cost_table=cost_table,
        value_table=value_table,
    )


def sampling(
    temperature: Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=_SAMPLING)] = 0.0,
    top_p: Annotated[float, typer.Option(help="1 is off.", rich_help_panel=_SAMPLING)] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 is off.", rich_help_panel=_SAMPLING)] = 0,
    min_p: Annotated[float, typer.Option(help="0 is off.", rich_help_panel=_SAMPLING)] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="On tokens of prompt and output; 1 is none.", rich_help_panel=_SAMPLING)
    ] = 1.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="Per occurrence in the output.", rich_help_panel=_SAMPLING)
    ] = 0.0,
    presence_penalty: Annotated[
        float, typer.Option(help="For occurrence in the output.", rich_help_panel=_SAMPLING)
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None, typer.Option(help="ID=VALUE; repeat for more.", rich_help_panel=_SAMPLING)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Sampling seed; a fresh one if left out.", rich_help_panel=_SAMPLING)
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens to emit at most.", rich_help_panel=_SAMPLING)] = 256,
    min_tokens: Annotated[
        int, typer.Option(help="No end before that many tokens.", rich_help_panel=_SAMPLING)
    ] = 0,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Text that ends the output; repeat for more.", rich_help_panel=_SAMPLING),
    ] = None,
    stop_token_ids: Annotated[
        list[int] | None,
        typer.Option(
            "--stop-token-id",
            help="Token id that ends the output; repeat for more.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past end-of-sequence.", rich_help_panel=_SAMPLING)
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(help="Log-probabilities: each token's and the K likeliest.", rich_help_panel=_SAMPLING),
    ] = None,
    prompt_logprobs: Annotated[
        int | None,
        typer.Option(help="The same for every token of the prompt.", rich_help_panel=_SAMPLING),
    ] = None,
    n: Annotated[int, typer.Option("--n", "-n", help="Choices per prompt.", rich_help_panel=_SAMPLING)] = 1,
    thinking_budget: Annotated[
        int | None,
        typer.Option(help="Close an open <think> after that many tokens.", rich_help_panel=_SAMPLING),
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(
            help="File with the JSON schema that the output satisfies.",
            exists=True,
            dir_okay=False,
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    regex: Annotated[
        str | None,
        typer.Option(help="Regular expression that the output matches.", rich_help_panel=_SAMPLING),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="recguide (the default), linear, tidar, ar, diffusion.", rich_help_panel=_SPECULATION
        ),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(
            help="Slots drafted and verified together.",
            show_default="the policy's choice, 16 for other methods than recguide",
            rich_help_panel=_SPECULATION,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Who chooses blocks and branches: price, paper, fixed (the recipe), fixed-16 ..., ar.",
            show_default="price",
            rich_help_panel=_SPECULATION,
        ),
    ] = None,
    max_block_size: Annotated[
        int | None, typer.Option(help="No block is larger.", rich_help_panel=_SPECULATION)
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Confidence that fixes a slot, diffusion only.", rich_help_panel=_SPECULATION),
    ] = None,
) -> SamplingParams:
    """One option for every sampling parameter, and one for each structure that is easily told."""
    from recguide.core import SamplingParams

    return SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        logit_bias=_biases(logit_bias or ()),
        seed=seed,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=tuple(stop or ()),
        stop_token_ids=tuple(stop_token_ids or ()),
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        n=n,
        thinking_budget=thinking_budget,
        structure=_structure(json_schema, regex),
        method=method,
        block_size=block_size,
        policy=policy,
        max_block_size=max_block_size,
        threshold=threshold,
    )


def _structure(json_schema: Path | None, regex: str | None) -> Structure | None:
    from recguide.core import Structure

    if json_schema is not None and regex is not None:
        raise typer.BadParameter("--json-schema and --regex exclude each other; drop one")
    if json_schema is not None:
        return Structure("json_schema", json_schema.read_text(encoding="utf-8"))
    return None if regex is None else Structure("regex", regex)


def _biases(pairs: list[str] | tuple[str, ...]) -> dict[int, float]:
    try:
        return {int(token): float(value) for token, value in (pair.split("=") for pair in pairs)}
    except ValueError as error:
        raise typer.BadParameter("--logit-bias takes ID=VALUE, such as 42=-100") from error


def template_arguments(text: str) -> dict[str, Any]:
    """The JSON object of `--chat-template-kwargs`."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:  # also too many digits, or too deep
        raise typer.BadParameter(f"--chat-template-kwargs is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter("--chat-template-kwargs must be a JSON object")
    return value


def fills(**builders: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replaces parameters of a verb by the options of what builds them."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        options = {name: _parameters(builder) for name, builder in builders.items()}
        merged = [*_parameters(verb, builders).values()]
        merged += [parameter for group in options.values() for parameter in group.values()]

        @wraps(verb)
        def command(**values: object) -> None:
            built = {
                name: builder(**{option: values.pop(option) for option in options[name]})
                for name, builder in builders.items()
            }
            verb(**values, **built)

        del command.__wrapped__  # typer would look through it, at what is replaced here
        signature = inspect.Signature([p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in merged])
        vars(command)["__signature__"] = signature
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in merged}
        return command

    return decorate


def _parameters(function: Callable[..., Any], without: Collection[str] = ()) -> dict[str, inspect.Parameter]:
    """A function's parameters with their annotations evaluated; those left out need not be importable."""
    wanted = {
        name: hint for name, hint in function.__annotations__.items() if name not in {"return", *without}
    }
    holder = type("Parameters", (), {"__annotations__": wanted, "__module__": function.__module__})
    hints = get_type_hints(holder, include_extras=True)
    parameters = inspect.signature(function).parameters
    return {name: parameters[name].replace(annotation=hint) for name, hint in hints.items()}
