"""What a request does next: prefill, draft, verify or an AR step (architecture §3)."""

from __future__ import annotations

from typing import NamedTuple

from recguide.engine.request import Request
from recguide.guidance.view import Head
from recguide.speculation import rows
from recguide.speculation.rows import Branch, BranchKind, Continued, Draft, Layout


class Turn(NamedTuple):
    """A request's share of a policy's plan for one step; see `guidance.view.Plan`.

    Attributes:
        block: slots of the draft that starts, 0 for none.
        verified: slots of the causal row; 1 without a draft in hand is an AR step.
        branches: (slot, head, block) of each.
        width: slots that every row is padded to; 0 for none.
    """

    block: int
    verified: int
    branches: tuple[tuple[int, int, int], ...] = ()
    width: int = 0


def lay_out(
    request: Request,
    index: int,
    chunk: int,
    turn: Turn | None,
    *,
    mask: int | None,
    diffusion_adapter: bool,
) -> Layout:
    """The request's rows for the next forward; `index` is its place in the batch.

    At most `chunk` tokens are prefilled; with 0 of them the request decodes. A verified block is never longer
    than what may still be emitted; block diffusion keeps whole blocks, since their length shapes its text.

    Args:
        turn: what a policy planned; None goes by the request's method and block size.
    """
    if chunk:
        return prefill(request, index, request.cached, chunk, _continued(turn, mask))
    if turn is not None and mask is not None:
        return _planned(request, index, mask, turn)

    block = min(request.block, request.remaining) if request.method.verifies else request.block
    if mask is None or block < 2 or not request.method.drafts:
        return rows.step(index, request.cached, request.seed_token)

    adapter = request.method.verifies or diffusion_adapter
    draft = request.draft or rows.blank_draft(request.seed_token, block, mask)
    if draft.masked:
        return rows.draft(index, request.cached, draft, adapter=adapter)
    sites = request.method.branches(draft.margins, draft.candidates[0])
    branches = rows.fit_branches(sites, request.block, request.remaining)
    # A draft that was begun before it was known what would be left may reach past the cap.
    tokens = draft.tokens[: request.remaining] if request.method.verifies else draft.tokens
    return rows.verify(index, request.cached, tokens, branches, mask=mask, adapter=adapter, draft=draft)


def prefill(request: Request, index: int, start: int, chunk: int, then: Continued | None = None) -> Layout:
    """So many of a request's tokens from `start` on, at most; `then` runs beside the end that emits."""
    end = min(start + chunk, request.prefill_end)
    picks = end == request.prefill_end and not request.emitted and request.remaining > 0
    scored = min(end, len(request.prompt) - 1) - start if request.is_scoring else 0
    tokens = request.known(start, end)
    beside = then if picks and not scored else None
    return rows.prefill(index, start, tokens, picks=picks, scored=scored, then=beside)


def _planned(request: Request, index: int, mask: int, turn: Turn) -> Layout:
    layout = _rows_of(request, index, mask, turn)
    if not turn.width:
        return layout
    spare = turn.width * len(layout.rows) - layout.query_tokens
    return layout.padded(rows.padding(index, request.cached, spare))


def _rows_of(request: Request, index: int, mask: int, turn: Turn) -> Layout:
    draft, cached = request.draft, request.cached
    if draft is not None:
        branches = [_branch(draft, *branch) for branch in turn.branches]
        return rows.verify(
            index, cached, draft.tokens[: turn.verified], branches, mask=mask, adapter=True, draft=draft
        )
    if turn.block:
        return rows.draft(index, cached, rows.blank_draft(request.seed_token, turn.block, mask), adapter=True)
    return rows.step(index, cached, request.seed_token, _continued(turn, mask))


def _continued(turn: Turn | None, mask: int | None) -> Continued | None:
    """The continuation that a turn puts beside an AR step or the end of a prefill."""
    if turn is None or mask is None or not turn.branches:
        return None
    ((_, _, block),) = turn.branches
    return Continued(block, mask, adapter=True)


def _branch(draft: Draft, slot: int, head: int, block: int) -> Branch:
    if head == Head.CONTINUATION:
        return Branch(BranchKind.CONTINUATION, slot, block)
    return Branch(BranchKind.CORRECTION, slot, block, draft.candidates[head - 1][slot])
