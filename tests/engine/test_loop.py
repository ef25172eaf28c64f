"""The order of the loop: a device never waits for text, and nothing is run for a request that has ended."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from tests.engine.device import device_engine, padded_engine
from tests.fake import EOS, FakeBackbone, Script, Slip, decode, encode, engine, run

from recguide.core import AdapterUse, FinishReason, SamplingParams
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.text import Pieces
from recguide.speculation.rows import Phase
from recguide.speculation.slots import torch_picker

PROMPT = tuple(encode("Say it: "))
ANSWER = tuple(encode("the quick brown fox jumps over the lazy dog, and then it naps in the warm sun."))
SLIPS = {len(PROMPT) + at: Slip(second_right=at % 2 == 0) for at in (3, 9, 20, 31, 44)}
SCRIPT = Script(PROMPT, ANSWER, SLIPS)
METHODS = ("ar", "linear", "tidar", "recguide", "diffusion")


def watched(machine):
    """What happens in which order: launches and landings by number, texts by their length."""
    events = []
    launch = machine.runner.launch

    def logged(plan):
        number = sum(kind == "launch" for kind, _ in events)
        flight = launch(plan)
        events.append(("launch", number))

        def land():
            events.append(("land", number))
            return flight.land()

        return replace(flight, land=land)

    machine.runner.launch = logged

    class Logged(Pieces):
        def text(self, ids):
            events.append(("text", len(ids)))
            return super().text(ids)

        def behind(self, before, token):
            events.append(("text", 1))
            return super().behind(before, token)

    machine._pieces = Logged(decode)
    return events


def at(events, kind):
    return [index for index, (what, _) in enumerate(events) if what == kind]


@pytest.mark.parametrize("method", METHODS)
def test_the_next_forward_is_launched_before_the_last_ones_text(method):
    machine = engine(SCRIPT)
    events = watched(machine)
    (request,) = machine.add(PROMPT, SamplingParams(max_tokens=40, method=method))
    run(machine)
    launches, lands = at(events, "launch"), at(events, "land")
    assert len(launches) == len(lands) == request.stats.forwards + request.stats.prefill_forwards
    for number, landed in enumerate(lands[:-1]):
        assert events[landed + 1] == ("launch", number + 1)
    assert len(at(events, "text")) > 20


@pytest.mark.parametrize("method", METHODS[:-1])
def test_text_that_may_end_a_request_comes_first_and_nothing_is_run_past_it(method):
    answer = (*ANSWER[:21], *encode("<END>"), *ANSWER)
    machine = engine(Script(PROMPT, answer, SLIPS))
    events = watched(machine)
    (request,) = machine.add(PROMPT, SamplingParams(max_tokens=70, method=method, stop=["<END>"]))
    run(machine)
    assert request.completion().text == decode(ANSWER[:21])
    assert request.finish_reason is FinishReason.STOP
    assert len(at(events, "launch")) == request.stats.forwards + request.stats.prefill_forwards
    assert events[-1][0] == "text"


@pytest.mark.parametrize("method", METHODS)
def test_an_end_that_settle_knows_costs_no_further_forward(method):
    for answer, cap in (((*ANSWER[:17], EOS), 60), (ANSWER, 18)):
        machine = engine(Script(PROMPT, answer))
        events = watched(machine)
        (request,) = machine.add(
            PROMPT, SamplingParams(max_tokens=cap, method=method, block_size=8 if method != "ar" else None)
        )
        run(machine)
        assert len(request.emitted) == 18
        assert len(at(events, "launch")) == request.stats.forwards + request.stats.prefill_forwards


@pytest.mark.parametrize("make", [engine, lambda script: padded_engine(FakeBackbone(script), decode)])
@pytest.mark.parametrize("steps", range(7))
def test_a_verdict_of_a_request_that_was_aborted_in_flight_is_ignored(make, steps):
    machine = make(SCRIPT)
    kept, dropped = (machine.add(PROMPT, SamplingParams(max_tokens=60))[0] for _ in range(2))
    for _ in range(steps):
        machine.step()
    emitted = list(dropped.emitted)
    machine.abort(dropped)
    late = machine.add(PROMPT, SamplingParams(max_tokens=30, method="linear"))[0]
    run(machine)
    assert dropped.emitted == emitted
    assert dropped.completion().finish_reason is FinishReason.ABORT
    assert kept.completion().text == decode(ANSWER[:60])
    assert late.completion().text == decode(ANSWER[:30])
    assert machine.runner.pool.used_pages == 0


def test_after_all_were_aborted_in_flight_the_engine_is_idle_and_serves_the_next():
    machine = engine(SCRIPT)
    (first,) = machine.add(PROMPT, SamplingParams(max_tokens=60))
    machine.step()
    machine.abort(first)
    assert not machine.busy
    assert machine.step() == []
    (second,) = machine.add(PROMPT, SamplingParams(max_tokens=60))
    run(machine)
    assert second.completion().text == decode(ANSWER[:60])


def test_a_request_that_arrives_while_a_forward_flies_joins_the_next():
    machine = engine(SCRIPT)
    machine.add(PROMPT, SamplingParams(max_tokens=60))
    machine.step()
    (late,) = machine.add(PROMPT, SamplingParams(max_tokens=60))
    machine.step()
    assert not late.emitted
    machine.step()
    assert late.emitted


def test_other_requests_keep_their_chunks_when_one_has_no_text():
    def broken(_):
        raise RuntimeError("no text")

    machine = engine(SCRIPT)
    pieces, machine._pieces = machine._pieces, Pieces(broken)
    (ill,) = machine.add(PROMPT, SamplingParams(max_tokens=10))
    machine._pieces = pieces
    (well,) = machine.add(PROMPT, SamplingParams(max_tokens=10, method="ar"))
    run(machine)
    assert ill.finish_reason is FinishReason.ABORT
    assert "no text" in str(ill.error)
    assert "".join(chunk.text for chunk in well.inbox) == decode(ANSWER[:10])


# --- who decides --------------------------------------------------------------------------------------------

EDITS = {
    "edits": {"logit_bias": {5: 1.0}},
    "filters": {"temperature": 1e-3, "seed": 3, "top_k": 5},
    "logprobs": {"logprobs": 2},
}


@pytest.mark.parametrize("edits", EDITS)
def test_requests_that_need_their_logits_are_decided_by_the_host_and_counted(edits):
    machine = device_engine(FakeBackbone(SCRIPT), decode)
    plain, edited = (
        machine.add(PROMPT, SamplingParams(max_tokens=40, **more))[0] for more in ({}, EDITS[edits])
    )
    with machine.recording() as forwards:
        run(machine)
    assert plain.completion().text == edited.completion().text == decode(ANSWER[:40])
    assert {forward.by_host for forward in forwards} <= {0, 1}
    mine = edited.stats.forwards + edited.stats.prefill_forwards
    assert sum(forward.by_host for forward in forwards) == mine
    assert sum(forward.requests for forward in forwards) == mine + plain.stats.forwards + 1


def test_a_blocks_that_the_device_has_no_room_for_are_the_hosts():
    machine = padded_engine(FakeBackbone(SCRIPT), decode)
    (request,) = machine.add(PROMPT, SamplingParams(max_tokens=70, method="linear", block_size=50))
    with machine.recording() as forwards:
        run(machine)
    assert request.completion().text == decode(ANSWER[:70])
    assert {forward.by_host for forward in forwards} == {0, 1}


def test_logprobs_of_the_token_alone_come_from_the_device():
    """By rounds and by plain steps that run ahead."""
    makers = (lambda *_: engine(SCRIPT), device_engine, padded_engine)
    found = []
    for make, method in product(makers, ("recguide", "ar")):
        machine = make(FakeBackbone(SCRIPT), decode)
        (request,) = machine.add(PROMPT, SamplingParams(max_tokens=40, logprobs=0, method=method))
        with machine.recording() as forwards:
            run(machine)
        assert not any(forward.by_host for forward in forwards)
        found.append([entry.logprob for entry in request.completion().logprobs])
    assert all(len(values) == 40 and values == pytest.approx(found[0], abs=1e-5) for values in found)


class Broken(FakeBackbone):
    """Gives NaN to one script's requests from their third token on."""

    def _logits(self, batch, index):
        logits = super()._logits(batch, index)
        row = batch.rows[int(batch.row[index])]
        mine = self._told[int(batch.row[index])].prompt[0] == 201
        return logits * float("nan") if mine and row.start > len(PROMPT) + 1 else logits


def flagging(vocabulary):
    """A picker that says which slots are bad, as those of a device do, instead of raising."""
    inner = torch_picker(vocabulary)

    def picks(logits, table):
        found = inner(logits.nan_to_num(), table)
        return replace(found, bad=logits.isnan().any(1))

    return picks


@pytest.mark.parametrize("device", [False, True])
def test_nan_fails_its_own_request_and_costs_the_others_no_forward(device):
    scripts = [Script((200 + number, *PROMPT), ANSWER) for number in range(3)]
    backbone = Broken(*scripts)
    machine = Engine(backbone, decode, EngineConfig(), flagging(backbone.vocabulary) if device else None)
    params = SamplingParams(max_tokens=40, block_size=8)
    requests = [machine.add(script.prompt, params)[0] for script in scripts]
    run(machine)
    assert [request.finish_reason for request in requests] == [
        FinishReason.LENGTH,
        FinishReason.ABORT,
        FinishReason.LENGTH,
    ]
    assert "request 1" in str(requests[1].error)
    assert backbone.forwards == requests[0].stats.forwards + requests[0].stats.prefill_forwards


def test_a_recorded_forward_says_what_it_was():
    machine = padded_engine(FakeBackbone(SCRIPT), decode)
    machine.add(PROMPT, SamplingParams(max_tokens=20, method="linear", block_size=8))
    machine.add(PROMPT, SamplingParams(max_tokens=20, method="ar"))
    with machine.recording() as forwards:
        run(machine)
    first, second = forwards[:2]
    assert first.phases == {Phase.PREFILL: 2}
    assert (first.query_tokens, first.wanted, first.prefix_tokens) == (2 * len(PROMPT), 2, 0)
    assert second.phases == {Phase.DRAFT: 1, Phase.VERIFY: 1}
    assert (second.query_tokens, second.wanted, second.prefix_tokens) == (9, 8, 2 * len(PROMPT))
    assert (second.bucket.tokens, second.bucket.use) == (16, AdapterUse.NONE)
    assert [forward.bucket for forward in forwards] == machine.runner._replays.ran


# --- plain steps made ready ahead ---------------------------------------------------------------------------


def counted(machine):
    """How often forwards were packed before they were known to come, and how often they then ran."""
    counts = {"ready": 0, "ahead": 0}
    go_ahead = machine._ahead.go

    def count_ready(ready):
        def counting(*args, **options):
            counts["ready"] += 1
            return ready(*args, **options)

        return counting

    def count_ahead(landed):
        flight = go_ahead(landed)
        counts["ahead"] += flight is not None
        return flight

    machine.runner.ready = count_ready(machine.runner.ready)
    machine.runner.ready_again = count_ready(machine.runner.ready_again)
    machine._ahead.go = count_ahead
    return counts


def plain_engine(*scripts, **config):
    return padded_engine(FakeBackbone(*scripts), decode, method="ar", **config)


def test_plain_steps_are_made_ready_while_the_last_one_runs():
    machine = plain_engine(SCRIPT)
    counts = counted(machine)
    requests = [machine.add(PROMPT, SamplingParams(max_tokens=40))[0] for _ in range(3)]
    run(machine)
    assert [request.completion().text for request in requests] == [decode(ANSWER[:40])] * 3
    # All steps but the first, which follows a prefill.
    assert counts == {"ready": 40, "ahead": 38}


def launches(machine):
    """Forwards that were laid out only when all before them was known."""
    counts = []
    launch = machine._scheduler.schedule
    machine._scheduler.schedule = lambda planner: counts.append(None) or launch(planner)
    return counts


def test_ends_and_newcomers_interrupt_no_run_of_steps():
    """Stop tokens, caps, an abort, and prompts that come while others decode."""
    scripts = [Script((200 + at, *PROMPT), (*ANSWER[: 7 + 5 * at], EOS)) for at in range(3)]
    machine = plain_engine(*scripts, max_running=4)
    laid_out = launches(machine)
    requests = [machine.add(script.prompt, SamplingParams(max_tokens=60))[0] for script in scripts]
    for _ in range(4):
        machine.step()
    capped = machine.add(scripts[2].prompt, SamplingParams(max_tokens=5))[0]
    dropped, late = (machine.add(scripts[2].prompt, SamplingParams(max_tokens=60))[0] for _ in range(2))
    for _ in range(8):
        machine.step()
    machine.abort(dropped)
    run(machine)
    for request, script in zip([*requests, late], [*scripts, scripts[2]], strict=True):
        assert request.completion().token_ids == script.answer
        assert request.completion().stats.forwards == len(script.answer) - 1
    assert capped.completion().token_ids == scripts[2].answer[:5]
    assert machine.runner.pool.used_pages == 0
    # The first forward, the one after it, and one when nobody is left.
    assert len(laid_out) == 3


def test_a_prompt_too_long_for_a_graph_is_laid_out_as_any_other():
    machine = plain_engine(SCRIPT, max_batch_tokens=16)
    laid_out = launches(machine)
    first = machine.add(PROMPT, SamplingParams(max_tokens=40))[0]
    for _ in range(4):
        machine.step()
    before = len(laid_out)
    long = machine.add(PROMPT * 20, SamplingParams(max_tokens=4))[0]
    run(machine)
    assert first.completion().text == decode(ANSWER[:40])
    assert len(long.completion().token_ids) == 4
    assert len(laid_out) > before


def test_what_was_made_ready_past_a_text_that_ends_a_request_is_dropped():
    machine = plain_engine(SCRIPT)
    counts = counted(machine)
    (request,) = machine.add(PROMPT, SamplingParams(max_tokens=40, stop=["over"]))
    run(machine)
    assert request.completion().text == decode(ANSWER).split("over")[0]
    assert counts["ahead"] > 20
    assert machine.runner.pool.used_pages == 0


def test_without_pages_for_it_nothing_is_made_ready_and_nobody_loses_his():
    scripts = [Script((200 + at, *PROMPT), ANSWER) for at in range(4)]
    machine = plain_engine(*scripts, page_size=4, kv_cache_tokens=80)
    requests = [machine.add(script.prompt, SamplingParams(max_tokens=50))[0] for script in scripts]
    run(machine)
    assert [request.completion().text for request in requests] == [decode(ANSWER[:50])] * 4
    assert machine.runner.pool.used_pages == 0
