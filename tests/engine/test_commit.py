"""Commit: of end of sequence, stop string and cap the earliest ends the text, in a block's every slot."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.fake import EOS, Script, Slip, decode, encode, engine, run

from recguide.core import FinishReason, Origin, SamplingParams

PROMPT = tuple(encode("Say it: "))
ANSWER = tuple(encode("the quick brown fox jumps over the lazy dog"))
STOP = "#!"
BLOCK = 8
METHODS = ("ar", "linear", "recguide", "tidar")
CAPS = range(1, 10)
EOS_ENDS = (None, *range(1, 9))
STRING_ENDS = (None, *range(2, 9))
SLIPS = {
    "perfect": {},
    "risky": {3: Slip(), 6: Slip()},
    "hopeless": {at: Slip(risky=False, second_right=False) for at in range(12)},
}


def script(eos_end, string_end, slips=()):
    """An answer whose `eos_end`-th token is EOS and whose `string_end`-th completes the stop string."""
    answer = list(ANSWER)
    if string_end is not None:
        answer[string_end - len(STOP) : string_end] = encode(STOP)
    if eos_end is not None:
        answer[eos_end - 1] = EOS
    return Script(PROMPT, tuple(answer), {len(PROMPT) + at: slip for at, slip in dict(slips).items()})


def expected(answer, cap, *, stop_tokens=(EOS,)):
    """Text, ids, reason, what stopped, told token by token; stop tokens beat stop strings beat the cap."""
    for length in range(1, cap + 1):
        ids = answer[:length]
        text = decode(ids)
        if ids[-1] in stop_tokens:
            return text, ids, FinishReason.STOP, ids[-1]
        if text.endswith(STOP):
            return text.removesuffix(STOP), ids, FinishReason.STOP, STOP
    return decode(answer[:cap]), answer[:cap], FinishReason.LENGTH, None


def outcome(completion):
    return completion.text, completion.token_ids, completion.finish_reason, completion.stop_reason


def finish(of, wanted):
    """Completions of one prompt under every set of parameters, decoded together."""
    machine = engine(of)
    requests = [machine.add(of.prompt, params)[0] for params in wanted]
    run(machine)
    assert machine.runner.pool.used_pages == 0
    return [request.completion() for request in requests]


def sweep(of, **params):
    """(cap, completion) for every cap and method."""
    wanted = [
        SamplingParams(
            max_tokens=cap, method=method, block_size=None if method == "ar" else BLOCK, stop=[STOP], **params
        )
        for cap in CAPS
        for method in METHODS
    ]
    completions = finish(of, wanted)
    return [(each.max_tokens, completion) for each, completion in zip(wanted, completions, strict=True)]


def assert_adds_up(completion):
    """What the statistics and the origins say of the same tokens."""
    stats, origins = completion.stats, Counter(completion.origins)
    assert stats.tokens == len(completion.token_ids) == len(completion.origins) == origins.total()
    assert set(origins) <= set(Origin) - {Origin.DIFFUSION}
    assert origins[Origin.PREFILL] == 1
    assert completion.origins[0] is Origin.PREFILL
    matched = origins[Origin.ACCEPTED] + origins[Origin.REUSED]
    judged = origins[Origin.CORRECTION] + origins[Origin.BONUS]
    assert matched + judged + origins[Origin.AR] + origins[Origin.PREFILL] == stats.tokens
    assert matched <= stats.accepted <= stats.drafted
    assert judged <= stats.rounds
    assert origins[Origin.AR] <= stats.blocks[1]
    assert stats.tokens - 1 <= stats.untrimmed


@pytest.mark.parametrize(
    ("string_end", "slips"), [*((end, "risky") for end in STRING_ENDS), (None, "perfect"), (5, "perfect")]
)
def test_end_of_sequence_stop_string_and_cap_at_every_place(string_end, slips):
    for eos_end in EOS_ENDS:
        of = script(eos_end, string_end, SLIPS[slips])
        for cap, completion in sweep(of):
            assert outcome(completion) == expected(of.answer, cap), (eos_end, cap)
            assert_adds_up(completion)


@pytest.mark.parametrize("string_end", [None, 2, 5, 8])
def test_min_tokens_puts_every_end_off(string_end):
    """The string that was completed too early stays in the text and never ends it."""
    for eos_end in (None, 1, 4, 8):
        of = script(eos_end, string_end)
        for minimum in (4, 9):
            wanted = [
                SamplingParams(
                    max_tokens=9,
                    min_tokens=minimum,
                    method=method,
                    block_size=None if method == "ar" else BLOCK,
                    stop=[STOP],
                )
                for method in METHODS
            ]
            plain, *others = finish(of, wanted)
            assert len(plain.token_ids) >= minimum
            for completion in others:
                assert outcome(completion) == outcome(plain), (eos_end, minimum)
                assert_adds_up(completion)


@pytest.mark.parametrize("end", range(2, 10))
def test_a_stop_token_that_completes_a_stop_string_at_the_cap_stops_as_a_token(end):
    of = script(None, end)
    for cap, completion in sweep(of, stop_token_ids=[ord("!")]):
        assert outcome(completion) == expected(of.answer, cap, stop_tokens=(EOS, ord("!"))), cap
        if cap >= end:
            assert completion.text.endswith(STOP)
            assert completion.stop_reason == ord("!")


def test_every_origin_of_a_verifying_method_occurs_in_the_sweep():
    """The identities above are worth little if some origin is never there."""
    seen = {
        origin
        for slips in SLIPS.values()
        for _, completion in sweep(script(None, None, slips))
        for origin in completion.origins
    }
    (longer,) = finish(
        script(None, None), [SamplingParams(max_tokens=24, method="recguide", block_size=BLOCK)]
    )
    assert seen | set(longer.origins) == set(Origin) - {Origin.DIFFUSION}
