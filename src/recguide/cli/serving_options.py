"""Options that `serve` and `deploy` share: how a server meets its clients, and how its engine runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recguide.cli.options import LoadOptions

if TYPE_CHECKING:
    from recguide.engine.process import Recipe
    from recguide.serving.logs import LogFormat
    from recguide.serving.settings import ServerSettings

_SERVER, _ENGINE = "Server", "Engine"
_REPLAYING = "recguide.bench.acceptance.assembly:assemble"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where a server listens, how it meets its clients, and how it logs."""

    host: str
    port: int
    settings: ServerSettings
    log_format: LogFormat
    log_level: str

    def named(self, model: str) -> ServerSettings:
        """The settings; a model that is given no name is called as it was asked for."""
        return self.settings if self.settings.models else replace(self.settings, models=(model,))


def server(
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 is all.", rich_help_panel=_SERVER)
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, rich_help_panel=_SERVER)] = 8000,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="Name of the model in requests; repeat for more.", rich_help_panel=_SERVER),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="Key that requests must bear; repeat for more.",
            envvar="RECGUIDE_API_KEY",
            show_envvar=True,
            rich_help_panel=_SERVER,
        ),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(help="Web origin that may call, or *; repeat for more.", rich_help_panel=_SERVER),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds that a request may take that names none.", rich_help_panel=_SERVER),
    ] = None,
    drain: Annotated[
        float, typer.Option(help="Seconds that running requests get at the end.", rich_help_panel=_SERVER)
    ] = 30.0,
    max_body_mib: Annotated[
        int, typer.Option(min=1, help="Longest request body.", rich_help_panel=_SERVER)
    ] = 32,
    log_format: Annotated[
        str, typer.Option(help="text or json.", rich_help_panel=_SERVER, metavar="FORMAT")
    ] = "text",
    log_level: Annotated[
        str, typer.Option(help="debug, info, warning, error.", rich_help_panel=_SERVER)
    ] = "info",
    vllm_metric_names: Annotated[
        bool,
        typer.Option(
            "--vllm-metric-names",
            help="Metrics also under the names of vLLM's dashboards.",
            rich_help_panel=_SERVER,
        ),
    ] = False,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            help="OpenTelemetry spans go there, as http://localhost:4318/v1/traces; needs the extra otel.",
            metavar="URL",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    dashboard: Annotated[
        bool,
        typer.Option("--dashboard/--no-dashboard", help="A page at /.", rich_help_panel=_SERVER),
    ] = True,
) -> ServerOptions:
    """How a server meets its clients. Raises ParameterError for what cannot be."""
    from recguide.core import ParameterError
    from recguide.serving.settings import MIB, ServerSettings

    if log_format != "text" and log_format != "json":
        raise ParameterError("log_format", f"{log_format!r} is not one of text, json")
    settings = ServerSettings(
        models=tuple(served_model_name or ()),
        api_keys=tuple(api_key or ()),
        cors_origins=tuple(cors or ()),
        max_body_bytes=max_body_mib * MIB,
        timeout_s=timeout,
        drain_s=drain,
        dashboard=dashboard,
        vllm_metric_names=vllm_metric_names,
        otlp_endpoint=otlp_endpoint,
    )
    return ServerOptions(host, port, settings, log_format, log_level)


def engine(
    method: Annotated[
        str | None,
        typer.Option(
            help="Of requests that name none: recguide, linear, tidar, ar, diffusion.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(
            help="Of requests that name none.", show_default="the policy's choice", rich_help_panel=_ENGINE
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="Chooses blocks and branches: price, paper, fixed, fixed-16 ..., ar.",
            rich_help_panel=_ENGINE,
        ),
    ] = "price",
    max_running: Annotated[
        int, typer.Option(help="Requests that decode together at most.", rich_help_panel=_ENGINE)
    ] = 64,
    max_batch_tokens: Annotated[
        int, typer.Option(help="Query tokens of a forward at most.", rich_help_panel=_ENGINE)
    ] = 1024,
    max_waiting: Annotated[
        int, typer.Option(help="Requests that may wait; more get status 429.", rich_help_panel=_ENGINE)
    ] = 1024,
    page_size: Annotated[
        int | None, typer.Option(help="Tokens of a KV page.", rich_help_panel=_ENGINE)
    ] = None,
    gpu_memory_utilisation: Annotated[
        float, typer.Option(help="Share of a GPU's memory that may be in use.", rich_help_panel=_ENGINE)
    ] = 0.9,
    graphs: Annotated[
        bool | None,
        typer.Option(
            "--graphs/--no-graphs",
            help="CUDA graphs.",
            show_default="where they can",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
) -> dict[str, Any]:
    """How the engine runs: keyword arguments of EngineConfig; None where its own default stands."""
    return {
        "method": method,
        "block_size": block_size,
        "policy": policy,
        "max_running": max_running,
        "max_batch_tokens": max_batch_tokens,
        "max_waiting": max_waiting,
        "page_size": page_size,
        "gpu_memory_utilisation": gpu_memory_utilisation,
        "graphs": graphs,
    }


def recipe(model: str, load: LoadOptions, engine: dict[str, Any], *, replayed: bool = False) -> Recipe:
    """What the engine's process is told to load and run; it may start in another folder than this one."""
    from recguide.bench.acceptance.process import LABEL
    from recguide.engine.process import Recipe

    options = {
        **engine,
        "kv_cache_tokens": load.kv_cache_tokens,
        "prefix_cache": load.prefix_cache,
        "max_model_len": load.max_model_len,
        "exact": load.exact,
        "batching": load.batching,
        "cost_table": load.cost_table and load.cost_table.absolute(),
        "value_table": load.value_table and load.value_table.absolute(),
    }
    return Recipe(
        source=str(Path(model).absolute()) if Path(model).is_dir() else model,
        loading={
            "adapter": load.adapter,
            "dtype": load.dtype,
            "device": load.device,
            "revision": load.revision,
            "load_format": load.load_format,
            "exact": load.exact,
        },
        engine={name: value for name, value in options.items() if value is not None},
        **({"assembly": _REPLAYING, "acceptance": LABEL} if replayed else {}),
    )
