"""The dashboard's routes: a page and its files for everyone, the live feed for those who have a key."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse

from recguide.serving.errors import ApiError
from recguide.serving.events import EventStream
from recguide.serving.service import Service, service_of

FOLDER = Path(__file__).parent / "static"
TYPES: Mapping[str, str] = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
FILES: Mapping[str, Path] = {
    f"/dashboard/{file.relative_to(FOLDER).as_posix()}": file
    for file in FOLDER.rglob("*")
    if file.suffix in TYPES and file.name != "index.html"
}
OPEN_PATHS = frozenset({"/", *FILES})
"""What needs no key: it says nothing of any request."""
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page() -> Response:
    return _file(FOLDER / "index.html")


@router.get("/dashboard/about")
async def about(request: Request) -> dict[str, str | None]:
    """What is served; model None while it is not loaded."""
    facts = service_of(request).engine.facts
    return {
        "version": version("recguide"),
        "model": None if facts is None else service_of(request).models[0],
        "device": None if facts is None else f"{facts.device}, {facts.dtype}",
        "method": None if facts is None else facts.method,
    }


@router.get("/dashboard/events")
async def events(request: Request) -> Response:
    return EventStream(_events(service_of(request)), lambda: None)


async def _events(service: Service) -> AsyncGenerator[bytes, None]:
    """The feed, until the server is about to stop: an open page must not keep it from that."""
    async for event in service.feed.events():
        yield event.encode()
        if service.draining:
            return


@router.get("/dashboard/{name:path}")
async def file(name: str) -> Response:
    """A file of the page; ApiError 404 for any other name."""
    found = FILES.get(f"/dashboard/{name}")
    if found is None:
        raise ApiError(404, f"the dashboard has no file {name!r}")
    return _file(found)


def _file(path: Path) -> Response:
    return FileResponse(path, media_type=TYPES[path.suffix], headers=dict(HEADERS))
