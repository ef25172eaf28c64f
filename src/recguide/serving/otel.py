"""The door to OpenTelemetry, whose libraries are the extra [otel]."""

from __future__ import annotations

from recguide.core import ParameterError
from recguide.serving.following import BeginSpan


def spans(endpoint: str, model: str) -> BeginSpan:
    """Spans of a model's requests go to a collector's OTLP endpoint, as http://localhost:4318/v1/traces.

    Raises ParameterError without the extra.
    """
    try:
        from recguide.serving.spans import otlp_exporter, spans_to
    except ImportError as error:
        raise ParameterError(
            "otlp_endpoint", f"needs OpenTelemetry ({error}); pip install 'recguide[otel]'"
        ) from error
    return spans_to(otlp_exporter(endpoint), model)
