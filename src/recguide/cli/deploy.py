"""`recguide deploy`: replicas of a server on Ray Serve."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recguide.cli.console import err, note, print_json
from recguide.cli.options import Json, LoadOptions, Model, fills, loading
from recguide.cli.serving_options import ServerOptions, engine, recipe, server

if TYPE_CHECKING:
    from types import FrameType

    from recguide.serving.deploy.plan import Plan

_REPLICAS = "Replicas"


def replicas(
    replicas: Annotated[
        int, typer.Option(help="How many; the fewest where there may be more.", rich_help_panel=_REPLICAS)
    ] = 1,
    max_replicas: Annotated[
        int | None,
        typer.Option(help="As many under load.", show_default="no more", rich_help_panel=_REPLICAS),
    ] = None,
    target_requests: Annotated[
        float, typer.Option(help="Requests of a replica that scaling aims at.", rich_help_panel=_REPLICAS)
    ] = 16.0,
    cpus_per_replica: Annotated[
        float, typer.Option(help="CPU cores, or parts.", rich_help_panel=_REPLICAS)
    ] = 1.0,
    gpus_per_replica: Annotated[
        float | None,
        typer.Option(
            help="GPUs, or parts.", show_default="1 where the cluster has any", rich_help_panel=_REPLICAS
        ),
    ] = None,
) -> Plan:
    """How many replicas there are, and what each gets."""
    from recguide.serving.deploy.plan import Plan

    return Plan(
        replicas=replicas,
        max_replicas=max_replicas,
        target_requests=target_requests,
        cpus=cpus_per_replica,
        gpus=gpus_per_replica,
    )


@fills(load=loading, server=server, engine=engine, plan=replicas)
def deploy(
    model: Model,
    *,
    address: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster to deploy to: auto, or host:port.", show_default="one made of this machine"
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Leave it running on the cluster at --address.")
    ] = False,
    json_output: Json = False,
    plan: Plan,
    server: ServerOptions,
    engine: dict[str, Any],
    load: LoadOptions,
) -> None:
    """Run replicas of a server on Ray Serve, on this machine or a cluster.

    Requests go to the replica that knows the beginning of their prompt. A replica that dies is replaced.
    SIGTERM lets running requests finish. Needs the extra 'ray'.

    Example: [bold]recguide deploy smollm2-135m --replicas 2[/bold]

    Example: [bold]recguide deploy FOLDER --replicas 2 --max-replicas 8 --address auto --detach[/bold]
    """
    _check_extra()
    from recguide.core import ParameterError
    from recguide.serving.deploy import deployment
    from recguide.serving.server import Listening

    if detach and address is None:
        raise ParameterError(
            "detach", "a cluster made of this machine ends with this command; give --address"
        )
    settings = server.named(model)
    deployment.start(address, server.host, server.port)
    stopped = _on_signal()  # after Ray, which has handlers of its own
    try:
        deployment.deploy(
            deployment.application(recipe(model, load, engine), settings, plan, server.log_format)
        )
        where = str(Listening(host=server.host, port=server.port))
        if json_output:
            print_json({"url": f"{where}/v1", "models": settings.models, "replicas": deployment.states()})
        else:
            err().print(
                f"[bold]{', '.join(settings.models)}[/bold] at [bold]{where}/v1[/bold]", highlight=False
            )
        if not detach:
            deployment.until(stopped, lambda states: note(_words(states)))
    finally:
        if not detach:
            deployment.stop()


def _words(states: dict[str, int]) -> str:
    told = (f"{count} {state.lower()}" for state, count in states.items() if count)
    return f"replicas: {', '.join(told) or 'none'}"


def _on_signal() -> threading.Event:
    """Set when the process is asked to stop."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        stopped.set()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)
    return stopped


def _check_extra() -> None:
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise typer.BadParameter("needs Ray Serve: pip install 'recguide[ray]'")
