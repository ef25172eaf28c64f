"""A known text run through rows again: one token at a time, or as a method would lay it out."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from recguide.core import SamplingParams
from recguide.engine.runner import Runner
from recguide.kv.tables import BlockTable
from recguide.speculation import rows
from recguide.speculation.methods import Method
from recguide.speculation.picks import PickRow, pick
from recguide.speculation.rows import Branch, Draft, Layout

PREFILL_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the tokens emitted after it; `params` has its sampling seed resolved."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    params: SamplingParams


def single(runner: Runner, text: Text) -> Tensor:
    """[tokens, vocab] logits that predict each token, by causal rows of one token (the first by prefill)."""
    with _cached(runner, text) as replay:
        logits = [replay.prefill()]
        for index in range(len(text.tokens) - 1):
            logits.append(replay.run(replay.step(index)))
        return torch.cat(logits)


def laid_out(runner: Runner, text: Text, method: Method, block: int) -> Tensor:
    """The same logits by the rows of `method`: drafts, blocks, and the branches that it runs beside them.

    Every second block keeps what was drafted in its second half, and half of it is committed, so that later
    rows also meet the KV of rejected slots.
    """
    with _cached(runner, text) as replay:
        logits = [replay.prefill()]
        index, halved = 0, False
        while index < len(text.tokens) - 1:
            left = len(text.tokens) - 1 - index
            slots = min(block, left)
            keep = -(-slots // 2) if halved else slots
            draft = replay.draft(index, slots) if method.drafts and slots >= 2 else None
            if draft is None:
                keep, layout = 1, replay.step(index)
            else:
                tokens = (*text.tokens[index : index + keep], *draft.tokens[keep:])
                sites = method.branches(draft.margins, draft.candidates[0])
                layout = replay.verify(index, tokens, rows.fit_branches(sites, block, left))
            logits.append(replay.run(layout)[:keep])
            index, halved = index + keep, not halved
        return torch.cat(logits)


@contextmanager
def _cached(runner: Runner, text: Text) -> Generator[_Replay, None, None]:
    """A request of its own in the engine's cache, given back afterwards."""
    table = BlockTable(runner.pool)
    try:
        yield _Replay(runner, text, table)
    finally:
        table.release()


@dataclass(frozen=True, slots=True)
class _Replay:
    """Rows of one text; `index` is always that of the block's slot 0 among the emitted tokens."""

    runner: Runner
    text: Text
    table: BlockTable

    def prefill(self) -> Tensor:
        """[1, vocab] logits that predict the first token."""
        prompt = self.text.prompt
        logits = torch.empty(0)
        for start in range(0, len(prompt), PREFILL_CHUNK):
            chunk = prompt[start : start + PREFILL_CHUNK]
            last = start + len(chunk) == len(prompt)
            logits = self.run(rows.prefill(0, start, chunk, picks=last))
        return logits

    def step(self, index: int) -> Layout:
        return rows.step(0, len(self.text.prompt) + index, self.text.tokens[index])

    def verify(self, index: int, block: Sequence[int], branches: Sequence[Branch]) -> Layout:
        prefix = len(self.text.prompt) + index
        mask = self.runner.backbone.vocabulary.mask
        assert mask is not None, "a draft was made, so the model has a mask token"
        return rows.verify(0, prefix, block, branches, mask=mask, adapter=True)

    def draft(self, index: int, slots: int) -> Draft | None:
        """What the model drafts after the known tokens, with its statistics; None if it cannot draft."""
        vocabulary = self.runner.backbone.vocabulary
        mask = vocabulary.mask
        if mask is None:
            return None
        blank = rows.blank_draft(self.text.tokens[index], slots, mask)
        prefix = len(self.text.prompt) + index
        logits = self.run(rows.draft(0, prefix, blank, adapter=True))
        row = PickRow(
            params=self.text.params,
            prompt=self.text.prompt,
            history=self.text.tokens[: index + 1],
            extra=(),
            position=prefix + 1,
            count=slots - 1,
            draft=True,
        )
        picks = pick(logits, [row], vocabulary)
        return Draft(
            (self.text.tokens[index], *picks.tokens.tolist()),
            (1.0, *(picks.p1 - picks.p2).tolist()),
            tuple((0, *row) for row in picks.candidates.tolist()),
        )

    def run(self, layout: Layout) -> Tensor:
        """Logits of the layout's wanted slots."""
        self.table.extend(max((row.prefix + len(row.tokens) for row in layout.rows if row.causal), default=0))
        return self.runner.forward(layout.rows, [self.table.pages])
