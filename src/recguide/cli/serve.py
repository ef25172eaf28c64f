"""`recguide serve`: an OpenAI-compatible server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recguide.cli.console import err, note, print_json
from recguide.cli.options import Json, LoadOptions, Model, fills, loading

if TYPE_CHECKING:
    from recguide.engine.wire import Facts

_SERVER, _ENGINE = "Server", "Engine"


@fills(load=loading)
def serve(
    model: Model,
    *,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 is all.", rich_help_panel=_SERVER)
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, rich_help_panel=_SERVER)] = 8000,
    uds: Annotated[
        Path | None, typer.Option(help="Unix socket to listen at instead.", rich_help_panel=_SERVER)
    ] = None,
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
            help="Traces go there, as http://localhost:4318/v1/traces; needs the extra otel.",
            metavar="URL",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    dashboard: Annotated[
        bool,
        typer.Option("--dashboard/--no-dashboard", help="A page at /.", rich_help_panel=_SERVER),
    ] = True,
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
            help="Who chooses blocks and branches: price, paper, fixed (the recipe), fixed-16 ..., ar.",
            rich_help_panel=_ENGINE,
        ),
    ] = "price",
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Record every round; recguide trace shows it.", show_default=False, rich_help_panel=_ENGINE
        ),
    ] = None,
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
    json_output: Json = False,
    load: LoadOptions,
) -> None:
    """Serve a model to OpenAI's clients.

    Listens at localhost unless told otherwise. SIGTERM lets running requests finish. With --json
    one object on stdout says that the server is ready, and where. Exit status 1: the engine failed.

    Example: [bold]recguide serve smollm2-135m --port 8000[/bold]

    Example: [bold]recguide serve FOLDER --host 0.0.0.0 --api-key KEY --served-model-name my-model[/bold]
    """
    from recguide.core import ParameterError
    from recguide.engine.process import Recipe
    from recguide.engine.spawned import spawn_engine
    from recguide.serving.app import create_app
    from recguide.serving.logs import configure_logs
    from recguide.serving.server import Listening
    from recguide.serving.server import serve as run
    from recguide.serving.settings import MIB, ServerSettings

    settings = ServerSettings(
        models=tuple(served_model_name or (model,)),
        api_keys=tuple(api_key or ()),
        cors_origins=tuple(cors or ()),
        max_body_bytes=max_body_mib * MIB,
        timeout_s=timeout,
        drain_s=drain,
        dashboard=dashboard,
        vllm_metric_names=vllm_metric_names,
        otlp_endpoint=otlp_endpoint,
    )
    engine_options = {
        "method": method,
        "block_size": block_size,
        "policy": policy,
        "batching": load.batching,
        "cost_table": load.cost_table,
        "value_table": load.value_table,
        "trace": trace,
        "max_running": max_running,
        "max_batch_tokens": max_batch_tokens,
        "max_waiting": max_waiting,
        "kv_cache_tokens": load.kv_cache_tokens,
        "page_size": page_size,
        "prefix_cache": load.prefix_cache,
        "max_model_len": load.max_model_len,
        "gpu_memory_utilisation": gpu_memory_utilisation,
        "exact": load.exact,
        "graphs": graphs,
    }
    if log_format not in ("text", "json"):
        raise ParameterError("log_format", f"{log_format!r} is not one of text, json")
    configure_logs(log_format, log_level)
    listening = Listening(host=host, port=port, uds=uds)
    engine = spawn_engine(
        Recipe(
            source=model,
            loading=_loading(load),
            engine={name: value for name, value in engine_options.items() if value is not None},
        )
    )

    def ready(facts: Facts) -> None:
        if json_output:
            print_json(_object(facts, settings.models, str(listening)))
        else:
            _banner(facts, settings.models, str(listening), open_to_all=not settings.api_keys)
            if dashboard:
                note(f"dashboard at {listening}/")

    status = run(create_app(engine, settings), listening, ready)
    if engine.refusal:
        raise ParameterError("model", engine.fault or "")
    raise typer.Exit(status)


def _loading(load: LoadOptions) -> dict[str, Any]:
    return {
        "adapter": load.adapter,
        "dtype": load.dtype,
        "device": load.device,
        "revision": load.revision,
        "load_format": load.load_format,
        "exact": load.exact,
    }


def _banner(facts: Facts, models: tuple[str, ...], where: str, *, open_to_all: bool) -> None:
    err().print(f"[bold]{', '.join(models)}[/bold] at [bold]{where}/v1[/bold]", highlight=False)
    note(f"{facts.name} on {facts.device} in {facts.dtype}, context of {facts.max_model_len} tokens")
    note(str(facts.memory))
    note(f"{facts.planning}, at most {facts.max_running} requests decode together")
    if open_to_all:
        note("no API key: whoever reaches this address may use it")


def _object(facts: Facts, models: tuple[str, ...], where: str) -> dict[str, object]:
    import msgspec

    return {"url": f"{where}/v1", "models": models, **msgspec.to_builtins(facts)}
