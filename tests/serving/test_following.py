"""A request's metrics, access line, span and answer tell one story."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from itertools import islice

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.fake import EOS, Script, Slip, encode, engine

from recguide.core import ParameterError, SamplingParams
from recguide.engine.client import EngineError
from recguide.engine.errors import DeadlineExceeded
from recguide.serving.following import ACCESS, Follower
from recguide.serving.logs import JsonFormatter, configure_logs
from recguide.serving.metrics import Metrics
from recguide.serving.otel import spans

PROMPT = tuple(encode("Say it: "))
ANSWER = (*encode("the quick brown fox jumps over the lazy dog, and then it naps."), EOS)
SLIPS = {len(PROMPT) + at: Slip(second_right=at % 2 == 0) for at in (3, 9, 20, 31, 44)}


class Clock:
    """A second passes whenever someone looks."""

    now = 0.0

    def __call__(self):
        self.now += 1
        return self.now


@pytest.fixture
def follower():
    return Follower(Metrics(), clock=Clock())


@pytest.fixture
def lines(caplog):
    """The access lines' fields."""
    caplog.set_level(logging.INFO, ACCESS.name)
    return lambda: [record.fields for record in caplog.records if record.name == ACCESS.name]


def chunks(max_tokens=90, **params):
    machine = engine(Script(PROMPT, ANSWER, SLIPS))
    machine.add(PROMPT, SamplingParams(max_tokens=max_tokens, **params))
    while machine.busy:
        yield from (chunk for _, chunk in machine.step())


def follow(follower, error=None, after=1, **params):
    """A request that is answered, or interrupted by an error after so many chunks."""
    with follower.request("r-1", "/v1/completions", [len(PROMPT)]) as followed:
        for count, chunk in enumerate(chunks(**params), 1):
            followed.chunk(chunk)
            if error is not None and count == after:
                raise error
    return followed


def sample(follower, name, **labels):
    return follower.metrics.registry.get_sample_value(f"recguide:{name}", labels)


def test_an_answered_request_is_counted_once_everywhere(follower, lines):
    followed = follow(follower, method="recguide")
    (completion,) = followed.completions
    (line,) = lines()
    tokens = len(completion.token_ids)
    assert (line["outcome"], line["status"], line["tokens"]) == ("stop", 200, tokens)
    assert line["acceptance"] == pytest.approx(completion.stats.mean_acceptance, abs=1e-3)
    assert line["tokens_per_forward"] == pytest.approx(completion.stats.tpf, abs=1e-3)
    assert sample(follower, "requests_total", outcome="stop") == 1
    assert sample(follower, "requests_in_flight") == 0
    assert sample(follower, "time_to_first_token_seconds_sum") == line["first_token_seconds"] == 1.0
    emitting = completion.stats.blocks.total()  # and prefill, whose chunk is the first
    assert sample(follower, "inter_token_latency_seconds_count") == emitting
    answer = followed.answer_metrics()
    assert answer["time_to_first_token_ms"] == 1000.0
    assert answer["generation_time_ms"] == 1000.0 * emitting
    assert answer["tokens_per_second"] == pytest.approx((tokens - 1) / emitting)
    assert answer["speculative_decoding"]["num_spec_steps"] == completion.stats.rounds


def test_choices_are_timed_apart(follower, lines):
    followed = follow(follower, n=2, method="ar", temperature=1.0, seed=3)
    assert [completion.index for completion in followed.completions] == [0, 1]
    assert sample(follower, "time_to_first_token_seconds_count") == 2
    assert sample(follower, "requests_total", outcome=lines()[0]["outcome"]) == 1
    assert lines()[0]["tokens"] == sum(len(one.token_ids) for one in followed.completions)


def test_a_cap_tells_more_than_a_stop(follower, lines):
    with follower.request("r", "/v1/completions", [8, 8]) as followed:
        for prompt, cap in enumerate((4, 90)):
            for chunk in chunks(max_tokens=cap):
                followed.chunk(chunk, prompt)
    assert [len(one.token_ids) for one in followed.completions] == [4, 63]
    assert lines()[0]["outcome"] == "length"


@pytest.mark.parametrize(
    ("error", "outcome", "status"),
    [
        (asyncio.CancelledError(), "abort", 499),
        (GeneratorExit(), "abort", 499),
        (DeadlineExceeded("late"), "deadline", 504),
        (ParameterError("n", "must be 1"), "refused", 400),
        (EngineError("gone"), "error", 503),
        (KeyError("oh"), "error", 500),
    ],
)
def test_an_interrupted_request_says_why(follower, lines, error, outcome, status):
    with pytest.raises(type(error)):
        follow(follower, error)
    (line,) = lines()
    assert (line["outcome"], line["status"], line["tokens"]) == (outcome, status, 1)
    assert sample(follower, "requests_total", outcome=outcome) == 1
    assert sample(follower, "requests_in_flight") == 0


def test_an_aborted_request_still_tells_its_acceptance(follower, lines):
    rounds = [len(chunk.token_ids) for chunk in islice(chunks(method="linear"), 1, 5)]  # prefill comes first
    with pytest.raises(GeneratorExit):
        follow(follower, GeneratorExit(), after=5, method="linear")
    (line,) = lines()
    assert line["acceptance"] == pytest.approx(sum(rounds) / 4, abs=1e-3)
    assert line["acceptance"] > 1
    assert line["tokens_per_forward"] is None


def test_a_request_that_got_nothing_was_aborted(follower, lines):
    with follower.request("r-1", "/v1/completions", [8]):
        pass
    assert lines()[0]["outcome"] == "abort"
    assert lines()[0]["first_token_seconds"] is None


# --- logs ---------------------------------------------------------------------------------------------------


@pytest.fixture
def restored_loggers():
    names = ("recguide", "uvicorn", "uvicorn.error", "uvicorn.access")
    kept = [(logging.getLogger(name), dict(vars(logging.getLogger(name)))) for name in names]
    yield
    for logger, state in kept:
        for name in ("handlers", "propagate", "level", "disabled"):
            setattr(logger, name, state[name])


@pytest.mark.usefixtures("restored_loggers")
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_a_record(follower, monkeypatch, form):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logs(form)
    follow(follower, method="recguide")
    logging.getLogger("recguide.other").debug("not at this level")
    *_, line = stream.getvalue().splitlines()
    if form == "json":
        told = json.loads(line)
        assert (told["level"], told["logger"], told["request_id"]) == ("info", "recguide.access", "r-1")
        assert told["tokens_per_forward"] > 1
    else:
        assert "r-1 /v1/completions 200 stop: 8 + 63 tokens" in line


def test_json_keeps_a_traceback_in_its_line():
    try:
        raise ValueError("boom\nwith a second line")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed: %s", ("why",), sys.exc_info())
    told = json.loads(JsonFormatter().format(record))
    assert told["message"] == "failed: why"
    assert "second line" in told["exception"]


# --- spans --------------------------------------------------------------------------------------------------


@pytest.fixture
def exporter(monkeypatch):
    """Where the spans go instead of a collector."""
    kept = InMemorySpanExporter()
    monkeypatch.setattr("recguide.serving.spans.otlp_exporter", lambda _: kept)
    monkeypatch.setattr("recguide.serving.spans.BatchSpanProcessor", SimpleSpanProcessor)
    return kept


def test_a_request_is_a_child_of_its_clients_span(exporter):
    follower = Follower(Metrics(), spans("http://collector", "tiny"))
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with follower.request("r-1", "/v1/chat/completions", [8], headers={"traceparent": parent}) as followed:
        for chunk in chunks(method="recguide"):
            followed.chunk(chunk)
    (span,) = exporter.get_finished_spans()
    assert span.name == "chat tiny"
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert [event.name for event in span.events] == ["queued", "first token", "finished"]
    assert span.attributes["gen_ai.usage.output_tokens"] == 63
    assert span.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert span.attributes["recguide.acceptance"] > 1
    assert span.status.status_code is StatusCode.UNSET


def test_a_failed_request_is_a_failed_span(exporter):
    follower = Follower(Metrics(), spans("http://collector", "tiny"))
    with pytest.raises(EngineError):
        follow(follower, EngineError("gone"))
    assert exporter.get_finished_spans()[0].status.status_code is StatusCode.ERROR


def test_spans_without_the_extra_name_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "recguide.serving.spans", raising=False)
    with pytest.raises(ParameterError, match=r"recguide\[otel\]"):
        spans("http://collector", "tiny")
