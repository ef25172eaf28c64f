"""The window holds the steps in which all requests decode, and nothing else."""

from __future__ import annotations

from tests.fake import Script, encode, engine

from recguide.bench.decoding import decode, spread
from recguide.core import SamplingParams

ANSWER = tuple(encode("an answer of some length that nobody reads"))
SCRIPTS = [Script(tuple(encode(f"{name} asks")), ANSWER) for name in "abc"]


def run(method, *, tokens=20, requests=3, **config):
    machine = engine(*SCRIPTS[:requests], block_size=8, **config)
    params = SamplingParams(max_tokens=tokens, method=method, ignore_eos=True)
    found = decode(machine, [script.prompt for script in SCRIPTS[:requests]], [params] * requests)
    assert not machine.busy
    return found


def test_plain_decoding_emits_a_token_a_step():
    found = run("ar")
    assert (found.load, found.tokens, len(found.step_ms)) == (3, 3 * 19, 19)
    assert found.tokens_per_s == 1e3 * found.tokens / sum(found.step_ms)
    assert found.stats.tpf == (3 * 20 - 1) / (3 * 19)


def test_the_window_ends_with_the_first_request_and_begins_after_the_last_prefill():
    found = run("ar", max_batch_tokens=8)
    # Prompts of 6 tokens, one a step: the first request is two tokens ahead when the last one joins.
    assert len(found.step_ms) < 19
    assert found.tokens == 3 * len(found.step_ms)


def test_one_request_by_rounds():
    found = run("linear", requests=1)
    assert found.tokens == 19
    assert found.stats.forwards == len(found.step_ms)
    assert found.stats.mean_acceptance > 4
    assert found.mean_prefix == 6 + 19 / 2


def test_spread():
    assert spread([3.0]) == {"median": 3.0, "p10": 3.0, "p90": 3.0}
    assert spread([float(i) for i in range(11)]) == {"median": 5.0, "p10": 1.0, "p90": 9.0}
