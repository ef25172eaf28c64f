"""From picks to what a forward decided: settled verdicts and drafts, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from recguide.core import Row, TokenLogprobs, light
from recguide.engine.picking import Unpickable, consecutive
from recguide.engine.scheduler import Scheduled
from recguide.speculation.picks import Picks
from recguide.speculation.rows import Branch, BranchKind, Draft, Layout, Phase, known_draft
from recguide.speculation.settle import Ints, Verdicts, settle


@light
class Verdict:
    """What a forward decided for one request.

    Attributes:
        layout: the rows that ran.
        tokens: tokens emitted, already cut at stop tokens and the cap.
        acceptance: A before any cut; 0 if nothing was emitted.
        stopped: the last token is a stop token.
        logprobs: one entry for each token, if the request wants them.
        prompt_logprobs: one entry for each token of the prompt that the forward asked about.
        covered: the branch at the outcome's slot.
        reused: the branch whose draft is used.
        draft: the draft in hand afterwards.
        entropies: the verifier's at its causally valid decisions, in nats: up to and with the first mismatch,
            or without the bonus after a full block; for an AR step its only one. They may be 0 if the
            request has no history that keeps them.
    """

    layout: Layout
    tokens: tuple[int, ...] = ()
    acceptance: int = 0
    stopped: bool = False
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    covered: Branch | None = None
    reused: Branch | None = None
    draft: Draft | None = None
    entropies: Sequence[float] = ()


_DRAFTS = Phase.DRAFT
"""Looked up once: an enumeration answers slowly."""

Decision = Verdict | Unpickable
"""A verdict, or why there is none."""


class Slots(NamedTuple):
    """The picks of some slots on the host; `candidates` of each rank."""

    tokens: list[int]
    p1: list[float]
    margins: list[float]
    candidates: list[list[int]]


class Answers(Protocol):
    """The picks of W slots, of which few are asked for."""

    def slots(self, span: slice) -> Slots: ...

    def entropies(self, span: slice) -> list[float]: ...


@dataclass(frozen=True, slots=True)
class Listed:
    """All of them in lists: the answers to many requests. `candidates` of each rank."""

    tokens: list[int]
    p1: list[float]
    margins: list[float]
    candidates: list[list[int]]
    entropy: list[float]

    @staticmethod
    def of(picks: Picks) -> Listed:
        columns = (picks.tokens, picks.p1, picks.p2, picks.candidates, picks.entropy)
        tokens, p1, p2, candidates, entropy = (column.cpu().numpy() for column in columns)
        margins = np.subtract(p1, p2, dtype=np.float64)
        return Listed(tokens.tolist(), p1.tolist(), margins.tolist(), candidates.tolist(), entropy.tolist())

    def slots(self, span: slice) -> Slots:
        candidates = [each[span] for each in self.candidates]
        return Slots(self.tokens[span], self.p1[span], self.margins[span], candidates)

    def entropies(self, span: slice) -> list[float]:
        return self.entropy[span]


class Settled(NamedTuple):
    """What became of one request's block, on the host; see `settle.Outcome`."""

    acceptance: int
    emitted: int
    stopped: bool
    covered: int
    reused: int
    tokens: list[int]


def decided(
    scheduled: Scheduled, spans: Sequence[slice], answers: Answers, settled: Settled | None
) -> Verdict:
    """The verdict on one request.

    Args:
        spans: where the wanted slots of each of its rows lie among the answers.
        settled: what became of its block; None for rows without one.
    """
    if settled is None:
        return _unjudged(scheduled, spans, answers)
    return _verdict(scheduled.layout, spans, settled, answers)


# --- settling on the host -----------------------------------------------------------------------------------


def settle_on_host(
    plan: Sequence[Scheduled], spans: Sequence[Sequence[slice]], answers: Listed
) -> list[Settled | None]:
    """What became of each request's block; None for those without one."""
    work = [(scheduled, mine) for scheduled, mine in zip(plan, spans, strict=True) if scheduled.layout.block]
    if not work:
        return [None] * len(plan)
    requests = [scheduled.request for scheduled, _ in work]
    layouts = [scheduled.layout for scheduled, _ in work]
    outcome = settle(
        Verdicts(
            blocks=_padded([layout.block for layout in layouts], 0),
            lengths=np.array([len(layout.block) for layout in layouts]),
            picks=_padded([answers.tokens[mine[0]] for _, mine in work], 0),
            trusted=np.array([not request.method.verifies for request in requests]),
            stops=_padded([request.stops for request in requests], -1),
            caps=np.array([request.remaining for request in requests]),
            branch_slots=_padded([[branch.slot for branch in layout.branches] for layout in layouts], 0),
            branch_heads=_padded([_heads(scheduled.layout, mine, answers) for scheduled, mine in work], -1),
        )
    )
    columns = (
        outcome.acceptance,
        outcome.emitted,
        outcome.stopped,
        outcome.covered,
        outcome.reused,
        outcome.tokens,
    )
    settled = iter([Settled(*row) for row in zip(*(column.tolist() for column in columns), strict=True)])
    return [next(settled) if scheduled.layout.block else None for scheduled in plan]


def _heads(layout: Layout, spans: Sequence[slice], answers: Listed) -> list[int]:
    """Slot 0 of every branch: a candidate, a prediction, or −1 where the verifier's token will stand."""
    heads: list[int] = []
    for branch, span in zip(layout.branches, spans[1:], strict=True):
        if branch.kind is BranchKind.ANY:
            heads.append(-1)
        else:
            heads.append(answers.tokens[span.start] if branch.head is None else branch.head)
    return heads


def _padded(lists: Sequence[Sequence[int]], fill: int) -> Ints:
    """[R, longest]."""
    width = max(map(len, lists))
    rows = [[*row, *(fill,) * (width - len(row))] for row in lists]
    return np.array(rows, np.int64).reshape(len(lists), width)


# --- after it -----------------------------------------------------------------------------------------------


def _unjudged(scheduled: Scheduled, spans: Sequence[slice], answers: Answers) -> Verdict:
    """A forward that emits nothing: a prefill chunk, or a draft forward that fills (some of) its slots."""
    request, layout = scheduled.request, scheduled.layout
    if layout.phase is not _DRAFTS:
        return Verdict(layout)
    (row,) = layout.rows
    said = answers.slots(spans[0])
    filled = _fill(request.draft or known_draft(row), row, said)
    method = request.method
    if method.refines is None:
        return Verdict(layout, draft=filled)
    threshold = method.threshold if request.params.threshold is None else request.params.threshold
    refined = method.refines(replace(filled, masked=row.masked), tuple(said.p1), threshold)
    return Verdict(layout, draft=_masked_again(refined, row))


def _masked_again(draft: Draft, row: Row) -> Draft:
    """Slots left masked hold MASK again, whatever was picked there."""
    left = set(draft.masked)
    tokens = (row.tokens[slot] if slot in left else token for slot, token in enumerate(draft.tokens))
    return replace(draft, tokens=tuple(tokens))


def _fill(draft: Draft, row: Row, said: Slots, branch: BranchKind | None = None) -> Draft:
    """The draft, complete, with the picks of the row's wanted slots and their statistics."""
    tokens, margins = draft.tokens, draft.margins
    (best, second), (best_said, second_said) = draft.candidates, said.candidates
    likely, at = draft.likely or margins, 0
    for run in consecutive(row.wanted):
        first, end, to = run[0], run[-1] + 1, at + len(run)
        tokens = (*tokens[:first], *said.tokens[at:to], *tokens[end:])
        margins = (*margins[:first], *said.margins[at:to], *margins[end:])
        best = (*best[:first], *best_said[at:to], *best[end:])
        second = (*second[:first], *second_said[at:to], *second[end:])
        likely = (*likely[:first], *said.p1[at:to], *likely[end:])
        at = to
    return Draft(tokens, margins, (best, second), (), branch, likely)


def _verdict(layout: Layout, spans: Sequence[slice], settled: Settled, answers: Answers) -> Verdict:
    acceptance, emitted, stopped, covered, number, said = settled
    tokens = tuple(said[:emitted])
    of = spans[0].start
    entropies = answers.entropies(slice(of, of + min(acceptance, max(1, len(layout.block) - 1))))
    if not layout.branches:
        return Verdict(layout, tokens, acceptance, bool(stopped), entropies=entropies)
    reused = layout.branches[number] if number >= 0 else None
    draft = None
    if reused is not None:
        row, span = layout.rows[1 + number], spans[1 + number]
        draft = _fill(known_draft(row), row, answers.slots(span), reused.kind)
        assert reused.kind is BranchKind.ANY or draft.tokens[0] == tokens[-1], "a branch fits exactly or not"
        if reused.head is None:  # else its seed was known
            draft = draft.seeded(tokens[-1])
    return Verdict(
        layout,
        tokens=tokens,
        acceptance=acceptance,
        stopped=bool(stopped),
        covered=layout.branches[covered] if covered >= 0 else None,
        reused=reused,
        draft=draft,
        entropies=entropies,
    )
