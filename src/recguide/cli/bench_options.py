"""Options of `recguide bench serve` by what they make: endpoints, the load, and what each request asks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from recguide.bench.load.drive import Limit, Load
    from recguide.bench.load.endpoint import Asking, Endpoint
    from recguide.bench.load.run import Plan

_ENDPOINT = "Endpoint"
_SECOND = "Second endpoint"
_LOAD = "Load"
_REQUESTS = "Requests"


@dataclass(frozen=True, slots=True)
class Way:
    """An endpoint as the options say it; `extra_body` is JSON."""

    name: str
    base_url: str
    model: str | None
    api_key: str | None
    extra_body: str


@dataclass(frozen=True, slots=True)
class Ways:
    """One endpoint, or two."""

    ways: tuple[Way, ...]
    api: str
    timeout_s: float

    @property
    def comparing(self) -> bool:
        return len(self.ways) > 1

    async def endpoints(self) -> list[Endpoint]:
        """Asks each for its model where none is named. Raises EndpointError, ParameterError."""
        return [await self._endpoint(way) for way in self.ways]

    async def _endpoint(self, way: Way) -> Endpoint:
        from recguide.bench.load.endpoint import Endpoint, api_named, extra_fields
        from recguide.bench.load.run import first_model

        api, extra = api_named(self.api), extra_fields(way.extra_body)
        return Endpoint(
            name=way.name,
            base_url=way.base_url,
            model=way.model or await first_model(way.base_url, way.api_key),
            api=api,
            api_key=way.api_key,
            extra_body=extra,
            timeout_s=self.timeout_s,
        )


def endpoints(
    base_url: Annotated[
        str,
        typer.Option(help="Its address, with or without /v1.", show_default=False, rich_help_panel=_ENDPOINT),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="As requests name it.", show_default="the first of /v1/models", rich_help_panel=_ENDPOINT
        ),
    ] = None,
    api: Annotated[str, typer.Option(help="chat or completions.", rich_help_panel=_ENDPOINT)] = "chat",
    api_key: Annotated[
        str | None, typer.Option(help="Bearer token.", envvar="OPENAI_API_KEY", rich_help_panel=_ENDPOINT)
    ] = None,
    extra_body: Annotated[
        str,
        typer.Option(
            help="JSON fields of every request, such as '{\"ignore_eos\": true}'; null drops a field.",
            show_default=False,
            rich_help_panel=_ENDPOINT,
        ),
    ] = "",
    timeout: Annotated[
        float, typer.Option(help="Seconds of a whole request.", rich_help_panel=_ENDPOINT)
    ] = 600.0,
    against: Annotated[
        str | None,
        typer.Option(
            help="Its address; --base-url's again to compare two --extra-body.", rich_help_panel=_SECOND
        ),
    ] = None,
    against_model: Annotated[str | None, typer.Option(help="As --model.", rich_help_panel=_SECOND)] = None,
    against_api_key: Annotated[
        str | None, typer.Option(help="As --api-key.", envvar="AGAINST_API_KEY", rich_help_panel=_SECOND)
    ] = None,
    against_extra_body: Annotated[
        str,
        typer.Option(help="As --extra-body.", show_default=False, rich_help_panel=_SECOND),
    ] = "",
    name: Annotated[
        list[str] | None,
        typer.Option(help="What reports call the endpoints: once for each.", rich_help_panel=_SECOND),
    ] = None,
) -> Ways:
    """Where the load goes."""
    if timeout <= 0:
        raise typer.BadParameter("--timeout must be above 0 seconds")
    ways = [Way("", base_url, model, api_key, extra_body)]
    if against is not None:
        ways.append(Way("", against, against_model, against_api_key, against_extra_body))
    names = name or ["endpoint"] if len(ways) == 1 else name or ["first", "second"]
    if len(names) != len(ways) or len(set(names)) < len(names):
        raise typer.BadParameter("--name must be given once for each endpoint, different each")
    named = tuple(
        Way(called, way.base_url, way.model, way.api_key, way.extra_body)
        for called, way in zip(names, ways, strict=True)
    )
    return Ways(named, api, timeout)


@dataclass(frozen=True, slots=True)
class Sending:
    """How requests are sent; None where an option was left out."""

    concurrency: int | None
    rate: float | None
    arrivals: str
    start_rate: float
    rise_s: float
    burst_size: int
    requests: int | None
    duration_s: float | None
    warm_up: int
    turns: int | None
    prompts: Path | None
    seed: int

    def plan(self, asking: Asking, *, comparing: bool) -> Plan:
        """Raises ParameterError for what cannot be."""
        from recguide.bench.load.prompts import built_in, read_prompts
        from recguide.bench.load.run import Plan

        limit = self._limit()
        turns = self.turns or (4 if comparing else 1)
        return Plan(
            load=self._load(),
            limit=limit,
            prompts=built_in() if self.prompts is None else read_prompts(self.prompts),
            asking=asking,
            warm_up=self.warm_up,
            turns=turns if limit.requests is None else min(turns, limit.requests),
            seed=self.seed,
        )

    def settings(self, asking: Asking) -> dict[str, Any]:
        """As asked, for the result's readers."""
        limit = self._limit()
        limits = {"requests": limit.requests, "s": limit.duration_s}
        return {
            "load": self._words(),
            "limit": ", ".join(f"{value:g} {unit}" for unit, value in limits.items() if value is not None),
            "prompts": "built in" if self.prompts is None else str(self.prompts),
            "unique_prompts": asking.unique,
            "max_tokens": asking.max_tokens,
            "temperature": asking.temperature,
            "warm_up": self.warm_up,
            "turns": self.turns,
            "seed": self.seed,
        }

    def _words(self) -> str:
        if self.rate is None:
            return f"closed loop, {self.concurrency or 8} at a time"
        more = {
            "ramp": f", from {self.start_rate:g} a second in {self.rise_s:g} s",
            "burst": f", {self.burst_size} at once",
        }
        return f"open loop, {self.arrivals}, {self.rate:g} a second{more.get(self.arrivals, '')}"

    def _limit(self) -> Limit:
        from recguide.bench.load.drive import Limit

        unsaid = self.requests is None and self.duration_s is None
        return Limit(100 if unsaid else self.requests, self.duration_s)

    def _load(self) -> Load:
        from recguide.bench.load.arrivals import arrivals_named
        from recguide.bench.load.drive import ClosedLoop, OpenLoop

        if self.rate is None:
            return ClosedLoop(8 if self.concurrency is None else self.concurrency)
        if self.concurrency is not None:
            raise typer.BadParameter("--concurrency is a closed loop, --rate an open one: give one of them")
        law = arrivals_named(
            self.arrivals,
            self.rate,
            start_rate=self.start_rate,
            rise_s=self.rise_s,
            burst_size=self.burst_size,
        )
        return OpenLoop(law)


def load(
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "-c",
            help="Closed loop: so many requests at any time.",
            show_default="8 without --rate",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Open loop: requests a second, whatever the answers do.", rich_help_panel=_LOAD),
    ] = None,
    arrivals: Annotated[
        str, typer.Option(help="Open loop: poisson, ramp, burst.", rich_help_panel=_LOAD)
    ] = "poisson",
    start_rate: Annotated[
        float, typer.Option(help="A ramp's requests a second at its start.", rich_help_panel=_LOAD)
    ] = 0.0,
    rise: Annotated[float, typer.Option(help="A ramp's seconds until --rate.", rich_help_panel=_LOAD)] = 60.0,
    burst_size: Annotated[int, typer.Option(help="A burst's requests.", rich_help_panel=_LOAD)] = 8,
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests",
            "-n",
            help="To each endpoint.",
            show_default="100 without --duration",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(help="Seconds in which each endpoint is sent requests.", rich_help_panel=_LOAD),
    ] = None,
    warm_up: Annotated[
        int, typer.Option(help="Requests before, which are not counted.", rich_help_panel=_LOAD)
    ] = 4,
    turns: Annotated[
        int | None,
        typer.Option(
            help="Turns of each endpoint, one working while the other rests.",
            show_default="4 with --against",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help='.jsonl with "messages", "prompt" or "question"; another file has a prompt a line.',
            show_default="built in",
            rich_help_panel=_REQUESTS,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of arrivals, of the prompts' order, of sampling.", rich_help_panel=_REQUESTS)
    ] = 0,
) -> Sending:
    """How requests are sent."""
    if warm_up < 0 or (turns is not None and turns < 1):
        raise typer.BadParameter("--warm-up must be at least 0, --turns at least 1")
    return Sending(
        concurrency,
        rate,
        arrivals,
        start_rate,
        rise,
        burst_size,
        requests,
        duration,
        warm_up,
        turns,
        prompts,
        seed,
    )


def asking(
    max_tokens: Annotated[int, typer.Option(help="Tokens to emit at most.", rich_help_panel=_REQUESTS)] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=_REQUESTS)] = 0.0,
    unique: Annotated[
        bool,
        typer.Option(
            "--unique", help="Mark each prompt, so that no prefix cache helps.", rich_help_panel=_REQUESTS
        ),
    ] = False,
) -> Asking:
    """What each request asks."""
    from recguide.bench.load.endpoint import Asking

    return Asking(max_tokens=max_tokens, temperature=temperature, unique=unique)
