"""A chat request's conversation as the model reads it: turns and tools through the chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recguide.core import ParameterError
from recguide.serving.errors import api_error
from recguide.serving.requests import Turn
from recguide.serving.tokens import Coder
from recguide.serving.tools import ToolPlan, template_turn


async def prompt_ids(
    coder: Coder,
    messages: Sequence[Turn],
    template_arguments: Mapping[str, Any],
    tools: ToolPlan | None = None,
) -> list[int]:
    """Token ids of a conversation; ApiError if the template refuses it."""
    arguments = dict(template_arguments) if tools is None else {**template_arguments, "tools": tools.tools}
    try:
        return await coder.chat([_turn(turn) for turn in messages], arguments)
    except ParameterError as error:
        raise api_error(error, {}) from error


def _turn(turn: Turn) -> dict[str, Any]:
    """A turn as templates know it: one text, and no role that only OpenAI has."""
    fields = turn.model_dump(exclude_none=True)
    if isinstance(turn.content, list):
        fields["content"] = "\n".join(part.text for part in turn.content)
    elif turn.tool_calls:
        fields.setdefault("content", "")  # many templates print what is missing
    if turn.role == "developer":
        fields["role"] = "system"
    return template_turn(fields)
