"""The real engine on a CPU with replayed acceptance: one text for all methods, rounds as the process says."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from tests.toy import toy_model

from recguide.bench.acceptance.picker import ReplayPicker
from recguide.bench.acceptance.process import fitted
from recguide.bench.acceptance.sample import sample_rounds
from recguide.core import RoundStats, SamplingParams
from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.speculation.slots import torch_picker

MODEL = toy_model()
VOCABULARY = MODEL.vocabulary


def decoded(name, method, block, *, requests, tokens, temperature=0.0, blind=False):
    """Completions of requests with sampling seeds 0, 1, 2, …"""
    process = fitted(name).process
    picker = ReplayPicker(torch_picker(VOCABULARY), process.blind() if blind else process, VOCABULARY)
    machine = Engine(MODEL, lambda _: "", EngineConfig(max_batch_tokens=4096), picker=picker)
    running = [
        machine.add(
            (65, 66, 67 + seed),
            SamplingParams(
                max_tokens=tokens, method=method, block_size=block, seed=seed, temperature=temperature
            ),
        )[0]
        for seed in range(requests)
    ]
    while machine.busy:
        machine.step()
    return [request.completion() for request in running]


@cache
def plain():
    return [completion.token_ids for completion in decoded("nld-8b", "ar", None, requests=4, tokens=60)]


@pytest.mark.parametrize("method", ["linear", "tidar", "recguide"])
@pytest.mark.parametrize(("block", "temperature"), [(8, 0.8), (16, 0.0), (32, 0.0)])
def test_every_method_emits_the_same_text(method, block, temperature):
    completions = decoded(
        "nld-8b", method, block, requests=4, tokens=60, temperature=temperature, blind=method == "tidar"
    )
    assert [completion.token_ids for completion in completions] == plain()
    assert all(len(completion.token_ids) == 60 for completion in completions)


def test_texts_of_different_seeds_differ():
    assert len(set(plain())) == 4


PROMPT, TOKENS = 3, 120


@pytest.mark.parametrize("name", ["nld-8b", "nld-14b"])
@pytest.mark.parametrize("block", [8, 16, 32])
def test_rounds_are_those_of_the_script(name, block):
    """Round for round, to where the cap cuts blocks short; the first token comes from prefill."""
    process = fitted(name).process
    completions = decoded(name, "recguide", block, requests=3, tokens=TOKENS)
    script = sample_rounds(process, VOCABULARY, block, texts=3, rounds=40, position=PROMPT)
    whole = script.acceptance.cumsum(1) <= TOKENS - 1 - block
    for index, completion in enumerate(completions):
        stats, counted = completion.stats, whole[index]
        cut = stats.rounds - int(counted.sum())
        assert 0 <= cut <= block
        assert not Counter(script.acceptance[index][counted].tolist()) - stats.acceptance
        for kind, covered, hit in (
            ("correction", script.corrected, script.corrected_hit),
            ("continuation", script.continued, script.continued_hit),
        ):
            assert 0 <= stats.covered[kind] - int(covered[index][counted].sum()) <= cut
            assert abs(stats.reused[kind] - int(hit[index][counted].sum())) <= cut
        assert abs(stats.forwards - (2 * stats.rounds - stats.reused.total())) <= 2


def test_serial_drafts_are_accepted_alike():
    overlapped = decoded("nld-8b", "recguide", 16, requests=3, tokens=TOKENS)
    serial = decoded("nld-8b", "linear", 16, requests=3, tokens=TOKENS)
    for one, other in zip(overlapped, serial, strict=True):
        assert one.stats.acceptance == other.stats.acceptance
        assert one.stats.forwards < other.stats.forwards


def test_blind_drafts_are_always_reused_and_accepted_less():
    seeing, blind = RoundStats(), RoundStats()
    for completion in decoded("nld-8b", "linear", 16, requests=4, tokens=TOKENS):
        seeing.add(completion.stats)
    for completion in decoded("nld-8b", "tidar", 16, requests=4, tokens=TOKENS, blind=True):
        blind.add(completion.stats)
        assert completion.stats.reused["any"] >= completion.stats.rounds - 3
    assert blind.mean_acceptance < 0.85 * seeing.mean_acceptance
