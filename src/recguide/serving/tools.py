"""Tools: how they reach a model through its chat template, and how calls are read out of its text."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

from recguide.core import ParameterError, Structure
from recguide.models.tokenizer import TOOL_MARKS
from recguide.serving.reasoning import overlap

Tool = Mapping[str, Any]
"""{"type": "function", "function": {"name", "description", "parameters", ...}}, as requests have it."""


class Call(NamedTuple):
    """One call; `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str


class Heard(NamedTuple):
    """What a piece of text adds: words for the reader, and calls, each whole."""

    content: str
    calls: tuple[Call, ...] = ()


class ToolParser(Protocol):
    """Takes the calls out of a growing text; the same however it is cut into pieces."""

    def push(self, text: str) -> Heard:
        """What the text adds, without a tail that may become a call."""
        ...

    def finish(self) -> Heard:
        """What is still held back; no text will follow."""
        ...


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """What a request's tools mean for the engine.

    Attributes:
        tools: for the chat template's argument `tools`.
        structure: the form of an answer that has to be a call; None where the model decides.
        stop: strings that end the text besides the request's own.
        parser: a fresh parser, for one choice.
    """

    tools: Sequence[Tool]
    structure: Structure | None
    stop: tuple[str, ...]
    parser: Callable[[], ToolParser]


def plan_tools(
    tools: Sequence[Tool],
    choice: str | Mapping[str, Any] | None,
    template: str | None,
    *,
    parallel: bool = True,
) -> ToolPlan | None:
    """How tools are used; None if they are not.

    Args:
        choice: "none", "auto", "required", {"type": "function", "function": {"name"}}; None is "auto".
        template: source of the model's chat template.
        parallel: whether an answer may hold several calls.

    Raises:
        ParameterError: for "tools" if the template takes none or a tool is not one, for "tool_choice" if
            there is nothing to choose.
    """
    if not tools or choice == "none":
        _check_choice(tools, choice)
        return None
    named = {_name(tool): tool for tool in tools}
    wanted = _wanted(named, choice)
    form = _form_of(template)
    return ToolPlan(
        tools=tools,
        structure=None if wanted is None else Structure("grammar", form.grammar(wanted, parallel=parallel)),
        stop=form.stop if wanted is None and not parallel else (),
        parser=lambda: form.parser(frozenset(named)),
    )


def template_turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    """A turn as templates want it: the arguments of its calls are values, where requests have them as text.

    Raises ParameterError for arguments that are no JSON object.
    """
    calls = turn.get("tool_calls")
    return dict(turn) if not calls else {**turn, "tool_calls": [_template_call(call) for call in calls]}


def _template_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ParameterError("messages", "a tool call needs a function with a name")
    arguments = function.get("arguments", "{}")
    value = _object(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(value, Mapping):
        raise ParameterError("messages", f"arguments of {function['name']!r} must be a JSON object as text")
    return {**call, "function": {**function, "arguments": value}}


# --- what requests ask for ----------------------------------------------------------------------------------


def _name(tool: Tool) -> str:
    function: object = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping):
        raise ParameterError("tools", 'each must be {"type": "function", "function": {...}}')
    name: object = cast("Mapping[str, object]", function).get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        raise ParameterError("tools", f"{name!r} is no name: 1 to 64 letters, digits, '_', '-' or '.'")
    return name


def _check_choice(tools: Sequence[Tool], choice: object) -> None:
    if not tools and choice not in (None, "none", "auto"):
        raise ParameterError("tool_choice", "there are no tools to choose from; send tools")


def _wanted(named: Mapping[str, Tool], choice: str | Mapping[str, Any] | None) -> list[Tool] | None:
    """The tools of which one has to be called; None if none has to."""
    if choice is None or choice == "auto":
        return None
    if choice == "required":
        return list(named.values())
    function: object = choice.get("function") if isinstance(choice, Mapping) else None
    name = cast("Mapping[str, object]", function).get("name") if isinstance(function, Mapping) else None
    if name not in named:
        raise ParameterError(
            "tool_choice", f"must be none, auto, required or one of the tools (got {choice!r:.80})"
        )
    return [named[cast("str", name)]]


def _schema(tool: Tool, arguments: str) -> dict[str, Any]:
    """The schema of a call of one tool; `arguments` is what the model's format calls them."""
    function = tool["function"]
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            arguments: function.get("parameters") or {"type": "object"},
        },
        "required": ["name", arguments],
        "additionalProperties": False,
    }


# --- how models write calls ---------------------------------------------------------------------------------


class _Form(Protocol):
    """One way to write calls."""

    @property
    def stop(self) -> tuple[str, ...]:
        """What ends a text after its first call."""
        ...

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        """A grammar of texts that are calls of these tools and nothing else."""
        ...

    def parser(self, names: frozenset[str]) -> ToolParser: ...


class _Tagged:
    """<tool_call> {"name": …, "arguments": …} </tool_call>, as Hermes and Qwen write them."""

    OPENING, CLOSING = TOOL_MARKS
    stop = (CLOSING,)

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        one = [_schema(tool, "arguments") for tool in tools]
        lines = (
            'start: call ("\\n" call)*' if parallel else "start: call",
            f'call: "{self.OPENING}\\n" body "\\n{self.CLOSING}"',
            f"body: %json {json.dumps({'anyOf': one} if len(one) > 1 else one[0])}",
        )
        return "\n".join(lines)

    def parser(self, names: frozenset[str]) -> ToolParser:
        return _TaggedParser(names, self.OPENING, self.CLOSING)


class _Bare:
    """{"name": …, "parameters": …} as the whole text, as Llama 3 writes a call."""

    stop = ()

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        del parallel  # a text has room for one
        one = [_schema(tool, "parameters") for tool in tools]
        return f"start: %json {json.dumps({'anyOf': one} if len(one) > 1 else one[0])}"

    def parser(self, names: frozenset[str]) -> ToolParser:
        return _BareParser(names)


def _form_of(template: str | None) -> _Form:
    """How a model writes calls, told by what its template shows it."""
    if template is None or not re.search(r"\btools\b", template):
        raise ParameterError("tools", "this model's chat template takes none; leave them out")
    if _Tagged.OPENING in template and "<function=" not in template:
        return _Tagged()
    if '"parameters"' in template:
        return _Bare()
    raise ParameterError(
        "tools", "this model's chat template writes calls in a format that is not known; leave them out"
    )


class _TaggedParser:
    """White space at either end of what is said beside calls is dropped; what is no call stays text."""

    def __init__(self, names: frozenset[str], opening: str, closing: str) -> None:
        self._names = names
        self._opening, self._closing = opening, closing
        self._held = ""
        self._space = ""
        self._spoken = self._called = False

    def push(self, text: str) -> Heard:
        self._held += text
        content, calls = "", list[Call]()
        while True:
            before, opened, rest = self._held.partition(self._opening)
            if not opened:
                end = len(self._held) - overlap(self._held, self._opening)
                break
            body, closed, after = rest.partition(self._closing)
            if not closed:
                end = len(before)
                break
            content += self._said(before)
            call = self._call(body)
            if call is None:
                content += self._said(opened + body + closed)
            else:
                calls.append(call)
            self._held = after
        content += self._said(self._held[:end])
        self._held = self._held[end:]
        return Heard(content, tuple(calls))

    def finish(self) -> Heard:
        held, self._held = self._held, ""
        opened = held.startswith(self._opening)
        call = self._call(held.removeprefix(self._opening)) if opened else None
        content = "" if call is not None else self._said(held)
        return Heard(content if self._called else content + self._space, () if call is None else (call,))

    def _call(self, body: str) -> Call | None:
        call = _call(body, "arguments", self._names)
        self._called = self._called or call is not None
        return call

    def _said(self, text: str) -> str:
        """The words of a text, with the white space before them unless nothing but calls stands there."""
        text = self._space + text
        words = text.rstrip()
        self._space = text[len(words) :]
        if words and self._called and not self._spoken:
            words = words.lstrip()
        self._spoken = self._spoken or bool(words)
        return words


class _BareParser:
    """A text is a call or it is not: one that begins with a brace is held back until its end tells."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._held = ""
        self._is_text = False

    def push(self, text: str) -> Heard:
        self._held += text
        begun = self._held.lstrip()
        if not self._is_text and (not begun or begun.startswith("{")):
            return Heard("")
        self._is_text = True
        said, self._held = self._held, ""
        return Heard(said)

    def finish(self) -> Heard:
        held, self._held = self._held, ""
        call = None if self._is_text else _call(held, "parameters", self._names)
        return Heard(held) if call is None else Heard("", (call,))


def _call(text: str, arguments: str, names: frozenset[str]) -> Call | None:
    """The call that a text is; None if it is none of one of these tools."""
    value = _object(text)
    if value is None or value.get("name") not in names:
        return None
    given = value.get(arguments, {})
    if not isinstance(given, dict):
        return None
    return Call(f"call_{secrets.token_hex(12)}", value["name"], json.dumps(given, ensure_ascii=False))


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
