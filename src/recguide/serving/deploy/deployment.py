"""A model on Ray Serve: what is deployed, and how it starts and ends."""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
# Ray is an extra; without it, what it gives is not known.
from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, HTTPOptions, RequestRouterConfig
from ray.serve.schema import LoggingConfig

from recguide.core import ParameterError, RecGuideError
from recguide.engine.process import Recipe
from recguide.serving.deploy.ingress import PATIENCE_S, Ingress
from recguide.serving.deploy.plan import Plan
from recguide.serving.deploy.replica import Replica
from recguide.serving.deploy.routing import PrefixRouter
from recguide.serving.logs import LogFormat
from recguide.serving.server import Listening
from recguide.serving.settings import ServerSettings

NAME = "recguide"
HEALTH_S = 2.0
"""How often a replica is asked for its health."""
_LOGGING: Mapping[str, Any] = {"log_level": "WARNING", "enable_access_log": False}
"""Of Ray Serve itself; replicas write the server's own lines."""
UPSCALE_S = 10.0
"""How long there must be too much to do before there are more replicas; a model takes long to load anyway."""
_MANY = 100_000
"""Requests that may be under way at a time: replicas refuse what is too much themselves."""


class DeployError(RecGuideError):
    """Ray could not deploy; says why."""


def application(
    recipe: Recipe, settings: ServerSettings, plan: Plan, log_format: LogFormat = "text"
) -> Application:
    """What Ray Serve runs. Ray has been started."""
    replicas = serve.deployment(Replica).options(
        name="replica",
        max_ongoing_requests=_MANY,
        ray_actor_options={"num_cpus": plan.cpus, "num_gpus": _gpus(plan)},
        health_check_period_s=HEALTH_S,
        graceful_shutdown_timeout_s=settings.drain_s,
        graceful_shutdown_wait_loop_s=min(1.0, settings.drain_s),
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
        **_numbers(plan),
    )
    ingress = serve.deployment(Ingress).options(
        name="ingress",
        max_ongoing_requests=_MANY,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=settings.drain_s,
        graceful_shutdown_wait_loop_s=min(1.0, settings.drain_s),
    )
    return ingress.bind(replicas.bind(recipe, settings, log_format), settings)


def start(address: str | None, host: str, port: int) -> None:
    """Joins the cluster at an address, or makes one of this machine; Ray Serve listens from then on.

    Raises DeployError if there is no such cluster, ParameterError if nobody can listen there.
    """
    if not port:
        raise ParameterError("port", "must be named: every node of a cluster listens at the same one")
    if address is None:
        Listening(host=host, port=port).bind().close()  # Ray Serve would try again for ever
    if not ray.is_initialized():
        try:
            ray.init(
                address=address, include_dashboard=False, log_to_driver=True, logging_level=logging.WARNING
            )
        except (ConnectionError, ValueError) as error:
            raise DeployError(f"no Ray cluster at {address}: {error}") from error
    serve.start(http_options=HTTPOptions(host=host, port=port), logging_config=LoggingConfig(**_LOGGING))


def deploy(deployed: Application) -> None:
    """Returns when all replicas have loaded their model; DeployError if they cannot."""
    try:
        serve.run(deployed, name=NAME, route_prefix="/", logging_config=LoggingConfig(**_LOGGING))
    except (RuntimeError, TimeoutError) as error:
        raise DeployError(f"the deployment failed: {_reason() or error}") from error


def _reason() -> str | None:
    """What the last replica that could not start died of: the error in its traceback."""
    application = serve.status().applications.get(NAME)
    told = "" if application is None else application.deployments["replica"].message
    return next((line.strip() for line in reversed(told.splitlines()) if "Error: " in line), None)


def stop() -> None:
    """Lets requests under way finish within their time, then ends Ray Serve, and Ray if it was made here."""
    if NAME in serve.status().applications:
        serve.get_app_handle(NAME).broadcast("drain").results(timeout_s=PATIENCE_S, return_exceptions=True)
        serve.delete(NAME)
    serve.shutdown()
    ray.shutdown()


def until(stopped: threading.Event, say: Callable[[dict[str, int]], None]) -> None:
    """Waits, and says how many replicas are in which state whenever that changes."""
    before: dict[str, int] | None = None
    while not stopped.wait(1.0):
        now = states()
        if now != before:
            say(now)
            before = now


def states() -> dict[str, int]:
    """State → replicas."""
    application = serve.status().applications.get(NAME)
    deployment = None if application is None else application.deployments.get("replica")
    return {} if deployment is None else {str(state): n for state, n in deployment.replica_states.items()}


def _numbers(plan: Plan) -> dict[str, Any]:
    if plan.max_replicas is None:
        return {"num_replicas": plan.replicas}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=plan.replicas,
            max_replicas=plan.max_replicas,
            target_ongoing_requests=plan.target_requests,
            upscale_delay_s=UPSCALE_S,
        )
    }


def _gpus(plan: Plan) -> float:
    if plan.gpus is not None:
        return plan.gpus
    return 1.0 if ray.cluster_resources().get("GPU") else 0.0
