"""`recguide generate`: continue one prompt or many."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from recguide.cli.console import counting, err, note, out, print_json, write
from recguide.cli.options import (
    ChatTemplateKwargs,
    Json,
    LoadOptions,
    Model,
    fills,
    loading,
    sampling,
    template_arguments,
)

if TYPE_CHECKING:
    from recguide.cli.summary import Run
    from recguide.core import Completion, SamplingParams
    from recguide.llm import LLM


@fills(params=sampling, load=loading)
def generate(
    model: Model,
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts; - or nothing reads stdin.", show_default=False)
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help='A .txt file is one prompt; .jsonl(.gz) has {"prompt": ...} a line.'
        ),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Through the chat template, or as it is.",
            show_default="chat if there is one",
        ),
    ] = None,
    chat_template_kwargs: ChatTemplateKwargs = "",
    compare: Annotated[
        bool, typer.Option("--compare", help="Run plain decoding beside it; exit status 1 if texts differ.")
    ] = False,
    show_rounds: Annotated[
        bool, typer.Option("--show-rounds", help="One line a round, then how rounds ended.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Record every round; recguide trace shows it.", show_default=False),
    ] = None,
    json_output: Json = False,
    params: SamplingParams,
    load: LoadOptions,
) -> None:
    """Continue one prompt or many.

    One prompt streams, its tokens coloured by how they came; text goes to stdout, all else to stderr.

    Example: [bold]recguide generate smollm2-135m "Why is the sky blue?" --max-tokens 100 --compare[/bold]

    Example: [bold]recguide generate smollm2-135m --file prompts.jsonl --temperature 0.7 --json[/bold]
    """
    from recguide.cli.opening import open_llm, tokens_of
    from recguide.cli.prompts import read_prompts

    texts = read_prompts(prompts or [], file)
    template = template_arguments(chat_template_kwargs)
    llm = open_llm(model, load, trace)
    ids = [tokens_of(llm.model, text, chat, template) for text in texts]
    if params.seed is None:  # drawn here, so that plain decoding beside it gets the same
        params = params.with_seed(secrets.randbelow(2**63))

    if len(ids) == 1 and params.n == 1 and not json_output:
        run = _streamed(llm, ids[0], params, show_rounds=show_rounds)
    else:
        run = _batched(llm, ids, params)
    llm.close()
    plain = _plain(llm, ids, params) if compare else None
    if json_output:
        print_json(_object(llm, run, plain, texts))
    else:
        _summarise(llm, run, plain, streamed=len(run.completions) == 1, show_rounds=show_rounds)
    if plain is not None and _differs(run, plain):
        raise typer.Exit(1)


def _streamed(llm: LLM, ids: Sequence[int], params: SamplingParams, *, show_rounds: bool) -> Run:
    """Shows one prompt's text as it comes."""
    from recguide.cli.opening import decode_of
    from recguide.cli.origins import Painter, legend
    from recguide.cli.summary import Run
    from recguide.core import Generation

    screen, painter = out(), Painter(decode_of(llm.model), ids)
    completion: Completion | None = None
    start = time.perf_counter()
    for number, chunk in enumerate(llm.stream(ids, params)):
        text = painter.paint(chunk)
        if number == 0:  # not earlier: the parameters may be refused
            err().print(legend(), "\n")
        if show_rounds:
            screen.print(Text(f"{len(chunk.token_ids):>3}  ", style="dim"), _on_one_line(text), sep="")
        elif screen.is_terminal:
            screen.print(text, end="")
        else:
            write(chunk.text)
        completion = chunk.completion or completion
    seconds = time.perf_counter() - start
    screen.print()
    assert completion is not None, "the last chunk of a stream carries its completion"
    return Run(llm.engine.method_for(params).name, [Generation(None, tuple(ids), (completion,))], seconds)


def _on_one_line(text: Text) -> Text:
    """The same with line breaks shown as a sign."""
    shown = text.copy()
    shown.plain = text.plain.replace("\n", "⏎")
    return shown


def _batched(llm: LLM, ids: Sequence[Sequence[int]], params: SamplingParams, what: str = "generating") -> Run:
    from recguide.cli.summary import Run

    start = time.perf_counter()
    with counting(what) as advance:
        generations = llm.generate(ids, params, progress=advance)
    return Run(llm.engine.method_for(params).name, generations, time.perf_counter() - start)


def _plain(llm: LLM, ids: Sequence[Sequence[int]], params: SamplingParams) -> Run:
    """Plain decoding of the same prompts with the same sampling seed."""
    return _batched(llm, ids, plainly(params), "plain decoding")


def plainly(params: SamplingParams) -> SamplingParams:
    """The same text by plain decoding."""
    none = {"block_size": None, "threshold": None, "policy": None, "max_block_size": None}
    return replace(params, method="ar", **none)


def _differs(run: Run, plain: Run) -> str | None:
    """Where the texts differ; block diffusion's own text is not comparable."""
    from recguide.cli.summary import difference

    return None if run.method == "diffusion" else difference(run, plain)


def _summarise(llm: LLM, run: Run, plain: Run | None, *, streamed: bool, show_rounds: bool) -> None:
    from recguide.cli.summary import COMPUTE_BOUND, rounds_table, saved, table

    if not streamed:
        for completion in run.completions:
            write(f"{completion.text}\n\n")
    screen = err()
    screen.print()
    if show_rounds:
        screen.print(rounds_table(run), "")
    screen.print(table([run] if plain is None else [run, plain]), soft_wrap=True)
    if plain is None:
        return
    screen.print()
    screen.print(f"{saved(run, plain)}.", end=" ")
    where = _differs(run, plain)
    if run.method == "diffusion":
        screen.print("Block diffusion writes its own text, so there is nothing to compare.")
    elif where is None:
        screen.print("Both texts are equal, token for token.", style="bold")
    else:
        screen.print(f"The texts are NOT equal: {where}; `recguide verify` says why.", style="bold red")
    if llm.model.kv_shape.device.type == "cpu":
        note(COMPUTE_BOUND)


def _object(llm: LLM, run: Run, plain: Run | None, texts: Sequence[str]) -> dict[str, object]:
    from recguide.cli.summary import run_object

    result: dict[str, object] = {
        "model": llm.model.name,
        "fingerprint": llm.model.fingerprint,
        "device": str(llm.model.kv_shape.device),
        "dtype": str(llm.model.kv_shape.dtype).removeprefix("torch."),
        **run_object(run, texts),
    }
    if plain is not None:
        result["plain"] = run_object(plain, texts)
        result["equal"] = None if run.method == "diffusion" else _differs(run, plain) is None
    return result
