"""The whole loop on a fake model: what rounds emit, reuse and cost is known exactly."""

from __future__ import annotations

import pytest
from tests.fake import EOS, FakeBackbone, Script, Slip, decode, encode, engine, run

from recguide.core import FinishReason, Origin, ParameterError, SamplingParams
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.text import Pieces

PROMPT = tuple(encode("Say it: "))
ANSWER = tuple(encode("the quick brown fox jumps over the lazy dog, and then it naps in the warm sun."))
METHODS = ("ar", "linear", "tidar", "recguide", "diffusion")


def finish(script: Script, **params: object):
    machine = engine(script)
    (request,) = machine.add(script.prompt, SamplingParams(**params))  # pyright: ignore
    run(machine)
    return request.completion(), machine


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("block", [1, 2, 8, 16, 32])
def test_every_method_says_the_script(method, block):
    size = {} if method == "ar" else {"block_size": block}
    completion, machine = finish(Script(PROMPT, ANSWER), max_tokens=50, method=method, **size)
    assert completion.text == decode(ANSWER[:50])
    assert completion.finish_reason is FinishReason.LENGTH
    assert machine.runner.pool.used_pages == 0


@pytest.mark.parametrize("block", [2, 8, 16])
def test_perfect_drafts_give_a_block_each_round(block):
    completion, _ = finish(
        Script(PROMPT, ANSWER), max_tokens=1 + 4 * block, method="linear", block_size=block
    )
    assert completion.stats.acceptance == {block: 4}
    assert completion.stats.forwards == 8
    assert completion.stats.tpf == block / 2


def test_hopeless_drafts_give_one_token_each_round():
    everywhere = {position: Slip(risky=False, second_right=False) for position in range(200)}
    completion, _ = finish(Script(PROMPT, ANSWER, everywhere), max_tokens=30, method="linear", block_size=8)
    assert completion.text == decode(ANSWER[:30])
    assert set(completion.stats.acceptance) == {1}
    assert set(completion.origins) == {Origin.PREFILL, Origin.CORRECTION, Origin.AR}


def test_tidar_drafts_once_and_then_verifies_in_every_forward():
    slips = {len(PROMPT) + at: Slip(second_right=False) for at in range(3, 60, 5)}
    completion, _ = finish(Script(PROMPT, ANSWER, slips), max_tokens=50, method="tidar", block_size=8)
    stats = completion.stats
    assert completion.text == decode(ANSWER[:50])
    assert stats.forwards == 1 + sum(stats.blocks.values())
    # After the last round with a draft at most one token is left, and nothing to draft.
    assert stats.reused["any"] == stats.rounds - 1


def test_a_correction_branch_is_reused_when_slot_and_candidate_fit():
    slips = {len(PROMPT) + 5: Slip()}
    completion, _ = finish(Script(PROMPT, ANSWER, slips), max_tokens=13, method="recguide", block_size=8)
    # Draft of positions 0..7, verified up to the slip at 5; the branch from 5 then carries 5..12.
    assert completion.stats.acceptance == {5: 1, 7: 1}
    assert completion.stats.reused == {"correction": 1}
    assert completion.stats.forwards == 3
    assert completion.origins[6:12] == (Origin.REUSED,) * 6


@pytest.mark.parametrize("slip", [Slip(second_right=False), Slip(risky=False)])
def test_nothing_is_reused_when_the_candidate_or_the_slot_is_wrong(slip):
    slips = {len(PROMPT) + 5: slip}
    completion, _ = finish(Script(PROMPT, ANSWER, slips), max_tokens=13, method="recguide", block_size=8)
    assert completion.text == decode(ANSWER[:13])
    assert completion.stats.reused == {}
    assert completion.stats.covered == ({"correction": 1} if slip.risky else {})
    assert completion.stats.forwards == 4


def test_the_continuation_is_reused_after_a_full_block():
    completion, _ = finish(Script(PROMPT, ANSWER), max_tokens=33, method="recguide", block_size=8)
    assert completion.stats.reused == {"continuation": 3}
    assert completion.stats.forwards == 1 + 4


def test_three_risky_slots_take_the_continuation_away_and_get_two_corrections():
    slips = {len(PROMPT) + at: Slip() for at in (3, 5, 7)}
    machine = engine(Script(PROMPT, ANSWER, slips))
    (request,) = machine.add(PROMPT, SamplingParams(max_tokens=40, method="recguide", block_size=8))
    for _ in range(3):  # prefill, draft, first verification
        machine.step()
    assert request.stats.branches == {"correction": 2}
    run(machine)
    assert request.completion().text == decode(ANSWER[:40])


@pytest.mark.parametrize("method", ["linear", "recguide", "tidar"])
def test_end_of_sequence_and_cap_at_every_pair_of_places(method):
    """The earliest end wins; EOS beats the cap at the same token."""
    for eos_at in range(1, 9):
        answer = (*ANSWER[:eos_at], EOS, *ANSWER[eos_at:])
        for cap in range(1, 9):
            script = Script(PROMPT, answer)
            plain, _ = finish(script, max_tokens=cap, method="ar")
            completion, _ = finish(script, max_tokens=cap, method=method, block_size=8)
            assert completion.token_ids == plain.token_ids == answer[: min(cap, eos_at + 1)]
            assert completion.finish_reason is plain.finish_reason
            assert plain.finish_reason is (FinishReason.STOP if eos_at < cap else FinishReason.LENGTH)
            assert completion.stats.tokens == len(completion.token_ids)


@pytest.mark.parametrize("block", [8, 16, 32])
def test_a_stop_string_cuts_exactly_wherever_it_falls_in_a_block(block):
    for at in range(1, 40):
        answer = (*ANSWER[:at], *encode("<END>"), *ANSWER)
        script = Script(PROMPT, answer)
        plain, _ = finish(script, max_tokens=60, method="ar", stop=["<END>"], logprobs=0)
        completion, machine = finish(
            script, max_tokens=60, method="recguide", block_size=block, stop=["<END>"], logprobs=0
        )
        assert completion.text == plain.text == decode(ANSWER[:at])
        assert completion.token_ids == plain.token_ids
        assert completion.stop_reason == "<END>"
        assert completion.logprobs is not None
        assert len(completion.logprobs) == len(completion.token_ids) == completion.stats.tokens == at + 5
        assert machine.runner.pool.used_pages == 0


def test_ignoring_eos_goes_on_and_stop_token_ids_still_stop():
    script = Script(PROMPT, (*ANSWER[:5], EOS, *ANSWER[5:]))
    completion, _ = finish(script, max_tokens=20, ignore_eos=True, stop_token_ids=[ANSWER[12]])
    assert completion.token_ids == (*ANSWER[:5], EOS, *ANSWER[5 : ANSWER.index(ANSWER[12], 5) + 1])[:20]
    assert completion.stop_reason == ANSWER[12]


def test_a_draft_never_reaches_past_the_cap():
    script = Script(PROMPT, ANSWER)
    completion, machine = finish(script, max_tokens=1, method="recguide", block_size=16)
    assert completion.stats.forwards == 0
    assert machine._backbone.query_tokens == len(PROMPT)  # pyright: ignore
    completion, _ = finish(script, max_tokens=2, method="recguide", block_size=16)
    assert completion.stats.forwards == 1
    assert completion.origins == (Origin.PREFILL, Origin.AR)


def test_requests_of_every_method_share_forwards():
    scripts = [Script((200 + at, *PROMPT[at:]), ANSWER[at:]) for at in range(len(METHODS))]
    machine = engine(*scripts, max_batch_tokens=48)
    requests = [
        machine.add(script.prompt, SamplingParams(max_tokens=40, method=method))[0]
        for script, method in zip(scripts, METHODS, strict=True)
    ]
    run(machine)
    for script, request in zip(scripts, requests, strict=True):
        assert request.completion().text == decode(script.answer[:40])


def test_preempted_requests_keep_output_budget_and_statistics():
    scripts = [Script((200 + at, *PROMPT), ANSWER[at:]) for at in range(8)]
    roomy, tight = engine(*scripts, page_size=4), engine(*scripts, page_size=4, kv_cache_tokens=120)
    results: list[list[tuple[int, ...]]] = []
    for machine in (roomy, tight):
        requests = [
            machine.add(script.prompt, SamplingParams(max_tokens=60, block_size=8))[0] for script in scripts
        ]
        run(machine)
        assert machine.runner.pool.used_pages == 0
        assert all(request.stats.tokens == 60 for request in requests)
        results.append([request.completion().token_ids for request in requests])
    assert results[0] == results[1]
    assert tight._backbone.query_tokens > roomy._backbone.query_tokens  # pyright: ignore


def test_aborting_frees_everything_at_any_point():
    script = Script(PROMPT, ANSWER)
    for steps in range(6):
        machine = engine(script)
        kept, dropped = (
            machine.add(PROMPT, SamplingParams(max_tokens=70, block_size=16))[0] for _ in range(2)
        )
        for _ in range(steps):
            machine.step()
        machine.abort(dropped)
        run(machine)
        assert dropped.completion().finish_reason is FinishReason.ABORT
        assert kept.completion().text == decode(ANSWER[:70])
        assert machine.runner.pool.used_pages == 0


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"method": "magic"}, "method"),
        ({"method": "ar", "block_size": 8}, "block_size"),
        ({"method": "linear", "threshold": 0.5}, "threshold"),
        ({"method": "diffusion", "repetition_penalty": 1.1}, "repetition_penalty"),
        ({"method": "diffusion", "logprobs": 1}, "logprobs"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"logit_bias": {9999: 1.0}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(params, field):
    machine = engine(Script(PROMPT, ANSWER))
    with pytest.raises(ParameterError) as error:
        machine.add(PROMPT, SamplingParams(**params))
    assert error.value.parameter == field
    assert not machine.busy


@pytest.mark.parametrize(("prompt", "words"), [((), "empty"), ((1, 999), "999")])
def test_a_bad_prompt_is_refused(prompt, words):
    with pytest.raises(ParameterError, match=words):
        engine(Script(PROMPT, ANSWER)).add(prompt, SamplingParams())


def test_a_model_without_mask_token_decodes_plainly_and_refuses_to_draft():
    backbone = FakeBackbone(Script(PROMPT, ANSWER))
    backbone.vocabulary = type(backbone.vocabulary)(260, (EOS,))
    machine = Engine(backbone, decode, EngineConfig())
    (request,) = machine.add(PROMPT, SamplingParams(max_tokens=10))
    run(machine)
    assert request.completion().stats.tpf == 1.0
    with pytest.raises(ParameterError, match="mask token"):
        machine.add(PROMPT, SamplingParams(method="linear"))


def test_a_failing_detokeniser_ends_its_request_and_leaves_the_engine_well():
    def broken(_):
        raise RuntimeError("no text")

    script = Script(PROMPT, ANSWER)
    machine = engine(script)
    machine._pieces = Pieces(broken)
    failed = [machine.add(PROMPT, SamplingParams(max_tokens=10, **more))[0] for more in ({}, {"stop": ["x"]})]
    run(machine)
    assert all("no text" in str(request.error) for request in failed)
    assert not any(chunk.completion for request in failed for chunk in request.inbox)
    assert machine.runner.pool.used_pages == 0
    machine._pieces = Pieces(decode)
    (request,) = machine.add(PROMPT, SamplingParams(max_tokens=10))
    run(machine)
    assert request.completion().text == decode(ANSWER[:10])


def test_parameters_that_leave_no_token_are_refused():
    everything = [token for token in range(260) if token != EOS]
    with pytest.raises(ParameterError, match="min_tokens"):
        engine(Script(PROMPT, ANSWER)).add(
            PROMPT, SamplingParams(max_tokens=5, min_tokens=1, stop_token_ids=everything)
        )


@pytest.mark.parametrize(
    "config",
    [
        {"max_running": 0},
        {"block_size": 0},
        {"block_size": 2.5},
        {"max_batch_tokens": 0},
        {"max_model_len": 0},
        {"kv_cache_tokens": -1},
        {"page_size": 0},
        {"gpu_memory_utilisation": 0},
        {"gpu_memory_utilisation": 1.5},
        {"method": "magic"},
    ],
)
def test_engine_settings_out_of_range_are_refused_by_name(config):
    with pytest.raises(ParameterError) as error:
        EngineConfig(**config)
    assert error.value.parameter == next(iter(config))


def test_statistics_count_what_was_kept():
    answer = (*ANSWER[:9], EOS)
    completion, _ = finish(Script(PROMPT, answer), max_tokens=40, method="recguide", block_size=16)
    stats = completion.stats
    assert stats.tokens == 10
    assert stats.acceptance == {9: 1}
    assert stats.accepted == 9
    assert stats.covered == stats.reused == {}
    assert stats.untrimmed >= 9


class Broken(FakeBackbone):
    """Gives NaN to requests of one script from their third token on."""

    def _logits(self, batch, index):
        logits = super()._logits(batch, index)
        row = batch.rows[int(batch.row[index])]
        script = self._told[int(batch.row[index])]
        return logits * float("nan") if script.prompt[0] == 201 and row.start > len(script.prompt) else logits


def test_nan_fails_its_own_request_and_no_other():
    scripts = [Script((200 + at, *PROMPT), ANSWER) for at in range(3)]
    machine = Engine(Broken(*scripts), decode, EngineConfig())
    requests = [
        machine.add(script.prompt, SamplingParams(max_tokens=40, block_size=8))[0] for script in scripts
    ]
    run(machine)
    assert [request.finish_reason for request in requests] == [
        FinishReason.LENGTH,
        FinishReason.ABORT,
        FinishReason.LENGTH,
    ]
    assert "NaN" in str(requests[1].error)
    for request in (requests[0], requests[2]):
        assert request.completion().text == decode(ANSWER[:40])
        assert request.error is None
    assert machine.runner.pool.used_pages == 0
