"""`recguide bench serve` against a small endpoint in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager

import pytest
from tests.bench.load.endpoint import answering, listening, refusing


@contextmanager
def serving(*handlers):
    """The endpoint's address, while it listens."""
    ready, done = threading.Event(), threading.Event()
    found = []

    async def whole():
        async with listening(*handlers) as served:
            found.append(served)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(whole(),))
    thread.start()
    ready.wait(10)
    try:
        yield found[0]
    finally:
        done.set()
        thread.join()


def test_a_load_is_reported_as_table_json_file_and_page(cli, tmp_path):
    with serving(answering(tokens=9)) as served:
        arguments = ("bench", "serve", "--base-url", served.url, "-n", "4", "-c", "2", "--warm-up", "0")
        shown = cli(*arguments, "--slo", "ttft=60000")
        files = ("--output", str(tmp_path / "load.json"), "--report", str(tmp_path / "load.html"))
        found = cli(*arguments, "--json", *files)
    assert shown.exit_code == found.exit_code == 0, shown.output + found.output
    assert "(100%)" in shown.stdout
    assert "TTFT" in shown.stdout
    (endpoint,) = json.loads(found.stdout)["endpoints"]
    assert endpoint["summary"]["tokens"]["output"] == 36
    assert len(json.loads((tmp_path / "load.json").read_text())["endpoints"][0]["requests"]) == 4
    assert "<svg" in (tmp_path / "load.html").read_text()


def test_two_endpoints_are_compared_by_their_texts(cli):
    with serving(answering(tokens=3)) as one, serving(answering(("other",), tokens=3)) as other:
        arguments = ("bench", "serve", "--base-url", one.url, "--rate", "200", "-n", "4", "--warm-up", "0")
        names = ("--name", "mine", "--name", "theirs")
        same = cli(*arguments, "--against", one.url, "--against-extra-body", '{"top_k": 1}', "--same-texts")
        different = cli(*arguments, "--against", other.url, *names, "--same-texts")
    assert same.exit_code == 0, same.output
    assert "same texts: 4 of 4" in same.stdout
    assert sum("top_k" in body for body in one.bodies) == 4
    assert different.exit_code == 2
    assert "theirs" in different.stdout
    assert "not all equal" in different.stderr


def test_failures_are_shown(cli):
    with serving(answering(tokens=3), refusing(500)) as served:
        found = cli("bench", "serve", "--base-url", served.url, "-n", "3", "-c", "1", "--warm-up", "0")
    assert found.exit_code == 0, found.output
    assert "endpoint: 2 times http 500" in found.stdout
    assert "2 of 3" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rate", "1", "-c", "2"), "give one of them"),
        (("--rate", "0"), "rate"),
        (("-n", "0"), "requests"),
        (("--api", "images"), "api"),
        (("--slo", "speed=1"), "slo"),
        (("--extra-body", "[]"), "extra_body"),
        (("--prompts", "nowhere.txt"), "nowhere.txt"),
        (("--name", "a", "--name", "b"), "--name"),
        (("--max-tokens", "0"), "max_tokens"),
        ((), "is the server up?"),
    ],
)
def test_what_cannot_be_is_refused_by_name(cli, arguments, said):
    found = cli("bench", "serve", "--base-url", "http://127.0.0.1:9", *arguments)
    assert found.exit_code == 2
    assert said in found.output
