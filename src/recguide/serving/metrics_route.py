"""GET /metrics in the format that the scraper asks for."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


def metrics_route(registry: CollectorRegistry) -> APIRouter:
    """A router with the one route; it runs in a thread, so a scrape stops no stream."""
    router = APIRouter()

    @router.get("/metrics", response_class=Response, summary="Prometheus metrics")
    def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=content_type)

    return router
