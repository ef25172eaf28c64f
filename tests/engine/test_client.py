"""The engine behind a link: whole texts, refusals, aborts and faults reach the one whom they concern."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from tests.fake import EOS, Script, decode, encode, engine
from tests.serving.site import fake_facts
from tests.tiny import write_checkpoint

from recguide.core import ParameterError, SamplingParams
from recguide.engine.client import EngineError, RequestError
from recguide.engine.errors import DeadlineExceeded
from recguide.engine.local import LocalEngine
from recguide.engine.process import Recipe
from recguide.engine.spawned import spawn_engine

ANSWER = encode("the quick brown fox jumps over the lazy dog and sleeps.")
SCRIPTS = [Script((200 + at, *encode("Say it: ")), (*ANSWER, EOS)) for at in range(4)]
FOREVER = SamplingParams(max_tokens=3000, ignore_eos=True)


def running(machine, test):
    """Runs an async test with a local engine over the machine; afterwards no page may be held."""

    async def whole():
        local = LocalEngine(machine, fake_facts(machine))
        await local.start()
        await local.until_ready()
        try:
            await test(local)
        finally:
            await local.close()

    asyncio.run(whole())
    assert not machine.busy
    assert machine.runner.pool.used_pages == 0


async def text_of(local, prompt, params, **more):
    texts: dict[int, str] = {}
    async for chunk in local.generate(prompt, params, request_id="r", **more):
        texts[chunk.index] = texts.get(chunk.index, "") + chunk.text
        if chunk.completion is not None:
            assert chunk.completion.text == texts[chunk.index]
    return [texts[index] for index in sorted(texts)]


def test_many_prompts_at_once_each_get_their_text():
    async def test(local):
        params = SamplingParams(max_tokens=80, n=2)
        texts = await asyncio.gather(*(text_of(local, script.prompt, params) for script in SCRIPTS * 2))
        assert texts == [[decode(ANSWER)] * 2] * 8
        assert local.pending == 0

    running(engine(*SCRIPTS), test)


def test_several_prompts_of_one_request_tell_which_is_which():
    async def test(local):
        asks = [(script.prompt, SamplingParams(max_tokens=5 + at)) for at, script in enumerate(SCRIPTS)]
        chunks = await local.submit(asks, request_id="r")
        lengths = {}
        while arrived := await chunks.arrived():
            lengths |= {at: chunk.completion for at, chunk in arrived if chunk.completion is not None}
        assert {at: len(done.token_ids) for at, done in lengths.items()} == {0: 5, 1: 6, 2: 7, 3: 8}

    running(engine(*SCRIPTS), test)


def test_a_refusal_names_the_parameter_and_harms_nobody():
    async def test(local):
        other = asyncio.create_task(text_of(local, SCRIPTS[0].prompt, SamplingParams(max_tokens=80)))
        with pytest.raises(ParameterError) as refused:
            await text_of(local, [9999], SamplingParams())
        assert refused.value.parameter == "prompt"
        asks = [(SCRIPTS[1].prompt, FOREVER), ([], FOREVER)]
        with pytest.raises(ParameterError):
            await local.submit(asks, request_id="r")
        assert await other == [decode(ANSWER)]

    running(engine(*SCRIPTS), test)


def test_closing_a_stream_aborts_it_and_its_id_is_free_at_once():
    async def test(local):
        for _ in range(10):
            chunks = local.generate(SCRIPTS[0].prompt, FOREVER, request_id="again")
            await anext(chunks)
            await chunks.aclose()
        assert await text_of(local, SCRIPTS[0].prompt, SamplingParams(max_tokens=80)) == [decode(ANSWER)]

    running(engine(*SCRIPTS), test)


def test_a_reader_who_is_cancelled_while_he_waits_frees_his_request():
    async def test(local):
        tasks = [asyncio.create_task(text_of(local, script.prompt, FOREVER)) for script in SCRIPTS]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert local.pending == 0

    running(engine(*SCRIPTS), test)


def test_those_who_left_the_queue_are_never_computed():
    machine = engine(*SCRIPTS, max_running=1)

    async def test(local):
        first = local.generate(SCRIPTS[0].prompt, FOREVER, request_id="first")
        await anext(first)
        queued = [
            await local.submit([(SCRIPTS[1].prompt, FOREVER)], request_id=str(number)) for number in range(50)
        ]
        for chunks in queued:
            chunks.close()
        await first.aclose()
        assert await text_of(local, SCRIPTS[2].prompt, SamplingParams(max_tokens=80)) == [decode(ANSWER)]

    prompts: set[int] = set()
    forward = machine._backbone.forward

    def noted(batch, attend):
        prompts.update(row.tokens[0] for row in batch.rows if row.causal and row.prefix == 0)
        return forward(batch, attend)

    machine._backbone.forward = noted
    running(machine, test)
    assert prompts == {200, 202}


def test_a_deadline_ends_a_request_in_time():
    async def test(local):
        with pytest.raises(DeadlineExceeded):
            await text_of(local, SCRIPTS[0].prompt, FOREVER, deadline=time.time() + 0.05)
        assert local.pending == 0

    running(engine(*SCRIPTS), test)


def test_one_requests_failure_is_its_own():
    machine = engine(*SCRIPTS)
    logits = machine._backbone._logits

    def broken(batch, index):
        found = logits(batch, index)
        script = machine._backbone._told[int(batch.row[index])]
        return found * float("nan") if script is SCRIPTS[1] else found

    machine._backbone._logits = broken

    async def test(local):
        params = SamplingParams(max_tokens=80)
        texts = await asyncio.gather(
            *(text_of(local, script.prompt, params) for script in SCRIPTS), return_exceptions=True
        )
        assert isinstance(texts.pop(1), RequestError)
        assert texts == [[decode(ANSWER)]] * 3
        assert local.healthy

    running(machine, test)


def test_reports_reach_every_watcher():
    async def test(local):
        async def first_of(reports):
            return await anext(reports)

        watching = [asyncio.create_task(first_of(local.reports())) for _ in range(2)]
        await asyncio.sleep(0)
        await text_of(local, SCRIPTS[0].prompt, SamplingParams(max_tokens=80))
        assert [(await task).prefill for task in watching] == [1, 1]

    running(engine(*SCRIPTS), test)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_fails_fails_everyone_at_once():
    machine = engine(*SCRIPTS)

    async def test():
        local = LocalEngine(machine, fake_facts(machine))
        await local.start()
        await local.until_ready()
        waiting = [asyncio.create_task(text_of(local, script.prompt, FOREVER)) for script in SCRIPTS]
        await asyncio.sleep(0.05)

        def crash():
            raise RuntimeError("out of order")

        machine.step = crash
        for task in waiting:
            with pytest.raises(EngineError, match="out of order"):
                await task
        assert not local.healthy
        assert "out of order" in await local.until_fault()
        with pytest.raises(EngineError):
            await text_of(local, SCRIPTS[0].prompt, FOREVER)
        await local.close()

    asyncio.run(test())


# --- in a process of its own --------------------------------------------------------------------------------


def test_a_spawned_engine_serves_until_it_is_killed(tmp_path):
    folder = write_checkpoint(tmp_path / "tiny", "nemotron_labs_diffusion")
    recipe = Recipe(
        source=str(folder), loading={"device": "cpu"}, engine={"kv_cache_tokens": 2048, "max_running": 2}
    )

    async def test():
        spawned = spawn_engine(recipe)
        await spawned.start()
        early = asyncio.create_task(text_of(spawned, [120, 121], SamplingParams(max_tokens=9)))
        facts = await spawned.until_ready()
        assert len(await early) == 1
        assert (facts.name, facts.max_model_len, facts.tokenizer) == ("tiny", 2048, str(folder))
        assert len(await text_of(spawned, [120, 121], SamplingParams(max_tokens=9, n=3))) == 3
        waiting = [
            asyncio.create_task(
                text_of(spawned, [120, 121], SamplingParams(max_tokens=2000, ignore_eos=True))
            )
            for _ in range(4)
        ]
        await asyncio.sleep(0.2)
        os.kill(spawned._link.pid, signal.SIGKILL)
        for task in waiting:
            with pytest.raises(EngineError, match="signal 9"):
                await task
        assert not spawned.healthy
        await spawned.close()

    asyncio.run(test())


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_told_as_a_refusal(tmp_path):
    async def test():
        spawned = spawn_engine(Recipe(source=str(tmp_path / "nowhere")))
        await spawned.start()
        with pytest.raises(EngineError, match="nowhere"):
            await spawned.until_ready()
        assert spawned.refusal
        await spawned.close()

    asyncio.run(test())
