"""Finished texts in the engine's cache, and what drafts at any of their places come to.

The text does not depend on the method, so nothing is decoded again: one causal pass over a text caches its
keys and values and says how sure the verifier was, and draft rows behind any of its prefixes say what a draft
that starts there would have held. A draft is right as far as it is the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from torch import Tensor

from recguide.bench.calibration.ranks import Wrong, candidate_ranks
from recguide.bench.replay import PREFILL_CHUNK, Text
from recguide.core import ParameterError, Row
from recguide.engine.runner import Runner
from recguide.guidance.explore import Trial, decisions
from recguide.guidance.fitting import CANDIDATES
from recguide.kv.tables import BlockTable
from recguide.speculation.picks import PickRow, Picks, pick
from recguide.speculation.rows import blank_draft, draft

HEAD_BLOCK = 16
"""Slots of the continuation that an AR step is tried with."""


@dataclass(frozen=True, slots=True)
class Known:
    """A text whose keys and values are cached.

    Attributes:
        entropies: the verifier's, in nats, at the decision after each token.
    """

    text: Text
    table: BlockTable
    entropies: tuple[float, ...]

    def prefix(self, position: int) -> int:
        """Cached tokens before the emitted token of that number."""
        return len(self.text.prompt) + position

    def release(self) -> None:
        self.table.release()


@dataclass(frozen=True, slots=True)
class Place:
    """Where blocks are tried: slot 0 is the emitted token of number `position`."""

    known: Known
    position: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Tried:
    """A row at a place: a draft of `block` slots, or a continuation behind a block that passed."""

    known: Known
    position: int
    row: Row

    def picked(self) -> PickRow:
        wanted = self.row.wanted
        return PickRow(
            params=self.known.text.params,
            prompt=self.known.text.prompt,
            history=self.known.text.tokens[: self.position + 1],
            extra=(),
            position=self.row.prefix + wanted[0],
            count=len(wanted),
            draft=True,
        )


class Reader:
    """Reads texts with an idle engine's runner.

    Args:
        runner: its cache must hold the texts that are known at a time.
        most: query tokens of a forward, about; a place is never torn apart.
    """

    def __init__(self, runner: Runner, most: int) -> None:
        self._runner, self._most = runner, most
        self._vocabulary = runner.backbone.vocabulary
        mask = self._vocabulary.mask
        if mask is None:
            raise ParameterError("model", "does not draft, so there is nothing to calibrate; load an adapter")
        self._mask = mask

    # --- the causal pass ------------------------------------------------------------------------------------

    def read(self, text: Text) -> Known:
        """Caches a text of at least one token; release it when it is done with."""
        table = BlockTable(self._runner.pool)
        try:
            table.extend(len(text.prompt) + len(text.tokens) - 1)
            return Known(text, table, self._entropies(text, table))
        except BaseException:
            table.release()
            raise

    def _entropies(self, text: Text, table: BlockTable) -> tuple[float, ...]:
        whole = (*text.prompt, *text.tokens[:-1])
        first = len(text.prompt)
        found: list[float] = []
        for start in range(0, len(whole), PREFILL_CHUNK):
            chunk = whole[start : start + PREFILL_CHUNK]
            wanted = range(min(max(0, first - start), len(chunk)), len(chunk))
            logits = self._runner.forward([Row(0, start, chunk, causal=True, wanted=wanted)], [table.pages])
            if wanted:
                found += self._picks(
                    logits, [_decided(text, start + wanted[0], len(wanted))]
                ).entropy.tolist()
        return tuple(found)

    # --- drafts ---------------------------------------------------------------------------------------------

    def trials(self, places: Sequence[Place]) -> list[list[Trial]]:
        """What each of a place's blocks comes to; all places together, in as few forwards as fit."""
        found = [trial for some in self._portions(places) for trial in self._drafts(some)]
        return self._with_heads(places, found)

    def _portions(self, places: Sequence[Place]) -> Iterator[Sequence[Place]]:
        sizes = [sum(place.blocks) for place in places]
        parts = [total // max(1, self._most) for total in accumulate(sizes)]
        starts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(parts)) if a != b), len(places)]
        yield from (places[start:end] for start, end in pairwise(starts) if start < end)

    def _drafts(self, places: Sequence[Place]) -> list[list[Trial]]:
        tried = [
            _Tried(place.known, place.position, self._draft_row(request, place, block))
            for request, place in enumerate(places)
            for block in place.blocks
            if block > 1
        ]
        made = iter(self._tried(tried, [place.known for place in places]) if tried else ())
        return [
            [next(made) if block > 1 else _step(place.known, place.position) for block in place.blocks]
            for place in places
        ]

    def _tried(self, tried: Sequence[_Tried], known: Sequence[Known]) -> Iterator[Trial]:
        logits, picks = self._run(tried, known)
        tokens: list[int] = picks.tokens.tolist()
        margins: list[float] = (picks.p1 - picks.p2).tolist()
        starts = [0, *accumulate(len(one.row.wanted) for one in tried)]
        spans = [slice(a, b) for a, b in pairwise(starts)]
        reached = [_acceptance(one, tokens[span]) for one, span in zip(tried, spans, strict=True)]
        ranks = self._ranks(logits, tokens, tried, spans, reached)
        for one, span, acceptance, rank in zip(tried, spans, reached, ranks, strict=True):
            yield _trial(one.known, one.position, acceptance, tuple(margins[span]), rank)

    def _draft_row(self, request: int, place: Place, block: int) -> Row:
        prefix = place.known.prefix(place.position)
        blank = blank_draft(place.known.text.tokens[place.position], block, self._mask)
        return draft(request, prefix, blank, adapter=True).rows[0]

    def _ranks(
        self,
        logits: Tensor,
        tokens: Sequence[int],
        tried: Sequence[_Tried],
        spans: Sequence[slice],
        reached: Sequence[int],
    ) -> Sequence[int]:
        """[tried] of the right token at the first mismatch; 0 without one."""
        failed = [i for i, one in enumerate(tried) if reached[i] < len(one.row.tokens)]
        wrong = [
            Wrong(
                slot=spans[i].start + reached[i] - 1,
                position=tried[i].row.prefix + reached[i],
                drafted=tokens[spans[i].start + reached[i] - 1],
                right=tried[i].known.text.tokens[tried[i].position + reached[i]],
                params=tried[i].known.text.params,
            )
            for i in failed
        ]
        ranks = dict(zip(failed, candidate_ranks(logits, wrong, self._vocabulary, CANDIDATES), strict=True))
        return [ranks.get(i, 0) for i in range(len(tried))]

    # --- continuations --------------------------------------------------------------------------------------

    def _with_heads(self, places: Sequence[Place], trials: Sequence[Sequence[Trial]]) -> list[list[Trial]]:
        """The same trials, with what a continuation would have predicted where the block passed whole."""
        asked = [
            (number, at, _Tried(place.known, place.position, row))
            for number, (place, mine) in enumerate(zip(places, trials, strict=True))
            for at, trial in enumerate(mine)
            if trial.acceptance == trial.block
            and (row := self._head_row(place.known, place.position + trial.block, trial.block)) is not None
        ]
        found = [list(mine) for mine in trials]
        step = max(1, self._most // HEAD_BLOCK)
        for start in range(0, len(asked), step):
            some = [
                (number, at, replace(one, row=replace(one.row, request=request)))
                for request, (number, at, one) in enumerate(asked[start : start + step])
            ]
            _, picks = self._run([one for *_, one in some], [one.known for *_, one in some])
            for (number, at, one), token in zip(some, picks.tokens.tolist(), strict=True):
                trial = found[number][at]
                right = one.known.text.tokens[one.position + trial.block]
                found[number][at] = replace(trial, head=int(token == right))
        return found

    def _head_row(self, known: Known, position: int, block: int) -> Row | None:
        """A continuation whose slot 0 is that emitted token; None behind the text's end or the model's."""
        prefix = known.prefix(position)
        slots = min(HEAD_BLOCK if block == 1 else block, self._runner.backbone.max_positions - prefix)
        if position >= len(known.text.tokens) or slots < 1:
            return None
        tokens, masked = (self._mask,) * slots, tuple(range(slots))
        return Row(0, prefix, tokens, causal=False, adapter=True, masked=masked, wanted=(0,))

    def _run(self, tried: Sequence[_Tried], known: Sequence[Known]) -> tuple[Tensor, Picks]:
        """`known` by the rows' request numbers: several may be one text, at different places of it."""
        logits = self._runner.forward([one.row for one in tried], [one.table.pages for one in known])
        return logits, self._picks(logits, [one.picked() for one in tried])

    def _picks(self, logits: Tensor, rows: Sequence[PickRow]) -> Picks:
        return pick(logits, rows, self._vocabulary)


def _decided(text: Text, at: int, count: int) -> PickRow:
    """Decisions after the tokens from absolute position `at` on."""
    emitted = at - len(text.prompt)
    return PickRow(
        params=text.params,
        prompt=text.prompt,
        history=text.tokens[: emitted + 1],
        extra=text.tokens[emitted + 1 : emitted + count],
        position=at + 1,
        count=count,
        draft=False,
    )


def _acceptance(tried: _Tried, drafted: Sequence[int]) -> int:
    """A: drafted slots that are the text up to the first that is not, and one."""
    text = tried.known.text.tokens
    for slot, token in enumerate(drafted, 1):
        if token != text[tried.position + slot]:
            return slot
    return len(drafted) + 1


def _step(known: Known, position: int) -> Trial:
    return _trial(known, position, 1, (), 0)


def _trial(known: Known, position: int, acceptance: int, margins: tuple[float, ...], rank: int) -> Trial:
    block = len(margins) + 1
    valid = decisions(block, acceptance)
    entropies = known.entropies[position : position + valid]
    return Trial(block, acceptance, margins, rank, -1, entropies)
