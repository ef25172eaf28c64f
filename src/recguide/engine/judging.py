"""Who decides: the device for nearly all requests, this host for those whose picks take the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide.core import TokenLogprobs, Vocabulary
from recguide.engine.constraining import Drafted, constrain
from recguide.engine.docket import BY_HOST, NO_BLOCK, spans_of
from recguide.engine.flight import Flight, Landed
from recguide.engine.picking import Unpickable, UnpickableLogits, pick_on_host
from recguide.engine.rounds import (
    Decision,
    Listed,
    Settled,
    Slots,
    Verdict,
    decided,
    settle_on_host,
)
from recguide.engine.scheduler import Scheduled
from recguide.engine.scoring import picking, picking_spans, with_scores
from recguide.speculation.noise import LuckyTokens
from recguide.speculation.picks import logprobs
from recguide.speculation.step import VERDICT, StepOutput

Spans = Sequence[Sequence[slice]]
"""For each request, where the wanted slots of each of its rows lie among the W logits."""


class Judge:
    """Turns what came of a forward into verdicts.

    Args:
        vocabulary: the model's.
        device: where its logits lie.
    """

    def __init__(self, vocabulary: Vocabulary, device: torch.device) -> None:
        self._vocabulary = vocabulary
        # Drafts, branches and verification of a position all ask which tokens its noise favours.
        self._luck = LuckyTokens(vocabulary.size, device=device)

    def decide(self, flight: Flight, landed: Landed) -> list[Decision | None]:
        """One decision for each request of the flight; None for those that have ended meanwhile."""
        if flight.steps is not None and landed.output is not None and not np.count_nonzero(landed.output.bad):
            return _steps(flight.plan, landed.output)
        plan, docket = flight.plan, flight.docket
        decisions: list[Decision | None] = [None] * len(plan)
        by_host: list[int] = []
        said = None if landed.output is None else _Said(landed.output, docket.blocks, len(plan))
        for i, (scheduled, place) in enumerate(zip(plan, docket.places, strict=True)):
            if scheduled.request.finish_reason is not None:
                continue
            if place == BY_HOST:
                by_host.append(i)
            else:
                assert said is not None, "the device decides only where it has picked"
                decisions[i] = said.decision(scheduled, docket.spans[i], place)
        if by_host:
            work = [picking(plan[i]) for i in by_host]
            spans = [picking_spans(plan[i], docket.spans[i]) for i in by_host]
            found = self._by_logits(work, spans, landed.logits)
            for i, decision in zip(by_host, found, strict=True):
                decisions[i] = with_scores(decision, plan[i], docket.spans[i], landed.logits)
        return decisions

    def _by_logits(self, plan: Sequence[Scheduled], spans: Spans, logits: Tensor) -> list[Decision]:
        """Picks and settles requests here; `spans` of their rows among the logits [.., vocab]."""
        wanted = _gathered(logits, spans)
        mine = spans_of(plan)
        try:
            answers = Listed.of(pick_on_host(wanted, plan, self._vocabulary, self._luck))
            settled = settle_on_host(plan, mine, answers)
            verdicts = [
                decided(scheduled, rows, answers, outcome)
                for scheduled, rows, outcome in zip(plan, mine, settled, strict=True)
            ]
            verdicts = self._constrained(verdicts, plan, mine, wanted)
        except Unpickable as error:
            return self._without(error, plan, spans, logits)
        return [
            _with_logprobs(verdict, scheduled, wanted[rows[0]])
            for verdict, scheduled, rows in zip(verdicts, plan, mine, strict=True)
        ]

    def _constrained(
        self, verdicts: Sequence[Verdict], plan: Sequence[Scheduled], spans: Spans, logits: Tensor
    ) -> list[Verdict]:
        """The verdicts with drafts in hand that keep to their requests' grammars."""
        drafts = {
            i: drafted
            for i, (verdict, scheduled, rows) in enumerate(zip(verdicts, plan, spans, strict=True))
            if (drafted := _drafted(verdict, scheduled, rows, logits)) is not None
        }
        if not drafts:
            return list(verdicts)
        kept = dict(zip(drafts, constrain(list(drafts.values()), self._vocabulary, self._luck), strict=True))
        return [
            replace(verdict, draft=kept[i]) if i in kept else verdict for i, verdict in enumerate(verdicts)
        ]

    def _without(
        self, error: Unpickable, plan: Sequence[Scheduled], spans: Spans, logits: Tensor
    ) -> list[Decision]:
        """The same without the requests whose logits are to blame."""
        failed = set(error.requests)
        well = [i for i, scheduled in enumerate(plan) if scheduled.request not in failed]
        decisions: list[Decision] = [error] * len(plan)
        if well:
            found = self._by_logits([plan[i] for i in well], [spans[i] for i in well], logits)
            for i, decision in zip(well, found, strict=True):
                decisions[i] = decision
        return decisions


def _steps(plan: Sequence[Scheduled], output: StepOutput) -> list[Decision | None]:
    """The verdicts on plain steps that the device has picked: the same as any other's, sooner."""
    columns = (output.tokens, output.stopped, output.entropies, output.logprobs)
    return [
        None
        if scheduled.request.finish_reason is not None
        else Verdict(
            scheduled.layout,
            (token,),
            1,
            bool(stopped),
            () if scheduled.request.params.logprobs is None else (TokenLogprobs(logprob, {}),),
            entropies=(entropy,),
        )
        for scheduled, token, stopped, entropy, logprob in zip(
            plan, *(column[: len(plan)].tolist() for column in columns), strict=True
        )
    ]


class _Said:
    """What the device said."""

    def __init__(self, output: StepOutput, blocks: Sequence[int], requests: int) -> None:
        self._output = output
        self._answers = _OfOne(output) if requests == 1 else _listed(output)
        self._all_well = np.count_nonzero(output.bad) == 0
        self._settled: list[Settled] = []
        if not blocks:
            return
        self._settled = [
            Settled._make((*verdict[:VERDICT], verdict[VERDICT:]))
            for verdict in output.verdicts[: len(blocks), : VERDICT + max(blocks)].tolist()
        ]

    def decision(self, scheduled: Scheduled, spans: Sequence[slice], place: int) -> Decision:
        output = self._output
        if not self._all_well and any(output.bad[span].any() for span in spans):
            return UnpickableLogits([scheduled.request])
        settled = None if place == NO_BLOCK else self._settled[place]
        verdict = decided(scheduled, spans, self._answers, settled)
        if scheduled.request.params.logprobs is None or not verdict.tokens:
            return verdict
        values = output.logprobs[spans[0]][: len(verdict.tokens)].tolist()
        return replace(verdict, logprobs=tuple(TokenLogprobs(value, {}) for value in values))


def _listed(output: StepOutput) -> Listed:
    tokens, *candidates, _ = output.integers.tolist()
    p1, _, entropies, _ = output.reals.tolist()
    return Listed(tokens, p1, _margins(output.reals), candidates, entropies)


class _OfOne:
    """The answers to one request: what is asked for, out of the device's buffer."""

    def __init__(self, output: StepOutput) -> None:
        self._output = output

    def slots(self, span: slice) -> Slots:
        tokens, *candidates, _ = self._output.integers[:, span].tolist()
        reals = self._output.reals[:2, span]
        return Slots(tokens, reals[0].tolist(), _margins(reals), candidates)

    def entropies(self, span: slice) -> list[float]:
        return self._output.entropies[span].tolist()


def _margins(reals: NDArray[np.float32]) -> list[float]:
    """Of p1 and p2, in its first rows."""
    return np.subtract(reals[0], reals[1], dtype=np.float64).tolist()


def _gathered(logits: Tensor, spans: Spans) -> Tensor:
    """The logits of these spans, one after another; a view if they follow one another."""
    flat = [span for of_rows in spans for span in of_rows if span.stop > span.start]
    if not flat:
        return logits[:0]
    if all(one.stop == other.start for one, other in pairwise(flat)):
        return logits[flat[0].start : flat[-1].stop]
    return torch.cat([logits[span] for span in flat])


def _drafted(
    verdict: Verdict, scheduled: Scheduled, spans: Sequence[slice], logits: Tensor
) -> Drafted | None:
    """The draft in hand of a request with a grammar, and its row."""
    request, layout = scheduled.request, scheduled.layout
    if request.matcher is None or verdict.draft is None:
        return None
    number = 0 if verdict.reused is None else 1 + layout.branches.index(verdict.reused)
    return Drafted(
        request,
        request.matcher,
        [*request.emitted, *verdict.tokens],
        layout.rows[number],
        logits[spans[number]],
        verdict.draft,
    )


def _with_logprobs(verdict: Verdict, scheduled: Scheduled, logits: Tensor) -> Verdict:
    """Adds the raw log-probabilities of the emitted tokens; `logits` are those of the causal row."""
    wanted = scheduled.request.params.logprobs
    if wanted is None or not verdict.tokens:
        return verdict
    tokens = torch.tensor(verdict.tokens, dtype=torch.long, device=logits.device)
    return replace(verdict, logprobs=logprobs(logits[: len(tokens)], tokens, wanted))
