"""A fake diffusion-AR model with scripted drafts and verdicts, and a byte tokenizer.

The verdict at a position continues the script only while the tokens fed so far agree with it, so a wrong
token in a row shows. Drafts say the script too, except where `slips` make them fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from tests.toy import byte_tokenizer_json
from torch import Tensor

from recguide.attention.rotation import Rotation
from recguide.core import Attend, Completion, KVShape, PackedBatch, SamplingParams, Vocabulary
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.request import Request
from recguide.speculation.grammar import Grammars

EOS, MASK, OPEN, CLOSE = 256, 257, 258, 259
UNSEEN = -1e9
"""A key that no query sees."""
VOCABULARY = Vocabulary(size=260, eos=(EOS,), mask=MASK, think=(OPEN, CLOSE))


def encode(text: str) -> list[int]:
    return list(text.encode())


def decode(ids: Sequence[int]) -> str:
    return bytes(token for token in ids if token < 256).decode(errors="replace")


@dataclass(frozen=True)
class Slip:
    """A wrongly drafted position: is its margin small, and is its second or its third token right?"""

    risky: bool = True
    second_right: bool = True
    third_right: bool = False


@dataclass(frozen=True)
class Script:
    """A prompt, the text that the verifier wants after it, and the absolute positions where drafts slip."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    slips: Mapping[int, Slip] = field(default_factory=dict)

    def token(self, position: int) -> int:
        """The right token at an absolute position; past the script's end a fixed filler."""
        whole = (*self.prompt, *self.answer)
        return whole[position] if position < len(whole) else 65 + position % 26


def wrong(token: int) -> int:
    return (token + 13) % 256


class FakeBackbone:
    """Implements core.Backbone; scripts are told apart by the first token of their prompts.

    Like a model's, its memory is the KV cache: the values of a prompt's first tokens name the script, and
    attention tells every later token.
    """

    vocabulary = VOCABULARY
    max_positions = 4096
    diffusion_adapter = False
    heads, adapted = 1, False
    kv_shape = KVShape(1, 1, 8, torch.float32, torch.device("cpu"))

    def __init__(self, *scripts: Script) -> None:
        self._scripts = {script.prompt[0]: script for script in scripts}
        self._told: list[Script] = []
        self.forwards = 0
        self.query_tokens = 0

    def forward(self, batch: PackedBatch, attend: Attend) -> Tensor:
        self.forwards += 1
        self.query_tokens += len(batch.tokens)
        self._told = self.scripts_of(batch, attend)
        wanted = [self._logits(batch, int(index)) for index in batch.wanted]
        return torch.stack(wanted) if wanted else torch.empty(0, VOCABULARY.size)

    def scripts_of(self, batch: PackedBatch, attend: Attend) -> list[Script]:
        """Each row's script."""
        qkv = torch.zeros(len(batch.tokens), 3, self.kv_shape.head_dim)
        qkv[:, 0, 0], qkv[:, 1, 0] = 1, UNSEEN
        for start, row in zip(batch.row_starts, batch.rows, strict=True):
            if row.causal and row.prefix == 0:
                qkv[start : start + len(row.tokens), 1:, 0] = torch.tensor((0.0, row.tokens[0]))
        still = torch.ones(len(qkv), 1, qkv.shape[2])
        turn = Rotation(still, torch.zeros_like(still), None, qkv.shape[2] // 2)
        names = attend(0, qkv, turn)[list(batch.row_starts), 0].round().int()
        return [self._scripts[name] for name in names.tolist()]

    def _logits(self, batch: PackedBatch, index: int) -> Tensor:
        row = batch.rows[int(batch.row[index])]
        script = self._told[int(batch.row[index])]
        slot = int(batch.slot[index])
        logits = torch.zeros(VOCABULARY.size)
        if row.causal:
            agrees = all(
                token == script.token(row.start + i) for i, token in enumerate(row.tokens[: slot + 1])
            )
            token = script.token(row.start + slot + 1)
            logits[token if agrees else wrong(token)] = 10.0
            return logits
        position = row.start + slot
        right = script.token(position)
        slip = script.slips.get(position)
        # A branch that starts at a slip was told the right token there, so it is right from there on.
        if slip is None:
            logits[right] = 10.0
            return logits
        logits[wrong(right)] = 10.0
        second, third = (9.9, 9.8) if slip.risky else (1.0, 0.9)
        if slip.third_right:
            logits[right] = third
        logits[right if slip.second_right else (right + 1) % 256] = second
        return logits


def engine(*scripts: Script, **config: object) -> Engine:
    specials = ("<eos>", "<mask>", "<think>", "</think>")
    grammars = Grammars(lambda: byte_tokenizer_json(specials), VOCABULARY.size, VOCABULARY)
    return Engine(FakeBackbone(*scripts), decode, EngineConfig(**config), grammars=grammars)  # pyright: ignore


def run(engine: Engine) -> None:
    """Runs everything that is queued to its end, checking the cache invariant on the way."""
    while engine.busy:
        for request, _ in engine.step():
            assert_invariant(engine, request)


def complete(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[Completion]:
    """All choices of all prompts, decoded together; afterwards no page may be held."""
    groups = [engine.add(prompt, params) for prompt in prompts]
    run(engine)
    assert engine.runner.pool.used_pages == 0
    return [request.completion() for group in groups for request in group]


def assert_invariant(engine: Engine, request: Request) -> None:
    """What is cached after a round; the next forward may already have preempted the request."""
    whole = len(request.prompt) + max(0, len(request.emitted) - 1)
    if request in engine._scheduler.waiting:
        assert request.cached == 0
    elif request.stats.preemptions:
        assert 0 <= request.cached <= whole
    else:
        assert request.cached == whole
