"""What a request does next: prefill, draft, verify or an AR step (architecture §3)."""

from __future__ import annotations

from recguide.engine.request import Request
from recguide.speculation import rows
from recguide.speculation.rows import Layout


def lay_out(request: Request, index: int, mask: int | None, chunk: int, *, diffusion_adapter: bool) -> Layout:
    """The request's rows for the next forward; `index` is its place in the batch.

    At most `chunk` tokens are prefilled. A verified block is never longer than what may still be emitted, so
    nothing is drafted past the cap; block diffusion keeps whole blocks, since their length shapes its text.
    """
    if request.cached < request.prefill_end:
        end = min(request.cached + chunk, request.prefill_end)
        picks = end == request.prefill_end and not request.emitted and request.remaining > 0
        scored = min(end, len(request.prompt) - 1) - request.cached if request.is_scoring else 0
        tokens = request.known(request.cached, end)
        return rows.prefill(index, request.cached, tokens, picks=picks, scored=scored)

    block = min(request.block, request.remaining) if request.method.verifies else request.block
    if mask is None or block < 2 or not request.method.drafts:
        return rows.step(index, request.cached, request.seed_token)

    adapter = request.method.verifies or diffusion_adapter
    draft = request.draft or rows.blank_draft(request.seed_token, block, mask)
    if draft.masked:
        return rows.draft(index, request.cached, draft, adapter=adapter)
    branches = rows.fit_branches(request.method.branches(draft), request.block, request.remaining)
    return rows.verify(index, request.cached, draft.tokens, branches, mask=mask, adapter=adapter)
