"""Drafts that keep to a grammar: a draft that ignores it costs nothing but acceptance, nearly all of it.

A draft's slots are picked together, so a slot does not know what stands before it. Here they are walked from
left to right: a token that the grammar forbids after its predecessors makes way for those that the grammar
demands there, or is picked again from those that it allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recguide.core import CANDIDATES, Row, Vocabulary
from recguide.engine.picking import Unpickable, pick_owned
from recguide.engine.request import Request
from recguide.speculation.grammar import Allowed, GrammarError, Matcher
from recguide.speculation.noise import LuckyTokens
from recguide.speculation.picks import PickRow
from recguide.speculation.rows import Draft

REPICKS = 4
"""Slots of a draft that are picked again at most: each costs a pass over the vocabulary, and what was drafted
behind several mistakes is rarely right."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """A complete draft and where it comes from.

    Attributes:
        matcher: the request's.
        history: emitted tokens, with the draft's seed as the last.
        row: the draft row.
        logits: [wanted, vocab] of the row's wanted slots.
    """

    request: Request
    matcher: Matcher
    history: Sequence[int]
    row: Row
    logits: Tensor
    draft: Draft


@dataclass(frozen=True, slots=True)
class _Forbidden:
    """The first slot whose token may not stand there, and what may."""

    slot: int
    allowed: Allowed


def constrain(drafts: Sequence[Drafted], vocabulary: Vocabulary, luck: LuckyTokens) -> list[Draft]:
    """The drafts with what their grammars forbid replaced, at a few places each.

    Raises Unpickable for a request whose grammar gave up.
    """
    result = list(drafts)
    begin = dict.fromkeys(range(len(drafts)), 1)
    for _ in range(REPICKS):
        wrong: dict[int, _Forbidden] = {}
        for i, start in begin.items():
            result[i], forbidden = _until_forbidden(result[i], start)
            if forbidden is not None:
                wrong[i] = forbidden
        if not wrong:
            break
        logits = torch.stack([_logits(result[i], forbidden.slot) for i, forbidden in wrong.items()])
        owned = [(result[i].request, _pick_row(result[i], forbidden)) for i, forbidden in wrong.items()]
        picks = pick_owned(logits, owned, vocabulary, luck)
        answers = zip(
            picks.tokens.tolist(), (picks.p1 - picks.p2).tolist(), picks.candidates.T.tolist(), strict=True
        )
        for (i, forbidden), (token, margin, candidates) in zip(wrong.items(), answers, strict=True):
            result[i] = _with(result[i], forbidden.slot, [token], margin, candidates)
        begin = {i: forbidden.slot for i, forbidden in wrong.items()}
    return [drafted.draft for drafted in result]


def _until_forbidden(drafted: Drafted, start: int) -> tuple[Drafted, _Forbidden | None]:
    """Looks from slot `start` on, as far as the request's end, for a forbidden token that needs a pick.

    Demanded tokens take the places of forbidden ones on the way.
    """
    stops = drafted.request.stops
    while True:
        tokens = drafted.draft.tokens
        try:
            allowed = drafted.matcher.allowed([*drafted.history, *tokens[1:start]], tokens[start:-1])
            bad = next((i for i, token in enumerate(tokens[start:]) if (i, token) not in allowed), None)
            if bad is None or not set(stops).isdisjoint(tokens[start : start + bad]):
                return drafted, None
            slot = start + bad
            demanded = drafted.matcher.demanded([*drafted.history, *tokens[1:slot]])[: len(tokens) - slot]
        except GrammarError as error:
            raise Unpickable([drafted.request], str(error)) from error
        if not demanded:
            return drafted, _Forbidden(slot, allowed.one(bad))
        drafted, start = _with(drafted, slot, demanded, 1.0, (0,) * CANDIDATES), slot + len(demanded)


def _logits(drafted: Drafted, slot: int) -> Tensor:
    return drafted.logits[drafted.row.wanted.index(slot)]


def _pick_row(drafted: Drafted, forbidden: _Forbidden) -> PickRow:
    request = drafted.request
    return PickRow(
        params=request.params,
        prompt=request.prompt,
        history=[*drafted.history, *drafted.draft.tokens[1 : forbidden.slot]],
        extra=(),
        position=drafted.row.start + forbidden.slot,
        count=1,
        draft=True,
        allowed=forbidden.allowed,
    )


def _with(
    drafted: Drafted, slot: int, new: Sequence[int], margin: float, candidates: Sequence[int]
) -> Drafted:
    """The draft with other tokens from a slot on."""
    draft, end = drafted.draft, slot + len(new)
    changed = replace(
        draft,
        tokens=(*draft.tokens[:slot], *new, *draft.tokens[end:]),
        margins=(*draft.margins[:slot], *(margin,) * len(new), *draft.margins[end:]),
        candidates=tuple(
            (*row[:slot], *(candidate,) * len(new), *row[end:])
            for row, candidate in zip(draft.candidates, candidates, strict=True)
        ),
    )
    return replace(drafted, draft=changed)
