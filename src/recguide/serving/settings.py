"""What a server is told once, before any request."""

from __future__ import annotations

from dataclasses import dataclass

from recguide.core import ParameterError

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How the server meets its clients.

    Attributes:
        models: names that requests may call the model by, the first in answers; empty for the model's own.
        api_keys: keys of which a request must bear one; empty lets everyone in.
        cors_origins: web origins whose pages may call; empty for none, "*" for all.
        max_body_bytes: longest request body.
        timeout_s: what a request gets that names no timeout; None is no limit.
        drain_s: how long running requests may take to finish once the server is told to stop.
        dashboard: whether there is a page at /.
        vllm_metric_names: whether /metrics also has the names that vLLM's dashboards ask for.
        otlp_endpoint: where spans of requests go; None makes none.
    """

    models: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 32 * MIB
    timeout_s: float | None = None
    drain_s: float = 30.0
    dashboard: bool = True
    vllm_metric_names: bool = False
    otlp_endpoint: str | None = None

    @property
    def name(self) -> str:
        """What metrics and spans call the model."""
        return self.models[0] if self.models else "recguide"

    def __post_init__(self) -> None:
        checks = (
            ("served_model_name", all(self.models), "must not be empty"),
            ("api_key", all(self.api_keys), "must not be empty; leave it out to let everyone in"),
            ("api_key", all(key.isascii() for key in self.api_keys), "must be ASCII, as headers are"),
            ("max_body_bytes", self.max_body_bytes >= 1, "must be at least 1"),
            ("timeout", self.timeout_s is None or self.timeout_s > 0, "must be above 0, or None for none"),
            ("drain", self.drain_s >= 0, "must be at least 0"),
        )
        for name, ok, message in checks:
            if not ok:
                raise ParameterError(name, message)
