"""Commit: what a verdict means for the request's text, limits and statistics (architecture §3).

It runs in order of emission and may only end a request: what a round emitted past that end is dropped before
statistics and text see it.
"""

from __future__ import annotations

from recguide.core import Chunk, FinishReason, Origin
from recguide.engine.request import Request
from recguide.engine.rounds import Verdict
from recguide.speculation.rows import BranchKind, Phase


def commit(request: Request, verdict: Verdict) -> Chunk | None:
    """Applies the verdict; returns what a stream may show, None if the forward emitted nothing."""
    layout = verdict.layout
    drafted_by = request.draft.branch if request.draft is not None else None
    request.draft = verdict.draft
    if layout.phase is Phase.PREFILL:
        request.cached += len(layout.rows[0].tokens)
    elif layout.phase is Phase.VERIFY:
        request.cached += len(verdict.tokens)
    if not verdict.tokens:
        _count(request, verdict, 0)
        return None

    start = len(request.emitted)
    origins = _origins(request, verdict, drafted_by)
    for token, origin in zip(verdict.tokens, origins, strict=True):
        _emit(
            request,
            token,
            origin,
            stopped=verdict.stopped and len(request.emitted) - start == len(origins) - 1,
        )
        if request.finish_reason is not None:
            break
    kept = len(request.emitted) - start
    request.cached -= len(verdict.tokens) - kept
    request.logprobs.extend(verdict.logprobs[:kept])
    request.stats.tokens = len(request.emitted)
    _count(request, verdict, kept)
    return _chunk(request, start)


def _emit(request: Request, token: int, origin: Origin, *, stopped: bool) -> None:
    """Appends a token and ends the request if it stops it; a stop token beats the cap."""
    request.emitted.append(token)
    request.origins.append(origin)
    may_stop = len(request.emitted) >= request.params.min_tokens
    if stopped:
        request.text.push(token, may_stop=False)
        request.finish_reason, request.stop_reason = FinishReason.STOP, token
    elif request.text.push(token, may_stop=may_stop):
        request.finish_reason, request.stop_reason = FinishReason.STOP, request.text.stop
    elif request.remaining == 0:
        request.finish_reason = FinishReason.LENGTH
    if request.finish_reason is not None:
        request.text.finish()


def _chunk(request: Request, start: int) -> Chunk:
    finished = request.finish_reason is not None
    return Chunk(
        index=request.choice,
        text=request.text.take(final=finished),
        token_ids=tuple(request.emitted[start:]),
        origins=tuple(request.origins[start:]),
        logprobs=None if request.params.logprobs is None else tuple(request.logprobs[start:]),
        completion=request.completion() if finished else None,
    )


def _origins(request: Request, verdict: Verdict, drafted_by: BranchKind | None) -> list[Origin]:
    """How each emitted token came to be; the round's last verdict is a correction or the bonus."""
    layout = verdict.layout
    if layout.phase is Phase.PREFILL:
        return [Origin.PREFILL]
    if len(layout.block) == 1:
        return [Origin.AR]
    matched = Origin.ACCEPTED if drafted_by is None else Origin.REUSED
    if not request.method.verifies:
        matched = Origin.DIFFUSION
    last = Origin.BONUS if verdict.acceptance == len(layout.block) else Origin.CORRECTION
    origins = [matched] * (verdict.acceptance - 1) + [last]
    return origins[: len(verdict.tokens)]


def _count(request: Request, verdict: Verdict, kept: int) -> None:
    """Adds a forward to the statistics; `kept` of its tokens were returned."""
    stats, layout = request.stats, verdict.layout
    if layout.phase is Phase.PREFILL:
        stats.prefill_forwards += 1
        return
    stats.forwards += 1
    stats.query_tokens += layout.query_tokens
    if layout.phase is Phase.DRAFT:
        return
    stats.untrimmed += verdict.acceptance
    stats.blocks[len(layout.block)] += 1
    if len(layout.block) == 1 or not request.method.verifies:
        return
    stats.acceptance[kept] += 1
    stats.drafted += len(layout.block) - 1
    stats.accepted += min(verdict.acceptance - 1, kept)
    stats.branches.update(branch.kind.value for branch in layout.branches)
    if request.finish_reason is not None:
        return  # nothing follows that a branch could have prepared
    if verdict.covered is not None:
        stats.covered[verdict.covered.kind.value] += 1
    if verdict.reused is not None:
        stats.reused[verdict.reused.kind.value] += 1
