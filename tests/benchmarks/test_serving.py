"""The server and the offline engine are asked the same, and both count all of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from tests.bench.load.endpoint import answering, listening
from tests.fake import Script, encode, engine

from benchmarks import serving
from recguide.core import SamplingParams

SMALL = ("--prompt", "12", "--tokens", "5", "--least", "4", "--waves", "2")


def test_the_offline_engine_is_asked_what_the_server_is_asked():
    options, sent = serving.parse(SMALL), []

    async def whole():
        async with listening(answering(tokens=5)) as wire:
            found = await asyncio.to_thread(serving.through_http, wire.url, options, 3)
            sent.extend(wire.bodies)
        return found

    found = asyncio.run(whole())
    asks = [ask for turn in range(2) for ask in serving._asks(serving.plan_of(options, 3), turn)]
    assert (found["requests"], found["errors"]) == (6, 0)
    assert found["http_tokens_per_s"] > 0
    assert sorted((body["prompt"], body["seed"]) for body in sent) == sorted(
        (bytes(prompt).decode(), params.seed) for prompt, params in asks
    )
    assert len({params.seed for _, params in asks}) == len(asks) == 12
    assert all(body["max_tokens"] == 5 and body["ignore_eos"] for body in sent)
    assert all(params.max_tokens == 5 and params.ignore_eos for _, params in asks)


def test_a_closed_loop_never_has_more_requests_than_seats():
    scripts = [Script(tuple(encode(f"{name} asks")), tuple(encode("an answer"))) for name in "abcde"]
    machine, most = engine(*scripts), 0

    def observe(report):
        nonlocal most
        most = max(most, report.running + report.waiting)

    machine.observer = observe
    asks = [(script.prompt, SamplingParams(max_tokens=7, ignore_eos=True)) for script in scripts]
    assert serving._closed_loop(machine, asks, 2) == 5 * 7
    assert most == 2
    assert not machine.busy


def test_efficiency_is_what_graphs_take_of_the_whole_loop(monkeypatch):
    machine = engine(Script(tuple(encode("x asks")), tuple(encode("an answer"))))
    seen = []

    def half_of(runner, forwards):
        seen.append((runner, len(forwards)))
        return 500.0

    monkeypatch.setattr(serving, "alone_ms", half_of)
    monkeypatch.setattr(serving, "_asks", lambda *_: [(encode("x asks"), SamplingParams(max_tokens=4))])
    clock = iter((10.0, 11.0))
    monkeypatch.setattr(serving, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    row = serving.offline(machine, serving.parse(SMALL), 1)
    assert row["efficiency"] == pytest.approx(0.5)
    assert row["offline_tokens_per_s"] == 4
    assert seen == [(machine.runner, row["forwards"])]
    (target,) = [
        target
        for target in serving.targets("nld-8b", [{"load": 128, "http_over_offline": 0.95, **row}])
        if "efficiency" in target.name
    ]
    assert target.name == "nld-8b, C = 128, replayed acceptance: efficiency of the closed loop"
    assert (target.value, target.target, target.met) == (0.5, 0.8, False)
