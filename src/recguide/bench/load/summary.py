"""What an endpoint did under a load, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from recguide.bench.load.distribution import Distribution
from recguide.bench.load.measures import (
    Counted,
    chunk_tokens,
    counted_by,
    e2e_ms,
    gaps_ms,
    inter_token_ms,
    tpot_ms,
    ttft_ms,
)
from recguide.bench.load.record import Record
from recguide.bench.load.slo import Slo
from recguide.bench.load.speculation import Speculation


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that kept the SLO, out of all that were due.

    Attributes:
        share: of the requests.
        per_s: a second; None where an answer's tokens, so whether it was good, are not known.
    """

    slo: str
    share: float | None
    per_s: float | None


@dataclass(frozen=True, slots=True)
class Tokens:
    """Sums over whole answers, by the server's `usage`; `unknown` answers came without."""

    prompt: int
    cached: int
    output: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Summary:
    """One endpoint's load.

    Latencies are those of whole answers; failures are counted, and count as missed in goodput.

    Attributes:
        requests, whole: sent, and answered to the end.
        errors: kind → how many.
        finish_reasons: reason → how many.
        busy_s: from each turn's start to its last answer, added up: what rates divide by.
        requests_per_s, output_tokens_per_s: of whole answers; the latter None if any came without usage.
        ttft_ms, tpot_ms, e2e_ms: one value a request.
        inter_token_ms: one value a token, see `measures`.
        gap_ms: one value a chunk after the first.
        chunk_tokens: tokens of a chunk.
        counted_by: how a chunk's tokens are known.
        late_ms: how much later than due the client sent; it is part of the latencies.
        lag_ms: how late the client's event loop woke.
    """

    requests: int
    whole: int
    errors: Mapping[str, int]
    finish_reasons: Mapping[str, int]
    busy_s: float
    requests_per_s: float
    output_tokens_per_s: float | None
    tokens: Tokens
    ttft_ms: Distribution | None
    tpot_ms: Distribution | None
    inter_token_ms: Distribution | None
    gap_ms: Distribution | None
    e2e_ms: Distribution | None
    chunk_tokens: Distribution | None
    counted_by: Counted | None
    late_ms: Distribution | None
    lag_ms: Distribution | None
    goodput: Goodput | None
    speculation: Speculation | None


def summarise(records: Sequence[Record], lag_ms: Sequence[float], slo: Slo | None) -> Summary:
    whole = [record for record in records if record.error is None]
    busy_s, tokens = busy_seconds(records), _tokens(whole)
    inter_token = [pair for record in whole for pair in inter_token_ms(record)]
    return Summary(
        requests=len(records),
        whole=len(whole),
        errors=dict(Counter(record.error for record in records if record.error is not None)),
        finish_reasons=dict(Counter(str(record.finish_reason) for record in whole)),
        busy_s=busy_s,
        requests_per_s=_rate(len(whole), busy_s),
        output_tokens_per_s=None if tokens.unknown else _rate(tokens.output, busy_s),
        tokens=tokens,
        ttft_ms=_known(ttft_ms(record) for record in whole),
        tpot_ms=_known(tpot_ms(record) for record in whole),
        inter_token_ms=Distribution.of([ms for ms, _ in inter_token], [weight for _, weight in inter_token]),
        gap_ms=Distribution.of([gap for record in whole for gap in gaps_ms(record)]),
        e2e_ms=Distribution.of([e2e_ms(record) for record in whole]),
        chunk_tokens=_known(n or None for record in whole for n in chunk_tokens(record)),
        counted_by=_how(whole),
        late_ms=Distribution.of([1000 * (record.sent_s - record.scheduled_s) for record in records]),
        lag_ms=Distribution.of(lag_ms),
        goodput=None if slo is None else _goodput(records, slo, busy_s),
        speculation=Speculation.of(record.speculation for record in whole if record.speculation),
    )


def busy_seconds(records: Iterable[Record]) -> float:
    """From each turn's first due request to its last answer, added up."""
    turns: dict[int, list[Record]] = {}
    for record in records:
        turns.setdefault(record.turn, []).append(record)
    return sum(max(r.ended_s for r in turn) - min(r.scheduled_s for r in turn) for turn in turns.values())


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _known(values: Iterable[float | None]) -> Distribution | None:
    return Distribution.of([value for value in values if value is not None])


def _tokens(whole: Sequence[Record]) -> Tokens:
    return Tokens(
        prompt=sum(record.prompt_tokens or 0 for record in whole),
        cached=sum(record.cached_tokens or 0 for record in whole),
        output=sum(record.output_tokens or 0 for record in whole),
        unknown=sum(record.output_tokens is None for record in whole),
    )


def _how(whole: Sequence[Record]) -> Counted | None:
    """The weakest of the answers' ways."""
    ways = {counted_by(record) for record in whole if record.arrivals}
    if not ways or None in ways:
        return None
    return "characters" if "characters" in ways else "server"


def _goodput(records: Sequence[Record], slo: Slo, busy_s: float) -> Goodput:
    kept = [slo.kept(record) for record in records]
    if None in kept or not kept:
        return Goodput(str(slo), None, None)
    good = sum(bool(each) for each in kept)
    return Goodput(str(slo), good / len(kept), _rate(good, busy_s))
