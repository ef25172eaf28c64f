"""Soak: whatever is asked, however it is decoded and whoever leaves, every text is plain decoding's.

A failure names its case; `case_of(SEED, number)` makes it again.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from dataclasses import replace

import pytest
from tests.serving.conftest import assert_all_free
from tests.serving.site import app_of
from tests.serving.soak import Clients, case_of

from recguide.core import Chunk, Completion
from recguide.engine.assembly import assemble
from recguide.engine.chunks import Chunks
from recguide.engine.config import EngineConfig
from recguide.engine.request import Request
from recguide.llm import LLM

SEED = 20
BATCH = 250
RUNNING = 12
MIB = 2**20
KEPT = (Request, Chunks, Chunk, Completion)
"""What must not outlive a request."""


@pytest.fixture
def crowded(tiny_folder):
    """A model whose cache holds a third of what is asked of it at once."""
    llm = LLM(str(tiny_folder), device="cpu", dtype="float64")
    config = EngineConfig(kv_cache_tokens=320, page_size=8, max_running=RUNNING, max_batch_tokens=160)
    llm.engine = assemble(llm.model, config)
    return llm


async def soak(llm, crowded, requests):
    """Asks so many requests in batches; returns how they ended, and the memory in use after each batch."""
    others = alive(*KEPT)  # other tests' cached answers, in the same process
    app, ends, sizes = app_of(crowded), Counter(), []
    service, clients = app.state.service, Clients(app)
    async with app.router.lifespan_context(app):
        await service.until_ready()
        for first in range(0, requests, BATCH):
            cases = [case_of(SEED, number) for number in range(first, min(first + BATCH, requests))]
            outcomes = await clients.ask(cases)
            while service.engine.pending or service.active or crowded.engine.busy:
                await asyncio.sleep(0.01)
            assert_all_free(crowded.engine)
            assert_plain(llm, outcomes)
            ends.update(outcome.end for outcome in outcomes)
            sizes.append(resident_bytes())
    del outcomes
    held = alive(*KEPT) - others
    assert held.pop("Request", 0) <= RUNNING, "those of the last forward"
    assert not held
    return ends, sizes


def assert_plain(llm, outcomes):
    """Every whole text, its tokens and its end, and every begun text as far as it came."""
    prompts = [outcome.case.prompt for outcome in outcomes]
    params = [replace(outcome.case.params, method="ar") for outcome in outcomes]
    for outcome, plain in zip(outcomes, llm.generate(prompts, params), strict=True):
        if outcome.end == "done":
            assert outcome.text == {each.index: each.text for each in plain.completions}, outcome.case
            assert outcome.ids == {each.index: [*each.token_ids] for each in plain.completions}, outcome.case
            assert outcome.finish == {each.index: each.finish_reason.value for each in plain.completions}
        for index, text in outcome.text.items():
            assert plain.completions[index].text.startswith(text), outcome.case


def alive(*kinds):
    """How many objects of these kinds are still held by someone."""
    gc.collect()
    return Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in kinds)


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


@pytest.mark.timeout(900)
def test_a_thousand_requests(llm, crowded):
    ends, _ = asyncio.run(soak(llm, crowded, 1000))
    assert set(ends) == {"done", "left", "late"}
    assert ends["done"] > 800
    assert min(ends.values()) > 5
    assert crowded.engine._scheduler.preemptions > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_thousand_requests(llm, crowded):
    ends, sizes = asyncio.run(soak(llm, crowded, 20_000))
    assert sum(ends.values()) == 20_000
    middle, last = sizes[len(sizes) // 2], sizes[-1]
    assert last - middle < 16 * MIB
