"""Records made up for tests of what is reckoned from them."""

from __future__ import annotations

from recguide.bench.load.record import Arrival, Record


def record(
    arrivals=((0.1, 3, None),),
    *,
    turn=0,
    number=0,
    scheduled_s=0.0,
    sent_s=None,
    ended_s=1.0,
    output_tokens=None,
    error=None,
    text="",
    finish_reason="stop",
    speculation=None,
):
    return Record(
        turn=turn,
        number=number,
        prompt=number,
        scheduled_s=scheduled_s,
        sent_s=scheduled_s if sent_s is None else sent_s,
        ended_s=ended_s,
        arrivals=tuple(Arrival(*arrival) for arrival in arrivals),
        text=text,
        finish_reason=finish_reason,
        prompt_tokens=None if output_tokens is None else 7,
        cached_tokens=None,
        output_tokens=output_tokens,
        error=error,
        detail="",
        speculation=speculation,
    )
