"""What a prompt's own tokens are worth to the model: log-probabilities read off its prefill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan

import torch
from torch import Tensor

from recguide.engine.picking import Unpickable, UnpickableLogits
from recguide.engine.rounds import Decision
from recguide.engine.scheduler import Scheduled
from recguide.speculation.picks import logprobs


def picking(scheduled: Scheduled) -> Scheduled:
    """The same without the slots that pick nothing."""
    if not scheduled.layout.scored:
        return scheduled
    return Scheduled(scheduled.request, scheduled.layout.picking)


def picking_spans(scheduled: Scheduled, spans: Sequence[slice]) -> Sequence[slice]:
    """Where the logits lie that it picks from; `spans` are those of all wanted slots of its rows."""
    scored = scheduled.layout.scored
    if not scored:
        return spans
    causal, *others = spans
    return [slice(causal.start + scored, causal.stop), *others]


def with_scores(decision: Decision, scheduled: Scheduled, spans: Sequence[slice], logits: Tensor) -> Decision:
    """The decision with the log-probabilities that its forward was asked for; `logits` are the forward's.

    Logits that are NaN fail the request, as everywhere.
    """
    request, layout = scheduled.request, scheduled.layout
    wanted, start = request.params.prompt_logprobs, spans[0].start
    if not layout.scored or wanted is None or isinstance(decision, Unpickable):
        return decision
    first = layout.rows[0].prefix + 1
    known = request.prompt[first : first + layout.scored]
    tokens = torch.tensor(known, dtype=torch.long, device=logits.device)
    scores = logprobs(logits[start : start + layout.scored], tokens, wanted)
    if any(isnan(score.logprob) for score in scores):
        return UnpickableLogits([request])
    return replace(decision, prompt_logprobs=scores)
