"""Which tokens a request's structure allows at each slot.

What is allowed is a pure function of the tokens before a slot, so a slot inside a verified block and the
plain decoding of its token see the same. A matcher only remembers where it stood last, to get there quickly.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.core import ParameterError, RecGuideError, Structure, Vocabulary, opens_thinking
from recguide.speculation.field import on_device
from recguide.speculation.grammar_tokens import read_tokens

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_LOG = logging.getLogger(__name__)

Bits = NDArray[np.int32]
"""[slots, words]: bit t of a slot's words says whether token t is allowed."""

EVERYTHING = -1
"""A word that allows all of its tokens."""

ANY_OBJECT = '{"type": "object"}'
"""The schema of a "json_object"."""

REMEMBERED = 64
"""Compiled structures that are kept for the next request that asks for the same."""


class GrammarError(RecGuideError):
    """A grammar that gave up in the middle of an output, since following it took too much work."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a grammar allows at consecutive slots, packed; `size` is the vocabulary's."""

    bits: Bits
    size: int

    def on(self, device: torch.device) -> Tensor:
        """[slots, size] bool on a device; only the bits travel there."""
        octets = torch.from_numpy(self.bits.view(np.uint8)).to(device, non_blocking=True)
        places = on_device([1 << place for place in range(8)], torch.uint8, device)
        return ((octets[:, :, None] & places) != 0).flatten(1)[:, : self.size]

    def __contains__(self, slot_and_token: tuple[int, int]) -> bool:
        slot, token = slot_and_token
        return bool(self.bits[slot, token // 32] >> (token % 32) & 1)

    def one(self, slot: int) -> Allowed:
        """That slot alone."""
        return Allowed(self.bits[slot : slot + 1], self.size)

    def followed_by_anything(self, slots: int) -> Allowed:
        """The same, then slots where everything is allowed, for `slots` slots in all."""
        beyond = np.full((slots - len(self.bits), self.bits.shape[1]), EVERYTHING, np.int32)
        return Allowed(np.concatenate([self.bits, beyond]), self.size)


class Matcher:
    """Follows one output through its grammar.

    Args:
        machine: the compiled grammar, nothing consumed yet.
        vocabulary: the model's.
        thinking: whether the prompt opened a <think>: the grammar then begins after the first </think>, and
            nothing may end the output before that.
    """

    def __init__(self, machine: LLMatcher, vocabulary: Vocabulary, *, thinking: bool) -> None:
        self._machine = machine
        self._size = vocabulary.size
        self._words = -(-vocabulary.size // 32)
        self._closing = vocabulary.think[1] if thinking and vocabulary.think is not None else None
        self._ends = vocabulary.eos
        self._consumed: list[int] = []

    def allowed(self, history: Sequence[int], following: Sequence[int] = ()) -> Allowed:
        """What may come after `history` + `following[:i]`, for every i up to and with all of them.

        After a token that is not allowed, or past the end, everything is: nothing there is ever emitted.
        Raises GrammarError if the grammar gives up.
        """
        bits = np.full((len(following) + 1, self._words), EVERYTHING, np.int32)
        begin, spoken = self._begin(history, following)
        for token in self._ends:
            bits.view(np.uint32)[:begin, token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
        if begin <= len(following):
            self._move_to(spoken)
            self._walk(following[begin:], bits[begin:])
        return Allowed(bits, self._size)

    def demanded(self, history: Sequence[int]) -> list[int]:
        """The tokens that alone can follow `history`, as the tokenizer would cut that text; often none.

        Others may spell the same text, so this is for drafts. Raises GrammarError if the grammar gives up.
        """
        begin, spoken = self._begin(history, ())
        if begin > 0:
            return []
        self._move_to(spoken)
        tokens = self._machine.compute_ff_tokens()
        self._check()
        return tokens

    def _begin(self, history: Sequence[int], following: Sequence[int]) -> tuple[int, Sequence[int]]:
        """The first slot that is no longer thinking, and what was said before it after the </think>."""
        if self._closing is None:
            return 0, history
        if self._closing in history:
            return 0, history[history.index(self._closing) + 1 :]
        if self._closing in following:
            return following.index(self._closing) + 1, ()
        return len(following) + 1, ()

    def _walk(self, tokens: Sequence[int], bits: Bits) -> None:
        """Writes what may come here, and after each of `tokens` until one is not allowed or the last."""
        for slot in range(len(tokens) + 1):
            # Its words may go beyond the vocabulary.
            bits[slot] = np.frombuffer(self._machine.compute_bitmask(), np.int32)[: self._words]
            self._check()
            if slot == len(tokens) or tokens[slot] in self._ends:
                return
            if (slot, tokens[slot]) not in Allowed(bits, self._size):
                return
            self._consume(tokens[slot : slot + 1])

    def _consume(self, tokens: Sequence[int]) -> None:
        self._machine.consume_tokens(list(tokens))
        self._check()
        self._consumed += tokens

    def _move_to(self, tokens: Sequence[int]) -> None:
        """Consumes `tokens`, or what of them is new; goes back first where they differ from before."""
        target, consumed = list(tokens), self._consumed
        if target[: len(consumed)] != consumed:
            common = next(
                (i for i, pair in enumerate(zip(target, consumed, strict=False)) if pair[0] != pair[1]),
                min(len(target), len(consumed)),
            )
            self._machine.rollback(len(consumed) - common)
            del consumed[common:]
        if len(target) > len(consumed):
            self._consume(target[len(consumed) :])

    def _check(self) -> None:
        if self._machine.is_error():
            raise GrammarError(f"structure: {_complaint(self._machine)}; simplify it")


class Grammars:
    """Compiles structures for a model's tokens.

    Args:
        tokenizer: gives what the tokenizer.json of the model's tokenizer holds.
        size: one more than the tokenizer's largest id; what lies beyond it is never allowed.
        vocabulary: the model's.
    """

    def __init__(self, tokenizer: Callable[[], str], size: int, vocabulary: Vocabulary) -> None:
        self._tokenizer = tokenizer
        self._size = max(size, vocabulary.size)
        self._vocabulary = vocabulary
        self._tokens: LLTokenizer | None = None
        self._compiled: OrderedDict[Structure, LLMatcher] = OrderedDict()

    def warm(self) -> None:
        """Prepares, so that the first structure keeps nobody waiting; says so if there can be none."""
        try:
            self.prepare()
        except ParameterError as error:
            _LOG.warning("requests with a structure will be refused: %s", error)

    def prepare(self) -> LLTokenizer:
        """The tokens, which take a second to read, once.

        Raises ParameterError if llguidance is missing or cannot read them, or nothing can end an output.
        """
        if self._tokens is not None:
            return self._tokens
        if find_spec("llguidance") is None:
            raise ParameterError(
                "structure", "needs llguidance; install it with pip install 'recguide[serve]'"
            )
        if not self._vocabulary.eos:
            raise ParameterError(
                "structure", "this model has no end-of-sequence token to end one; leave it out"
            )
        try:
            self._tokens = read_tokens(self._tokenizer(), self._size, list(self._vocabulary.eos))
        except ValueError as error:
            raise ParameterError(
                "structure", f"llguidance cannot read this model's tokenizer ({error}); leave it out"
            ) from error
        return self._tokens

    def matcher(self, structure: Structure, prompt: Sequence[int]) -> Matcher:
        """A matcher for one output; ParameterError if the structure cannot be compiled."""
        return Matcher(
            self._machine(structure).deep_copy(),
            self._vocabulary,
            thinking=opens_thinking(prompt, self._vocabulary.think),
        )

    def _machine(self, structure: Structure) -> LLMatcher:
        """The structure, compiled once and remembered for a while."""
        known = self._compiled.get(structure)
        if known is None:
            known = self._compile(structure)
            self._compiled[structure] = known
            if len(self._compiled) > REMEMBERED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(structure)
        return known

    def _compile(self, structure: Structure) -> LLMatcher:
        tokens = self.prepare()
        from llguidance import LLMatcher, LLParserLimits

        if structure.kind == "regex":
            grammar = LLMatcher.grammar_from_regex(structure.text)
        elif structure.kind == "grammar":
            grammar = LLMatcher.grammar_from_lark(structure.text)
        else:
            grammar = LLMatcher.grammar_from_json_schema(structure.text or ANY_OBJECT)
        machine = LLMatcher(tokens, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if machine.is_error():
            raise ParameterError(
                "structure", f"this {structure.kind} cannot be followed: {_complaint(machine)}"
            )
        return machine


def _complaint(machine: LLMatcher) -> str:
    """What is wrong, without the parser's state."""
    return machine.get_error().strip().partition("\n<non-verbose")[0]
