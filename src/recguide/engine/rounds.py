"""From logits to what a step decided: picks, settled verdicts and drafts, request by request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recguide.core import RecGuideError, Row, TokenLogprobs, Vocabulary
from recguide.engine.request import Request
from recguide.engine.scheduler import Scheduled
from recguide.speculation.edits import stop_tokens
from recguide.speculation.noise import LuckyTokens
from recguide.speculation.picks import BadLogits, PickRow, Picks, logprobs, pick
from recguide.speculation.rows import Branch, BranchKind, Draft, Layout, Phase, known_draft
from recguide.speculation.settle import Verdicts, settle


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a forward decided for one request.

    Attributes:
        layout: the rows that ran.
        tokens: tokens emitted, already cut at stop tokens and the cap.
        acceptance: A before any cut; 0 if nothing was emitted.
        stopped: the last token is a stop token.
        logprobs: one entry for each token, if the request wants them.
        covered: the branch at the outcome's slot.
        reused: the branch whose draft is used.
        draft: the draft in hand afterwards.
    """

    layout: Layout
    tokens: tuple[int, ...] = ()
    acceptance: int = 0
    stopped: bool = False
    logprobs: tuple[TokenLogprobs, ...] = ()
    covered: Branch | None = None
    reused: Branch | None = None
    draft: Draft | None = None


class UnpickableLogits(RecGuideError):  # noqa: N818 - it names what was found
    """The model gave NaN, or no finite logit, for `requests`; the others are well."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = tuple(dict.fromkeys(requests))
        numbers = ", ".join(str(request.arrival) for request in self.requests)
        super().__init__(
            f"logits: NaN or nothing finite for request {numbers}; check the model's weights and dtype"
        )


def judge(
    logits: Tensor, plan: Sequence[Scheduled], vocabulary: Vocabulary, luck: LuckyTokens
) -> list[Verdict]:
    """Verdicts in the order of the plan; `logits` [W, vocab] are those of its rows' wanted slots.

    `luck` remembers between steps which tokens the noise of a position favours: drafts, branches and
    verification of a position all ask for it.
    """
    owners = [(scheduled.request, row) for scheduled in plan for row in _pick_rows(scheduled)]
    try:
        answers = _Answers(pick(logits, [row for _, row in owners], vocabulary, luck))
    except BadLogits as error:
        raise UnpickableLogits([owners[index][0] for index in error.rows]) from error
    spans = list(_spans(plan))
    judged = [index for index, scheduled in enumerate(plan) if scheduled.layout.block]
    settled = _settle([(plan[index], spans[index]) for index in judged], answers, vocabulary)
    verdicts = [_unjudged(*work, answers) for work in zip(plan, spans, strict=True)]
    for index, outcome in zip(judged, settled, strict=True):
        verdict = _verdict(plan[index], spans[index], outcome, answers)
        verdicts[index] = _with_logprobs(verdict, plan[index].request, logits[spans[index][0]])
    return verdicts


class _Answers:
    """The picks of a step on the host."""

    def __init__(self, picks: Picks) -> None:
        self.tokens: list[int] = picks.tokens.tolist()
        self.p1: list[float] = picks.p1.tolist()
        self.p2: list[float] = picks.p2.tolist()
        self.candidates: list[int] = picks.candidates.tolist()


# --- before the picks ---------------------------------------------------------------------------------------


def _pick_rows(scheduled: Scheduled) -> Iterator[PickRow]:
    """What the picks of each row's wanted slots depend on, beside the logits."""
    request, layout = scheduled.request, scheduled.layout
    branches: Sequence[Branch | None] = [None, *layout.branches]
    for row, branch in zip(layout.rows, branches, strict=True):
        history = request.emitted if branch is None else _branch_history(request, layout, branch)
        for run in _runs(row.wanted):
            yield PickRow(
                params=request.params,
                prompt=request.prompt,
                history=history,
                extra=layout.block[1:] if row.causal else (),
                position=row.start + run[0] + (1 if row.causal else 0),
                count=len(run),
                draft=not row.causal,
            )


def _branch_history(request: Request, layout: Layout, branch: Branch) -> list[int]:
    """A branch follows the emitted tokens, the stem and, for a correction, its candidate."""
    head = () if branch.head is None else (branch.head,)
    return [*request.emitted, *layout.block[1 : branch.slot], *head]


def _runs(slots: Sequence[int]) -> Iterator[Sequence[int]]:
    """Runs of consecutive slots: a half-filled block wants logits with gaps."""
    start = 0
    for end in range(1, len(slots) + 1):
        if end == len(slots) or slots[end] != slots[end - 1] + 1:
            yield slots[start:end]
            start = end


def _spans(plan: Sequence[Scheduled]) -> Iterator[list[slice]]:
    """For each request, where the wanted slots of each of its rows lie among the W logits."""
    at = 0
    for scheduled in plan:
        spans: list[slice] = []
        for row in scheduled.layout.rows:
            spans.append(slice(at, at + len(row.wanted)))
            at += len(row.wanted)
        yield spans


# --- settling -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Settled:
    """One request's share of an Outcome, on the host."""

    tokens: list[int]
    acceptance: int
    emitted: int
    stopped: bool
    covered: int
    reused: int


def _settle(
    work: Sequence[tuple[Scheduled, list[slice]]], answers: _Answers, vocabulary: Vocabulary
) -> list[_Settled]:
    requests = [scheduled.request for scheduled, _ in work]
    layouts = [scheduled.layout for scheduled, _ in work]
    verdicts = Verdicts(
        blocks=_padded([layout.block for layout in layouts], 0),
        lengths=torch.tensor([len(layout.block) for layout in layouts], dtype=torch.long),
        picks=_padded([answers.tokens[spans[0]] for _, spans in work], 0),
        trusted=torch.tensor([not request.method.verifies for request in requests], dtype=torch.bool),
        stops=_padded([stop_tokens(request.params, vocabulary) for request in requests], -1),
        caps=torch.tensor([request.remaining for request in requests], dtype=torch.long),
        branch_slots=_padded([[branch.slot for branch in layout.branches] for layout in layouts], 0),
        branch_heads=_padded([_heads(scheduled.layout, spans, answers) for scheduled, spans in work], -1),
    )
    outcome = settle(verdicts)
    columns = (
        outcome.tokens,
        outcome.acceptance,
        outcome.emitted,
        outcome.stopped,
        outcome.covered,
        outcome.reused,
    )
    return [_Settled(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _heads(layout: Layout, spans: Sequence[slice], answers: _Answers) -> list[int]:
    """Slot 0 of every branch: a candidate, a prediction, or −1 where the verifier's token will stand."""
    heads: list[int] = []
    for branch, span in zip(layout.branches, spans[1:], strict=True):
        if branch.kind is BranchKind.ANY:
            heads.append(-1)
        else:
            heads.append(answers.tokens[span.start] if branch.head is None else branch.head)
    return heads


def _padded(lists: Sequence[Sequence[int]], fill: int) -> Tensor:
    """[R, longest] int64."""
    width = max((len(row) for row in lists), default=0)
    return torch.tensor([[*row, *(fill,) * (width - len(row))] for row in lists], dtype=torch.long).reshape(
        len(lists), width
    )


# --- after it -----------------------------------------------------------------------------------------------


def _unjudged(scheduled: Scheduled, spans: Sequence[slice], answers: _Answers) -> Verdict:
    """A forward that emits nothing: a prefill chunk, or a draft forward that fills (some of) its slots."""
    request, layout = scheduled.request, scheduled.layout
    if layout.phase is not Phase.DRAFT:
        return Verdict(layout)
    (row,) = layout.rows
    filled = _fill(request.draft or known_draft(row), row, spans[0], answers)
    method = request.method
    if method.refines is None:
        return Verdict(layout, draft=replace(filled, masked=()))
    threshold = method.threshold if request.params.threshold is None else request.params.threshold
    refined = method.refines(filled, tuple(answers.p1[spans[0]]), threshold)
    return Verdict(layout, draft=_masked_again(refined, row))


def _masked_again(draft: Draft, row: Row) -> Draft:
    """Slots left masked hold MASK again, whatever was picked there."""
    left = set(draft.masked)
    tokens = (row.tokens[slot] if slot in left else token for slot, token in enumerate(draft.tokens))
    return replace(draft, tokens=tuple(tokens))


def _fill(draft: Draft, row: Row, span: slice, answers: _Answers) -> Draft:
    """The draft with the picks of the row's wanted slots and their statistics."""
    tokens, margins, candidates = list(draft.tokens), list(draft.margins), list(draft.candidates)
    for slot, at in zip(row.wanted, range(span.start, span.stop), strict=True):
        tokens[slot] = answers.tokens[at]
        margins[slot] = answers.p1[at] - answers.p2[at]
        candidates[slot] = answers.candidates[at]
    return replace(draft, tokens=tuple(tokens), margins=tuple(margins), candidates=tuple(candidates))


def _verdict(scheduled: Scheduled, spans: Sequence[slice], outcome: _Settled, answers: _Answers) -> Verdict:
    layout = scheduled.layout
    tokens = tuple(outcome.tokens[: outcome.emitted])
    reused = layout.branches[outcome.reused] if outcome.reused >= 0 else None
    draft = None
    if reused is not None:
        row, span = layout.rows[1 + outcome.reused], spans[1 + outcome.reused]
        draft = replace(_fill(known_draft(row), row, span, answers), masked=(), branch=reused.kind)
        assert reused.kind is BranchKind.ANY or draft.tokens[0] == tokens[-1], "a branch fits exactly or not"
        draft = draft.seeded(tokens[-1])
    return Verdict(
        layout,
        tokens=tokens,
        acceptance=outcome.acceptance,
        stopped=outcome.stopped,
        covered=layout.branches[outcome.covered] if outcome.covered >= 0 else None,
        reused=reused,
        draft=draft,
    )


def _with_logprobs(verdict: Verdict, request: Request, logits: Tensor) -> Verdict:
    """Adds the raw log-probabilities of the emitted tokens; `logits` are those of the causal row."""
    if request.params.logprobs is None:
        return verdict
    tokens = torch.tensor(verdict.tokens, dtype=torch.long, device=logits.device)
    return replace(verdict, logprobs=logprobs(logits[: len(tokens)], tokens, request.params.logprobs))
