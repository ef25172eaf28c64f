"""`recguide chat`: talk to a model, turn by turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from recguide.cli.console import err, note, out, print_json
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
    from recguide.core import Chunk, Completion, SamplingParams
    from recguide.llm import LLM

ABOUT_A_TURN = ("prompt", "messages", "max_tokens")
"""What a refusal names that another turn, or a shorter conversation, may not meet."""
HELP = "/reset forgets the conversation, /stats shows what was saved, /exit or Ctrl-D leaves."


@fills(params=sampling, load=loading)
def chat(
    model: Model,
    *,
    system: Annotated[str | None, typer.Option(help="System turn.", show_default=False)] = None,
    chat_template_kwargs: ChatTemplateKwargs = "",
    json_output: Json = False,
    params: SamplingParams,
    load: LoadOptions,
) -> None:
    """Talk to a model: answers stream, coloured by how their tokens came.

    In the conversation: /reset, /stats, /help, /exit. Ctrl-C stops an answer. With --json
    the user's turns are the lines of stdin; one that is refused ends them, with exit status 2.

    Example: [bold]recguide chat smollm2-135m --temperature 0.7[/bold]

    Example: [bold]recguide chat FOLDER --chat-template-kwargs '{"enable_thinking": true}'[/bold]
    """
    from recguide.cli.opening import open_llm

    template = template_arguments(chat_template_kwargs)
    conversation = Conversation(open_llm(model, load), replace(params, n=1), template, system)
    if json_output:
        try:
            for line in _lines(prompt=None):
                conversation.ask(line, quiet=True)
        finally:  # a turn that is refused does not take the answers before it along
            print_json(conversation.as_object())
        return
    from recguide.cli.origins import legend

    err().print(legend())
    note(HELP)
    for line in _lines(prompt="\n> "):
        if not _obey(conversation, line):
            _answer(conversation, line)


@dataclass
class Conversation:
    """The turns so far and what their rounds did.

    Attributes:
        template: arguments of the chat template.
        answers: one completion a turn that was answered.
    """

    llm: LLM
    params: SamplingParams
    template: dict[str, Any]
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    answers: list[Completion] = field(default_factory=list["Completion"])

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        self.answers = []

    def ask(self, text: str, *, quiet: bool = False) -> None:
        """Answers a turn; Ctrl-C keeps what was said until then.

        ParameterError for a turn that cannot be answered, too long a conversation say; it is not kept.
        """
        from recguide.cli.opening import tokenizer_of
        from recguide.cli.origins import Painter

        tokenizer = tokenizer_of(self.llm.model)
        turns = [*self.messages, {"role": "user", "content": text}]
        ids = tokenizer.chat(turns, **self.template)
        painter, said = Painter(tokenizer.decode, ids), ""
        stream = cast("Generator[Chunk, None, None]", self.llm.stream(ids, self.params))
        try:
            for chunk in stream:
                said += chunk.text
                if not quiet:
                    out().print(painter.paint(chunk), end="")
                if chunk.completion is not None:
                    self.answers.append(chunk.completion)
        except KeyboardInterrupt:
            note("\nstopped")
        finally:
            stream.close()
        if not quiet:
            out().print()
        self.messages = [*turns, {"role": "assistant", "content": said}]

    def show_stats(self) -> None:
        from recguide.bench.totals import add_up

        totals = add_up(self.answers)
        stats = totals.stats
        err().print(
            f"{stats.tokens} tokens in {stats.forwards} forwards + {stats.prefill_forwards} prefill: "
            f"TPF {totals.tpf:.2f} ({totals.tpf_with_prefill:.2f} with prefill), mean acceptance "
            f"{stats.mean_acceptance:.2f}, coverage {stats.coverage:.0%}, reuse {stats.reuse:.0%}"
        )

    def as_object(self) -> dict[str, object]:
        from recguide.bench.totals import add_up
        from recguide.cli.summary import choice_object, stats_object

        totals = add_up(self.answers)
        return {
            "model": self.llm.model.name,
            "messages": self.messages,
            "answers": [choice_object(answer) for answer in self.answers],
            "tpf": totals.tpf,
            "tpf_with_prefill": totals.tpf_with_prefill,
            **stats_object(totals.stats),
        }


def _lines(prompt: str | None) -> Iterator[str]:
    """Turns of the user until the end of input; empty ones are left out."""
    read = _reader(prompt)
    while (line := read()) is not None:
        if line.strip() == "/exit":
            return
        if line.strip():
            yield line.strip()


def _reader(prompt: str | None) -> Callable[[], str | None]:
    """How the next line is read; a terminal gets a prompt, line editing and history."""
    if prompt is None or not sys.stdin.isatty():
        return lambda: sys.stdin.readline() or None
    import readline  # its import alone gives input() editing and history

    def read() -> str | None:
        try:
            return input(prompt)
        except EOFError:
            return None

    del readline
    return read


def _answer(conversation: Conversation, line: str) -> None:
    """Answers a turn, or says why not and goes on without it."""
    from recguide.core import ParameterError

    try:
        conversation.ask(line)
    except ParameterError as error:
        if error.parameter not in ABOUT_A_TURN:  # a setting, which no turn could get past
            raise
        note(f"{error}\nThat turn is dropped, the conversation stays; /reset forgets it and makes room.")


def _obey(conversation: Conversation, line: str) -> bool:
    """Carries out a line that is a command."""
    if not line.startswith("/"):
        return False
    match line:
        case "/reset":
            conversation.reset()
            note("forgotten")
        case "/stats":
            conversation.show_stats()
        case _:
            note(HELP)
    return True
