"""A load as a file: provenance, settings, summaries, and every request."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recguide.bench.load.agreement import Agreement, agreement
from recguide.bench.load.measures import chunk_tokens, e2e_ms, gaps_ms, tpot_ms, ttft_ms
from recguide.bench.load.record import Record
from recguide.bench.load.run import Outcome, Plan
from recguide.bench.load.slo import Slo
from recguide.bench.load.summary import Summary, summarise
from recguide.bench.results import origin


@dataclass(frozen=True, slots=True)
class Loaded:
    """An endpoint, what it did, and that in numbers."""

    outcome: Outcome
    summary: Summary

    @property
    def name(self) -> str:
        return self.outcome.endpoint.name


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A finished load of one endpoint or of two.

    Attributes:
        settings: as asked, for people to read and repeat; no key of anybody.
        provenance: of the client, which needs no PyTorch; its device is where the load came from.
        agreement: of two endpoints' greedy texts.
    """

    settings: Mapping[str, Any]
    provenance: Mapping[str, str]
    loaded: tuple[Loaded, ...]
    agreement: Agreement | None

    def as_object(self) -> dict[str, Any]:
        """What `--json` prints: everything but the single requests."""
        return {
            "provenance": dict(self.provenance),
            "settings": dict(self.settings),
            "endpoints": [{**_endpoint(each), "summary": _summary(each.summary)} for each in self.loaded],
            "agreement": None if self.agreement is None else asdict(self.agreement),
        }

    def save(self, file: Path) -> None:
        """The same with every request, as JSON."""
        whole = self.as_object()
        for endpoint, each in zip(whole["endpoints"], self.loaded, strict=True):
            endpoint["requests"] = [_request(record) for record in each.outcome.records]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def conclude(
    outcomes: Sequence[Outcome], plan: Plan, slo: Slo | None, settings: Mapping[str, Any]
) -> LoadResult:
    """Numbers from records; texts of two endpoints are compared where decoding was greedy."""
    greedy = len(outcomes) == 2 and plan.asking.temperature == 0
    return LoadResult(
        settings=settings,
        provenance={"device": f"CPU {platform.machine()}", **origin()},
        loaded=tuple(Loaded(each, summarise(each.records, each.lag_ms, slo)) for each in outcomes),
        agreement=agreement(outcomes[0].records, outcomes[1].records) if greedy else None,
    )


def _endpoint(loaded: Loaded) -> dict[str, Any]:
    endpoint = loaded.outcome.endpoint
    return {
        "name": endpoint.name,
        "url": endpoint.url,
        "model": endpoint.model,
        "extra_body": dict(endpoint.extra_body),
    }


def _summary(summary: Summary) -> dict[str, Any]:
    fields = asdict(summary)
    if summary.speculation is not None:
        fields["speculation"]["mean_acceptance"] = summary.speculation.mean_acceptance
    return fields


def _request(record: Record) -> dict[str, Any]:
    return {
        "turn": record.turn,
        "number": record.number,
        "prompt": record.prompt,
        "scheduled_s": round(record.scheduled_s, 6),
        "late_ms": round(1000 * (record.sent_s - record.scheduled_s), 3),
        "ttft_ms": ttft_ms(record),
        "tpot_ms": tpot_ms(record),
        "e2e_ms": e2e_ms(record),
        "gaps_ms": [round(gap, 3) for gap in gaps_ms(record)],
        "chunk_tokens": _rounded(chunk_tokens(record)),
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "finish_reason": record.finish_reason,
        "error": record.error,
        "detail": record.detail,
        "text": record.text,
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]
