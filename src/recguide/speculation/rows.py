"""How one request's round is laid out as rows (architecture §2): drafts, branches, blocks, layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

from recguide.core import CANDIDATES, Row, light


class BranchKind(StrEnum):
    """Why a prospective next draft runs beside the verification."""

    CORRECTION = "correction"
    """The verifier rejects at the branch's slot and says the branch's candidate instead."""
    CONTINUATION = "continuation"
    """The whole block passes and the bonus equals the branch's predicted slot 0."""
    ANY = "any"
    """The round ends at the branch's slot; the verifier's token overwrites slot 0 (TiDAR)."""


Site = tuple[BranchKind, int, int | None]
"""Where a branch may run: its kind, its slot, and its head, whatever its length."""


@light
class Branch:
    """A prospective next draft whose slot 0 lies at slot `slot` of the block being verified (1..B).

    It fits an outcome with acceptance A = `slot`. `head` is the candidate of a correction; a continuation
    predicts its slot 0, and for kind ANY the verifier's token takes its place.
    """

    kind: BranchKind
    slot: int
    block: int
    head: int | None = None


@light
class Draft:
    """A draft in hand: the block's tokens and what the draft distribution said of each slot.

    Attributes:
        tokens: slot 0 is the seed.
        margins: M_i = p1 − p2 (paper §4.1); 1 at a slot that was known, not drafted.
        candidates: of each rank, the best tokens beside the drafted one, the mask and EOS; 0 at a known slot,
            anything at slot 0.
        masked: slots still to be filled; a draft is complete without any.
        branch: kind of the branch that made it, None if a draft forward did.
        likely: p1 of each slot, 1 at a known one; () where nobody filled the draft in.
    """

    tokens: tuple[int, ...]
    margins: tuple[float, ...]
    candidates: tuple[tuple[int, ...], ...]
    masked: tuple[int, ...] = ()
    branch: BranchKind | None = None
    likely: tuple[float, ...] = ()

    def seeded(self, seed: int) -> Draft:
        """The same draft with the verifier's token as its known slot 0."""
        return Draft(
            tokens=(seed, *self.tokens[1:]),
            margins=(1.0, *self.margins[1:]),
            candidates=self.candidates,
            masked=self.masked,
            branch=self.branch,
            likely=(1.0, *self.likely[1:]),
        )


def known_draft(row: Row) -> Draft:
    """The tokens of a draft row before anything was picked."""
    block = len(row.tokens)
    return Draft(row.tokens, (1.0,) * block, _nothing(block), row.masked)


def blank_draft(seed: int, block: int, mask: int) -> Draft:
    """[seed, MASK × (B−1)]: what a draft forward starts from."""
    return Draft((seed, *(mask,) * (block - 1)), (1.0,) * block, _nothing(block), _slots(1, block))


@cache
def _nothing(block: int) -> tuple[tuple[int, ...], ...]:
    """The candidates of a block that is not filled."""
    return ((0,) * block,) * CANDIDATES


@cache
def _slots(start: int, end: int) -> tuple[int, ...]:
    """The slots from `start` on and before `end`."""
    return tuple(range(start, end))


class Phase(StrEnum):
    PREFILL = "prefill"
    DRAFT = "draft"
    VERIFY = "verify"
    """Also an AR step: a block of one slot."""


@light
class Layout:
    """One request's rows in a forward.

    Attributes:
        rows: the causal row first, if there is one, then the draft row or one row per branch.
        block: token ids whose successors the causal row's wanted slots pick; () without a verdict.
        scored: the causal row's first wanted slots that pick nothing: the token that follows is known, and
            only its log-probability is asked for.
        branches: the branches, in the order of their rows.
        draft: the draft that the block is a part or all of; None for an AR step.
        padding: rows that nobody reads, to be computed all the same.
    """

    phase: Phase
    rows: tuple[Row, ...]
    block: tuple[int, ...] = ()
    branches: tuple[Branch, ...] = ()
    scored: int = 0
    draft: Draft | None = None
    padding: tuple[Row, ...] = ()

    @property
    def query_tokens(self) -> int:
        rows = self.rows
        tokens = len(rows[0].tokens) if len(rows) == 1 else sum([len(row.tokens) for row in rows])
        return tokens + sum([len(row.tokens) for row in self.padding]) if self.padding else tokens

    @property
    def emits_one(self) -> bool:
        """Whether one token follows from it, and nothing runs beside that or is verified: an AR step, or the
        end of a prefill."""
        return len(self.rows) == len(self.block) == 1 and self.draft is None

    def padded(self, padding: tuple[Row, ...]) -> Layout:
        return replace(self, padding=padding)

    @property
    def picking(self) -> Layout:
        """The same without the slots that pick nothing."""
        if not self.scored:
            return self
        causal, *others = self.rows
        causal = replace(causal, wanted=tuple(causal.wanted)[self.scored :])
        return replace(self, rows=(causal, *others), scored=0)


@dataclass(frozen=True, slots=True)
class Continued:
    """A continuation beside a row that emits one token and verifies none: the same tokens as a draft.

    Attributes:
        block: slots.
        mask: id of the mask token.
        adapter: whether it runs the draft adapter.
    """

    block: int
    mask: int
    adapter: bool

    def beside(self, causal: Row) -> tuple[Branch, Row]:
        """The branch, at slot 1 of the one-token block that the causal row ends with, and its row."""
        branch = Branch(BranchKind.CONTINUATION, 1, self.block)
        return branch, _branch_row(causal, len(causal.tokens), branch, self.mask, self.adapter)


def prefill(
    request: int,
    prefix: int,
    tokens: Sequence[int],
    *,
    picks: bool,
    scored: int = 0,
    then: Continued | None = None,
) -> Layout:
    """A chunk of known tokens; with `picks` its last slot emits the request's next token.

    The tokens behind its first `scored` slots are known, and their log-probabilities are asked for.
    """
    wanted = (*_slots(0, scored), *((len(tokens) - 1,) if picks else ()))
    row = Row(request, prefix, tuple(tokens), causal=True, wanted=wanted)
    layout = _emitting(Phase.PREFILL, row, row.tokens[-1:] if picks else (), then if picks else None)
    return replace(layout, scored=scored) if scored else layout


def draft(request: int, prefix: int, drafting: Draft, *, adapter: bool) -> Layout:
    """One draft forward over the slots that are still masked."""
    row = Row(
        request,
        prefix,
        drafting.tokens,
        causal=False,
        adapter=adapter,
        masked=drafting.masked,
        wanted=drafting.masked,
    )
    return Layout(Phase.DRAFT, (row,))


def verify(
    request: int,
    prefix: int,
    block: Sequence[int],
    branches: Sequence[Branch],
    *,
    mask: int,
    adapter: bool,
    draft: Draft | None = None,
) -> Layout:
    """A block in one causal row, and beside it a draft row for every branch.

    `block` may be the beginning of `draft`: what is not verified now is never emitted from it.
    """
    causal = Row(request, prefix, tuple(block), causal=True, wanted=_slots(0, len(block)))
    if not branches:
        return Layout(Phase.VERIFY, (causal,), causal.tokens, draft=draft)
    rows = [_branch_row(causal, branch.slot, branch, mask, adapter) for branch in branches]
    return Layout(Phase.VERIFY, (causal, *rows), causal.tokens, tuple(branches), draft=draft)


def step(request: int, prefix: int, seed: int, then: Continued | None = None) -> Layout:
    """An AR step: a block of the seed alone."""
    causal = Row(request, prefix, (seed,), causal=True, wanted=(0,))
    return _emitting(Phase.VERIFY, causal, causal.tokens, then)


def padding(request: int, prefix: int, tokens: int) -> tuple[Row, ...]:
    """A row that costs what so many tokens cost a backbone, and of which nothing is wanted."""
    return (Row(request, prefix, (0,) * tokens, causal=False),) if tokens else ()


def _emitting(phase: Phase, causal: Row, block: tuple[int, ...], then: Continued | None) -> Layout:
    if then is None:
        return Layout(phase, (causal,), block)
    branch, row = then.beside(causal)
    return Layout(phase, (causal, row), block, (branch,))


def _branch_row(causal: Row, stem: int, branch: Branch, mask: int, adapter: bool) -> Row:
    """A branch sees the stem, the block's slots before its own, through the causal row of its forward."""
    known = () if branch.head is None else (branch.head,)
    masked = _slots(len(known), branch.block)
    # The verifier's token will stand in slot 0 of kind ANY, so nothing is picked there.
    wanted = _slots(1, branch.block) if branch.kind is BranchKind.ANY else masked
    return Row(
        causal.request,
        causal.prefix,
        (*known, *(mask,) * len(masked)),
        causal=False,
        stem=stem,
        adapter=adapter,
        masked=masked,
        wanted=wanted,
    )


def fit_branches(sites: Sequence[Site], block: int, remaining: int) -> list[Branch]:
    """The branches at these sites, each as long as it may be; one that would leave no slot to draft before
    the cap is dropped.

    `remaining` tokens may still be emitted; an outcome at slot p emits p of them.
    """
    return [
        Branch(kind, slot, min(block, remaining - slot), head)
        for kind, slot, head in sites
        if min(block, remaining - slot) >= 2
    ]
