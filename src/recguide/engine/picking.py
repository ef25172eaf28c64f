"""What the picks of a forward's slots depend on, and picks that the device leaves to the host's code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from recguide.core import RecGuideError, Vocabulary
from recguide.engine.request import Request
from recguide.engine.scheduler import Scheduled
from recguide.speculation.grammar import Allowed, GrammarError
from recguide.speculation.noise import LuckyTokens
from recguide.speculation.picks import BadLogits, PickRow, Picks, pick
from recguide.speculation.rows import Branch, BranchKind, Layout


class Unpickable(RecGuideError):  # noqa: N818 - it names what was found
    """There are no picks for `requests`; the others are well."""

    def __init__(self, requests: Sequence[Request], message: str) -> None:
        self.requests = tuple(dict.fromkeys(requests))
        super().__init__(message)


class UnpickableLogits(Unpickable):
    """The model gave NaN, or no finite logit, for `requests`."""

    def __init__(self, requests: Sequence[Request]) -> None:
        numbers = ", ".join(str(request.arrival) for request in dict.fromkeys(requests))
        super().__init__(
            requests,
            f"logits: NaN or nothing finite for request {numbers}; check the model's weights and dtype",
        )


Owned = tuple[Request, PickRow]
"""Slots to pick for, and whose they are."""


def pick_on_host(
    logits: Tensor, plan: Sequence[Scheduled], vocabulary: Vocabulary, luck: LuckyTokens
) -> Picks:
    """Picks of everything that the plan's rows want; `logits` [W, vocab] are theirs.

    Raises Unpickable for requests whose logits are NaN or nowhere finite, or whose grammar gave up.
    """
    owned = [(scheduled.request, row) for scheduled in plan for row in _followed(scheduled)]
    return pick_owned(logits, owned, vocabulary, luck)


def pick_owned(logits: Tensor, owned: Sequence[Owned], vocabulary: Vocabulary, luck: LuckyTokens) -> Picks:
    """Picks of slots [W, vocab]; raises UnpickableLogits for their owners."""
    try:
        return pick(logits, [row for _, row in owned], vocabulary, luck)
    except BadLogits as error:
        raise UnpickableLogits([owned[index][0] for index in error.rows]) from error


def _followed(scheduled: Scheduled) -> list[PickRow]:
    try:
        return list(pick_rows(scheduled))
    except GrammarError as error:
        raise Unpickable([scheduled.request], str(error)) from error


def pick_rows(scheduled: Scheduled) -> Iterator[PickRow]:
    """What the picks of each row's wanted slots depend on, beside the logits.

    A draft follows its grammar only once it is in hand (see `constraining`), but for the slot of a
    continuation that has to equal the verifier's bonus.
    """
    request, layout = scheduled.request, scheduled.layout
    branches: Sequence[Branch | None] = [None, *layout.branches]
    remembered = request.history is not None
    verdict: Allowed | None = None
    if request.matcher is not None and layout.block:
        verdict = request.matcher.allowed(request.emitted, layout.block[1:])
    for row, branch in zip(layout.rows, branches, strict=True):
        history = request.emitted if branch is None else _branch_history(request, layout, branch)
        for run in consecutive(row.wanted):
            yield PickRow(
                params=request.params,
                prompt=request.prompt,
                history=history,
                extra=layout.block[1:] if row.causal else (),
                position=row.start + run[0] + (1 if row.causal else 0),
                count=len(run),
                draft=not row.causal,
                allowed=verdict if row.causal else _bonus(verdict, branch, len(run)),
                statistics=remembered or (request.method.weighs_drafts and not row.causal),
            )


def _bonus(verdict: Allowed | None, branch: Branch | None, slots: int) -> Allowed | None:
    """What a continuation's slots may hold: in slot 0 what the bonus may be."""
    if verdict is None or branch is None or branch.kind is not BranchKind.CONTINUATION:
        return None
    return verdict.one(branch.slot - 1).followed_by_anything(slots)


def _branch_history(request: Request, layout: Layout, branch: Branch) -> list[int]:
    """A branch follows the emitted tokens, the stem and, for a correction, its candidate."""
    head = () if branch.head is None else (branch.head,)
    return [*request.emitted, *layout.block[1 : branch.slot], *head]


def consecutive(slots: Sequence[int]) -> Iterator[Sequence[int]]:
    """Runs of consecutive slots: a half-filled block wants logits with gaps."""
    if slots and slots[-1] - slots[0] == len(slots) - 1:  # nearly always, since slots rise
        yield slots
        return
    start = 0
    for end in range(1, len(slots) + 1):
        if end == len(slots) or slots[end] != slots[end - 1] + 1:
            yield slots[start:end]
            start = end
