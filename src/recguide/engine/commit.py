"""Commit: what a verdict means for its request (architecture §3), in two parts.

`advance` is what the next forward depends on: tokens, cached length, draft in hand, whether the request has
ended. `publish` is what only readers wait for: text, chunks, statistics. It may run while the next forward
does, so it reads nothing that an advance may change but what `Advanced` remembers. Both run in order of
emission and may only *end* a request: what a round emitted past that end is dropped before anyone sees it.
"""

from __future__ import annotations

from recguide.core import Chunk, FinishReason, Origin, TokenLogprobs, light
from recguide.engine.request import Request
from recguide.engine.rounds import Verdict
from recguide.speculation.rows import BranchKind, Phase

_PREFILLS, _DRAFTS, _VERIFIES = Phase.PREFILL, Phase.DRAFT, Phase.VERIFY
_FROM_PREFILL, _PLAIN = (Origin.PREFILL,), (Origin.AR,)
_ACCEPTED, _REUSED, _BONUS, _CORRECTION = Origin.ACCEPTED, Origin.REUSED, Origin.BONUS, Origin.CORRECTION
"""Looked up once: an enumeration answers slowly, and these are asked for every request in every step."""


@light
class Advanced:
    """What a verdict has done to its request.

    Attributes:
        drafted_by: the kind of branch that drafted the verified block, None if a draft forward did.
        start, kept: the request's tokens emitted before, and those added.
    """

    request: Request
    verdict: Verdict
    drafted_by: BranchKind | None
    start: int
    kept: int


def advance(request: Request, verdict: Verdict) -> Advanced:
    """Applies the verdict as far as the request's next rows depend on it.

    Text is needed only if it may end the request: a request with stop strings is never run past one.
    """
    layout, start = verdict.layout, len(request.emitted)
    phase = layout.phase
    drafted_by = request.draft.branch if request.draft is not None else None
    request.draft = verdict.draft
    if phase is _PREFILLS:
        request.cached += len(layout.rows[0].tokens)
        request.prompt_logprobs += verdict.prompt_logprobs
        if request.remaining == 0 and request.cached == request.prefill_end:
            request.finish_reason = FinishReason.LENGTH
    elif phase is _VERIFIES:
        request.cached += len(verdict.tokens)
    if verdict.tokens:
        if request.params.stop:
            try:
                _emit_with_text(request, verdict)
            finally:
                request.cached -= start + len(verdict.tokens) - len(request.emitted)
        else:
            request.emitted += verdict.tokens
            _end(request, stopped=verdict.stopped)
    return Advanced(request, verdict, drafted_by, start, len(request.emitted) - start)


def _emit_with_text(request: Request, verdict: Verdict) -> None:
    """Emits token by token up to the one that completes a stop string; a stop token beats it."""
    *others, last = verdict.tokens
    for token in others:
        if _pushed(request, token):
            return
    if verdict.stopped or not _pushed(request, last):
        if verdict.stopped:
            request.emitted.append(last)
            request.text.push(last, may_stop=False)
        _end(request, stopped=verdict.stopped)


def _pushed(request: Request, token: int) -> bool:
    """Emits a token; true if its text ends the request."""
    request.emitted.append(token)
    may_stop = len(request.emitted) >= request.params.min_tokens
    if not request.text.push(token, may_stop=may_stop):
        return False
    request.finish_reason, request.stop_reason = FinishReason.STOP, request.text.stop
    return True


def _end(request: Request, *, stopped: bool) -> None:
    """Ends the request if its last token does; a stop token beats the cap."""
    if stopped:
        request.finish_reason, request.stop_reason = FinishReason.STOP, request.emitted[-1]
    elif request.remaining == 0:
        request.finish_reason = FinishReason.LENGTH


def publish(done: Advanced) -> Chunk | None:
    """Completes what `advance` began; returns what a stream may show, None if nothing was emitted."""
    request, verdict, kept = done.request, done.verdict, done.kept
    layout, tokens = verdict.layout, verdict.tokens
    if not tokens:
        _count(request, verdict, 0)
        # One that was to emit nothing ends here all the same.
        return _chunk(request, (), (), ()) if request.finish_reason is FinishReason.LENGTH else None
    is_step = layout.emits_one and layout.phase is _VERIFIES and not layout.padding
    if kept and request.finish_reason is None and is_step:
        return _publish_step(request, verdict)
    tokens, origins, logprobs = tokens[:kept], _origins(done)[:kept], verdict.logprobs[:kept]
    request.origins += origins
    if not request.params.stop:
        request.text.extend(tokens)
    if request.finish_reason is not None:
        request.text.finish()
    if logprobs:
        request.logprobs += logprobs
    request.stats.tokens = len(request.emitted)
    _count(request, verdict, kept)
    return _chunk(request, tokens, origins, logprobs)


def _publish_step(request: Request, verdict: Verdict) -> Chunk:
    """The same for a plain step that ends nothing: there are many of them."""
    text, stats, logprobs = request.text, request.stats, None
    request.origins += _PLAIN
    if not request.params.stop:
        text.extend(verdict.tokens)
    if request.params.logprobs is not None:
        logprobs = verdict.logprobs
        request.logprobs += logprobs
    stats.tokens += 1
    stats.forwards += 1
    stats.query_tokens += 1
    stats.untrimmed += 1
    stats.blocks[1] += 1
    return Chunk(request.choice, text.take(final=False), verdict.tokens, _PLAIN, logprobs)


def _chunk(
    request: Request,
    tokens: tuple[int, ...],
    origins: tuple[Origin, ...],
    logprobs: tuple[TokenLogprobs, ...],
) -> Chunk:
    finished = request.finish_reason is not None and request.error is None
    return Chunk(
        request.choice,
        request.text.take(final=finished),
        tokens,
        origins,
        None if request.params.logprobs is None else logprobs,
        request.completion() if finished else None,
    )


def _origins(done: Advanced) -> tuple[Origin, ...]:
    """How each emitted token came to be; the round's last verdict is a correction or the bonus."""
    verdict, layout = done.verdict, done.verdict.layout
    if layout.phase is _PREFILLS:
        return _FROM_PREFILL
    if len(layout.block) == 1:
        return _PLAIN
    matched = _ACCEPTED if done.drafted_by is None else _REUSED
    if not done.request.method.verifies:
        matched = Origin.DIFFUSION
    last = _BONUS if verdict.acceptance == len(layout.block) else _CORRECTION
    return (matched,) * (verdict.acceptance - 1) + (last,)


def _count(request: Request, verdict: Verdict, kept: int) -> None:
    """Adds a forward to the statistics; `kept` of its tokens were returned."""
    stats, layout = request.stats, verdict.layout
    if layout.branches and layout.draft is None:
        stats.continued += 1
        stats.begun += verdict.reused is not None and request.finish_reason is None
    if layout.phase is _PREFILLS:
        stats.prefill_forwards += 1
        return
    stats.forwards += 1
    stats.query_tokens += layout.query_tokens
    if layout.phase is _DRAFTS:
        return
    stats.untrimmed += verdict.acceptance
    stats.blocks[len(layout.block)] += 1
    if layout.draft is None or not request.method.verifies:
        return
    matched = min(verdict.acceptance - 1, kept)
    stats.acceptance[kept] += 1
    stats.matched[matched] += 1
    stats.drafted += len(layout.block) - 1
    stats.accepted += matched
    for branch in layout.branches:
        stats.branches[branch.kind.value] += 1
    if request.finish_reason is not None:
        return  # nothing follows that a branch could have prepared
    if verdict.covered is not None:
        stats.covered[verdict.covered.kind.value] += 1
    if verdict.reused is not None:
        stats.reused[verdict.reused.kind.value] += 1
