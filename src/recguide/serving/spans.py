"""OpenTelemetry spans: one for every request, a child of the client's if that has one."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from recguide.serving.following import FAILED, LATE, BeginSpan

NAMES: Mapping[str, str] = {
    "request_id": "gen_ai.response.id",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "tokens": "gen_ai.usage.output_tokens",
    "status": "http.response.status_code",
    "route": "http.route",
}
"""What OpenTelemetry's conventions have a name for; the rest goes under ours."""


def otlp_exporter(endpoint: str) -> SpanExporter:
    """Sends spans to a collector over HTTP."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint)


def spans_to(exporter: SpanExporter, model: str) -> BeginSpan:
    """Begins spans of a model's requests; they are exported in the background."""
    provider = TracerProvider(resource=Resource.create({"service.name": "recguide"}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer, propagator = provider.get_tracer("recguide"), TraceContextTextMapPropagator()

    def begin(request_id: str, route: str, headers: Mapping[str, str]) -> RequestSpan:
        return RequestSpan(_begun(tracer, propagator, request_id, route, headers, model))

    return begin


def _begun(
    tracer: Tracer,
    propagator: TraceContextTextMapPropagator,
    request_id: str,
    route: str,
    headers: Mapping[str, str],
    model: str,
) -> Span:
    operation = "chat" if "chat" in route else "text_completion"
    return tracer.start_span(
        f"{operation} {model}",
        context=propagator.extract(dict(headers)),
        kind=SpanKind.SERVER,
        attributes={
            NAMES["request_id"]: request_id,
            NAMES["route"]: route,
            "gen_ai.operation.name": operation,
            "gen_ai.request.model": model,
        },
    )


class RequestSpan:
    """A request's span; it begins in the queue."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.event("queued")

    def event(self, name: str) -> None:
        self._span.add_event(name)

    def end(self, outcome: str, fields: Mapping[str, object]) -> None:
        self.event("finished")
        self._span.set_attribute("gen_ai.response.finish_reasons", [outcome])
        for name, value in fields.items():
            if isinstance(value, str | int | float):
                self._span.set_attribute(NAMES.get(name, f"recguide.{name}"), value)
        if outcome in (FAILED, LATE):
            self._span.set_status(Status(StatusCode.ERROR, outcome))
        self._span.end()
