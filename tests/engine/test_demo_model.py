"""The demo model with its shipped adapter through the whole engine, in float32 on a CPU.

`make test` gives every method and block size one or more of the prompts, all in one batch; the whole cross
product is slow.
"""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch

from recguide.core import SamplingParams, Structure
from recguide.llm import LLM
from recguide.models.sources import resolve

QUESTIONS = {
    "sums": "Ann has 3 bags of 4 apples and eats 2. How many are left?",
    "code": "Write a Python function that returns the sum of the squares of a list.",
    "words": "Repeat: red blue green red blue green red blue green red blue green red blue green",
    "facts": "Name the planets from the sun outwards and say one thing about each of them.",
}
SAMPLING = {"greedy": {}, "sampled": {"temperature": 0.8, "seed": 1234}}
SETTINGS = {
    "plain": {},
    "stops": {"stop": ["is", "\n\n"], "stop_token_ids": [30]},
    "penalties": {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.2,
        "logit_bias": {30: 1.5, 28: -2.0},
    },
    "min_tokens": {"min_tokens": 9, "stop_token_ids": list(range(17, 400)), "top_k": 12},
    "choices": {"n": 2, "logprobs": 2, "top_p": 0.9, "min_p": 0.01},
}
TOLERANCE = 2e-3
"""Of log-probabilities: float32 rounding in two layouts of the same tokens."""


@cache
def llm():
    return LLM("smollm2-135m", device="cpu")


@cache
def prompt(name):
    system = {"role": "system", "content": "Be brief."}
    return tuple(llm().tokenizer.chat([system, {"role": "user", "content": QUESTIONS[name]}]))


def complete(jobs):
    """Choices of every (prompt's name, parameters), decoded together."""
    generations = llm().generate([prompt(name) for name, _ in jobs], [params for _, params in jobs])
    return [generation.completions for generation in generations]


def assert_same(choices, reference):
    for completion, expected in zip(choices, reference, strict=True):
        assert completion.token_ids == expected.token_ids
        assert completion.text == expected.text
        assert completion.finish_reason is expected.finish_reason
        assert completion.stop_reason == expected.stop_reason
        assert completion.seed == expected.seed
        assert (completion.logprobs is None) == (expected.logprobs is None)
        for got, wanted in zip(completion.logprobs or (), expected.logprobs or (), strict=True):
            assert got.logprob == pytest.approx(wanted.logprob, abs=TOLERANCE)
            assert sorted(got.top.values()) == pytest.approx(sorted(wanted.top.values()), abs=TOLERANCE)


# --- quick --------------------------------------------------------------------------------------------------

GREEDY = (
    *((name, "ar", None) for name in ("sums", "code", "words")),
    *((name, "linear", 16) for name in ("sums", "code", "words")),
    ("sums", "linear", 8),
    ("code", "recguide", 8),
    ("words", "recguide", 16),
    ("sums", "tidar", 8),
    ("code", "tidar", 16),
)


@cache
def greedy():
    """(prompt's name, method, block size) → its only completion."""
    jobs = [
        (name, SamplingParams(max_tokens=24, method=method, block_size=block))
        for name, method, block in GREEDY
    ]
    return {key: choices[0] for key, choices in zip(GREEDY, complete(jobs), strict=True)}


@pytest.mark.parametrize(("name", "method", "block"), GREEDY[3:])
def test_greedy_text_is_plain_text(name, method, block):
    assert_same([greedy()[name, method, block]], [greedy()[name, "ar", None]])


def test_the_adapter_is_applied():
    """Without it about one token a round passes."""
    stats = [greedy()[name, "linear", 16].stats for name in ("sums", "code", "words")]
    rounds = sum(each.rounds for each in stats)
    assert rounds >= 3
    assert sum(each.mean_acceptance * each.rounds for each in stats) / rounds > 2


def test_plain_greedy_text_is_transformers():
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(resolve("smollm2-135m"), dtype=torch.float32)
    for name in ("code", "words"):  # the second ends itself
        ids = torch.tensor([prompt(name)])
        with torch.no_grad():
            text = theirs.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :]
        assert greedy()[name, "ar", None].token_ids == tuple(text.tolist())


def test_sampled_text_is_plain_text():
    sampled = {"temperature": 0.8, "seed": 7, "max_tokens": 16}
    plain, drafted = complete(
        [
            ("code", SamplingParams(method="ar", **sampled)),
            ("code", SamplingParams(method="recguide", block_size=16, **sampled)),
        ]
    )
    assert_same(drafted, plain)
    assert drafted[0].token_ids != greedy()["code", "ar", None].token_ids[:16]


def test_penalties_stops_choices_and_logprobs_together():
    settings = {
        **SETTINGS["penalties"],
        "temperature": 0.8,
        "seed": 11,
        "stop": ["fruits"],
        "n": 2,
        "logprobs": 2,
        "max_tokens": 16,
    }
    plain, drafted = complete(
        [
            ("sums", SamplingParams(method="ar", **settings)),
            ("sums", SamplingParams(method="recguide", block_size=8, **settings)),
        ]
    )
    assert_same(drafted, plain)
    assert [completion.stop_reason for completion in plain] == ["fruits", None]


# --- slow ---------------------------------------------------------------------------------------------------


BLOCKS = (1, 2, 8, 16, 32)
TOKENS = 20


def params(setting, sampling, **method):
    return SamplingParams(max_tokens=TOKENS, **SETTINGS[setting], **SAMPLING[sampling], **method)


@cache
def plain(setting, sampling):
    """Prompt's name → its choices by plain decoding."""
    jobs = [(name, params(setting, sampling, method="ar")) for name in QUESTIONS]
    return dict(zip(QUESTIONS, complete(jobs), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", ["linear", "tidar", "recguide"])
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_method_block_size_and_setting_gives_plain_text(setting, sampling, method):
    """Every block size of a method in one batch; TiDAR, whose rows grow with B², on half the prompts."""
    names = list(QUESTIONS)[: 2 if method == "tidar" else None]
    jobs = [
        (name, params(setting, sampling, method=method, block_size=block))
        for block in BLOCKS
        for name in names
    ]
    for (name, _), choices in zip(jobs, complete(jobs), strict=True):
        assert_same(choices, plain(setting, sampling)[name])


def test_structured_text_is_plain_decodings_and_complete():
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "maximum": 99},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    structure = Structure("json_schema", json.dumps(schema))
    jobs = [
        ("facts", SamplingParams(max_tokens=40, structure=structure, method=method, block_size=block))
        for method, block in (("ar", None), ("linear", 8), ("recguide", 8), ("tidar", 4))
    ]
    reference, *others = complete(jobs)
    for choices in others:
        assert_same(choices, reference)
    assert set(json.loads(reference[0].text)) == {"name", "age"}
