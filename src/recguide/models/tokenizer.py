"""Text ↔ token ids with a checkpoint's own tokenizer, and its chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from recguide.core import CheckpointError, ParameterError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Message = Mapping[str, object]
"""One chat turn: role and content, as the model's template expects them."""

_OWN_ARGUMENTS = ("messages", "add_generation_prompt", "continue_final_message", "tokenize")
"""What `render` passes itself."""
THINK_MARKS = ("<think>", "</think>")
TOOL_MARKS = ("<tool_call>", "</tool_call>")
"""Some tokenizers hold these for special tokens, though they say what an answer's parts are."""


class Tokenizer:
    """A fast tokenizer read from tokenizer.json.

    Attributes:
        name: of the model.
        folder: where it was read from, for another process to read it too.
    """

    def __init__(self, backend: PreTrainedTokenizerFast, name: str, folder: Path | None = None) -> None:
        self._backend = backend
        self.name = name
        self.folder = folder

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Raises CheckpointError if the folder has no readable tokenizer.json. No code of it is executed."""
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(f"{file} is missing; only fast tokenizers are read")
        from transformers import PreTrainedTokenizerFast  # takes seconds to import

        try:
            backend = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # the tokenizers library raises bare Exceptions
            raise CheckpointError(f"{file} cannot be read ({error}); fetch it again") from error
        return cls(backend, folder.name, folder)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids; with the special tokens that the tokenizer puts around a text (a BOS, say), if any.

        Raises ParameterError for text with half a surrogate pair, which has no bytes.
        """
        _check_unicode(text, "prompt")
        # verbose: it would warn of a length that the engine refuses by name
        return self._backend.encode(text, add_special_tokens=add_special_tokens, verbose=False)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids. Bytes that are no whole character come out as U+FFFD.

        Marks of reasoning and of tool calls always come out: without them nobody could tell these from the
        answer.
        """
        if not skip_special_tokens or self._special_marks.isdisjoint(ids):
            return self._decode(ids, skip_special_tokens)
        pieces = groupby(ids, self._special_marks.__contains__)
        return "".join(self._decode(list(piece), not marks) for marks, piece in pieces)

    def _decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return cast(
            "str",
            self._backend.decode(
                list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            ),
        )

    @cached_property
    def joins(self) -> bool:
        """Whether the text of tokens is that of each, joined, where all are whole characters: so where tokens
        are bytes. Other decoders drop or add spaces between them."""
        decoder: Any = json.loads(self.json())["decoder"]
        return decoder is not None and decoder["type"] == "ByteLevel"

    @cached_property
    def _special_marks(self) -> frozenset[int]:
        """Ids of marks that decoding would leave out."""
        found = {self.token_id(mark) for mark in (*THINK_MARKS, *TOOL_MARKS)}
        return frozenset(token for token in found if token in self.special_ids)

    def chat(self, messages: Sequence[Message], /, **chat_template_kwargs: object) -> list[int]:
        """Token ids of a conversation, up to where the assistant speaks.

        The template's text says itself whether a BOS stands first, so none is added.

        Raises ParameterError if the model has no template, the template knows no such argument, or the
        messages are none or it refuses them.
        """
        text = self.render(messages, **chat_template_kwargs)
        _check_unicode(text, "messages")
        return self.encode(text, add_special_tokens=False)

    def render(self, messages: Sequence[Message], /, **chat_template_kwargs: object) -> str:
        """The text that `chat` encodes."""
        template = self.chat_template
        if template is None:
            raise ParameterError(
                "messages", f"{self.name} has no chat template (a base model?); send a prompt"
            )
        for name in chat_template_kwargs:
            if name in _OWN_ARGUMENTS or not re.search(rf"\b{re.escape(name)}\b", template):
                raise ParameterError(
                    "chat_template_kwargs", f"the chat template of {self.name} knows no {name!r}; drop it"
                )
        turns = _turns(messages)
        try:
            # Typed as Any: the arguments are the template's own.
            apply: Any = self._backend.apply_chat_template
            return apply(turns, tokenize=False, add_generation_prompt=True, **chat_template_kwargs)
        except Exception as error:  # a template may raise anything, by jinja2's raise_exception or by mistake
            raise ParameterError(
                "messages", f"the chat template of {self.name} refuses them: {type(error).__name__}: {error}"
            ) from error

    @property
    def chat_template(self) -> str | None:
        """The template's source; None for a model that has none."""
        template: object = self._backend.chat_template
        if isinstance(template, dict):
            return cast("dict[str, str]", template).get("default")
        return cast("str | None", template)

    @cached_property
    def size(self) -> int:
        """One more than the largest token id."""
        return max(self._vocabulary.values()) + 1

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        return self._backend.get_vocab()

    def json(self) -> str:
        """What a tokenizer.json of it holds, added tokens included, without padding and truncation.

        Marks of tool calls are ordinary tokens in it, for whoever matches text with it.
        """
        backend = copy(self._backend.backend_tokenizer)
        backend.no_padding()
        backend.no_truncation()
        content: dict[str, Any] = json.loads(backend.to_str())
        for token in content["added_tokens"]:
            token["special"] = token["special"] and token["content"] not in TOOL_MARKS
        return json.dumps(content)

    def token_id(self, token: str) -> int | None:
        """Id of a token by its exact name, None if there is none."""
        return self._vocabulary.get(token)

    def token(self, token_id: int) -> str:
        """Name of a token, in the tokenizer's own byte alphabet."""
        return cast("str", self._backend.convert_ids_to_tokens(token_id))

    @property
    def bos_token_id(self) -> int | None:
        return cast("int | None", self._backend.bos_token_id)

    @property
    def eos_token_id(self) -> int | None:
        return cast("int | None", self._backend.eos_token_id)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that decoding leaves out, but for marks of reasoning and tool calls."""
        return frozenset(self._backend.all_special_ids) | frozenset(
            i for i, token in self._backend.added_tokens_decoder.items() if token.special
        )

    @property
    def think_ids(self) -> tuple[int, int] | None:
        """Ids of <think> and </think>, if both are single tokens."""
        opening, closing = map(self.token_id, THINK_MARKS)
        return None if opening is None or closing is None else (opening, closing)


def _turns(messages: object) -> list[dict[str, object]]:
    """Messages that a template can be trusted with: many print nothing where a role or content is missing."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ParameterError("messages", f"must be a list of turns (got {messages!r:.60})")
    return [_turn(index, turn) for index, turn in enumerate(cast("Sequence[object]", messages))]


def _turn(index: int, turn: object) -> dict[str, object]:
    if not isinstance(turn, Mapping):
        raise ParameterError(
            "messages", f"turn {index} must be an object with role and content ({turn!r:.60})"
        )
    fields = dict(cast("Message", turn))
    if not isinstance(fields.get("role"), str):
        raise ParameterError("messages", f"turn {index} needs a role, such as 'user'")
    if "content" not in fields and "tool_calls" not in fields:
        raise ParameterError("messages", f"turn {index} needs a content")
    return fields


def _check_unicode(text: str, parameter: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ParameterError(
            parameter,
            f"character {error.start} is U+{ord(text[error.start]):04X}, half a surrogate pair; text must be "
            "valid Unicode",
        ) from error
