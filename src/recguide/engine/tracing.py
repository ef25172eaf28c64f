"""Traces: what every verified round was, written while the next forward runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from recguide.core import ParameterError
from recguide.engine.config import EngineConfig
from recguide.engine.planning import head, rank
from recguide.engine.reports import DRAFT
from recguide.engine.request import Request
from recguide.engine.rounds import Verdict
from recguide.guidance.conditions import Conditions
from recguide.guidance.records import RoundRecord
from recguide.guidance.trace_file import TraceWriter
from recguide.guidance.view import Head
from recguide.speculation.rows import Branch, BranchKind, Draft, Phase

_LOG = logging.getLogger(__name__)


def trace_header(config: EngineConfig, conditions: Conditions) -> dict[str, object]:
    """Policy and provenance."""
    return {
        "policy": config.policy,
        "batching": config.batching,
        "method": config.method,
        "block_size": config.block_size,
        "conditions": asdict(conditions),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


ANY = -1
"""Stands for the head of a branch that takes any token."""


class Tracer:
    """Records the rounds of requests that have a history and are no warm-up.

    A file that can no longer be written ends the trace, never a request.

    Args:
        file: where to.
        header: policy and provenance.

    Raises ParameterError if the file cannot be begun.
    """

    def __init__(self, file: Path, header: Mapping[str, object]) -> None:
        try:
            self._writer: TraceWriter | None = TraceWriter(file, header)
        except OSError as error:
            raise ParameterError("trace", f"{file} cannot be written: {error.strerror}") from error
        self._file = file
        self._waiting: list[RoundRecord] = []

    @property
    def on(self) -> bool:
        return self._writer is not None

    def note(self, request: Request, verdict: Verdict, price: float, forward_ms: float) -> None:
        """Takes down a round before its request is told of it."""
        layout = verdict.layout
        if request.history is None or not request.traced or layout.phase is not Phase.VERIFY:
            return
        history, draft = request.history, layout.draft
        record = RoundRecord(
            set="",
            prompt=str(request.arrival),
            position=len(request.emitted) - 1,
            block=1 if draft is None else len(draft.tokens),
            verified=len(layout.block),
            acceptance=verdict.acceptance,
            margins=() if draft is None else _short(draft.margins[1:]),
            rank=rank(verdict),
            head=head(request, verdict),
            entropies=_short(verdict.entropies),
            signals=history.signals,
            previous=history.previous,
            full=history.full,
            branches=tuple([(branch.slot, _head(branch, draft), branch.block) for branch in layout.branches]),
            reused=-1 if verdict.reused is None else layout.branches.index(verdict.reused),
            price=round(price, 6),
            query_tokens=layout.query_tokens,
            likely=() if draft is None else _short(draft.likely[1:]),
            candidates=() if draft is None else draft.candidates[0][1:],
            drafted_by="" if draft is None else draft.branch or DRAFT,
            forward_ms=round(forward_ms, 3),
        )
        self._waiting.append(record)

    def write(self, *, idle: bool) -> None:
        """Writes what was noted; all of it reaches the file if the engine is idle."""
        waiting, self._waiting = self._waiting, []
        if self._writer is None:
            return
        try:
            for record in waiting:
                self._writer.add(record)
            if idle:
                self._writer.flush()
        except OSError as error:
            self._give_up(self._writer, error)

    def close(self) -> None:
        """Ends the file."""
        self.write(idle=True)
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        try:
            writer.close()
        except OSError as error:
            self._give_up(writer, error)

    def _give_up(self, writer: TraceWriter, error: OSError) -> None:
        _LOG.warning("the trace %s ends here: %s", self._file, error)
        writer.abandon()
        self._writer = None


def _short(values: Sequence[float]) -> tuple[float, ...]:
    """They come in single precision, and a million rounds take room."""
    return tuple([round(value, 6) for value in values])


def _head(branch: Branch, draft: Draft | None) -> int:
    if branch.kind is BranchKind.CONTINUATION:
        return Head.CONTINUATION
    if branch.kind is BranchKind.ANY or draft is None:
        return ANY
    return next(rank for rank, row in enumerate(draft.candidates, 1) if row[branch.slot] == branch.head)
