"""`recguide serve`: an OpenAI-compatible server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recguide.cli.console import err, note, print_json
from recguide.cli.options import Json, LoadOptions, Model, fills, loading
from recguide.cli.serving_options import ServerOptions, engine, recipe, server

if TYPE_CHECKING:
    from recguide.engine.wire import Facts


@fills(load=loading, server=server, engine=engine)
def serve(
    model: Model,
    *,
    uds: Annotated[
        Path | None, typer.Option(help="Unix socket to listen at instead of host and port.")
    ] = None,
    replay_acceptance: Annotated[
        bool,
        typer.Option(
            "--replay-acceptance",
            help="Drafts fare as published, with all computation real, for planning: nld-8b, nld-14b.",
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Record every round; recguide trace shows it.", show_default=False),
    ] = None,
    json_output: Json = False,
    server: ServerOptions,
    engine: dict[str, Any],
    load: LoadOptions,
) -> None:
    """Serve a model to OpenAI's clients.

    Listens at localhost unless told otherwise. SIGTERM lets running requests finish. With --json
    one object on stdout says that the server is ready, and where. Exit status 1: the engine failed.

    Example: [bold]recguide serve smollm2-135m --port 8000[/bold]

    Example: [bold]recguide serve FOLDER --host 0.0.0.0 --api-key KEY --served-model-name my-model[/bold]
    """
    from recguide.core import ParameterError
    from recguide.engine.spawned import spawn_engine
    from recguide.serving.app import create_app
    from recguide.serving.logs import configure_logs
    from recguide.serving.server import Listening
    from recguide.serving.server import serve as run

    settings = server.named(model)
    configure_logs(server.log_format, server.log_level)
    listening = Listening(host=server.host, port=server.port, uds=uds)
    if trace is not None:
        engine["trace"] = trace.absolute()
    spawned = spawn_engine(recipe(model, load, engine, replayed=replay_acceptance))

    def ready(facts: Facts, at: Listening) -> None:
        if json_output:
            print_json(_object(facts, settings.models, str(at)))
        else:
            _banner(facts, settings.models, str(at), open_to_all=not settings.api_keys)
            if settings.dashboard:
                note(f"dashboard at {at}/")

    status = run(create_app(spawned, settings), listening, ready)
    if spawned.refusal:
        raise ParameterError("model", spawned.fault or "")
    raise typer.Exit(status)


def _banner(facts: Facts, models: tuple[str, ...], where: str, *, open_to_all: bool) -> None:
    err().print(f"[bold]{', '.join(models)}[/bold] at [bold]{where}/v1[/bold]", highlight=False)
    note(f"{facts.name} on {facts.device} in {facts.dtype}, context of {facts.max_model_len} tokens")
    note(str(facts.memory))
    note(f"{facts.planning}, at most {facts.max_running} requests decode together")
    if facts.acceptance:
        note(f"drafts are not the model's own: {facts.acceptance}")
    if open_to_all:
        note("no API key: whoever reaches this address may use it")


def _object(facts: Facts, models: tuple[str, ...], where: str) -> dict[str, object]:
    import msgspec

    return {"url": f"{where}/v1", "models": models, **msgspec.to_builtins(facts)}
