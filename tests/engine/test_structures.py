"""Structured output: speculative text is plain decoding's under every structure, and has its form."""

from __future__ import annotations

import json
from functools import cache

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import fake, toy
from tests.engine.device import device_engine, padded_engine
from tests.engine.test_equality import assert_same

from recguide.core import FinishReason, ParameterError, SamplingParams, Structure
from recguide.engine.engine import EngineConfig
from recguide.llm import LLM

SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "colour": {"enum": ["red", "blue", "grün"]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "note": {"type": "string", "maxLength": 5},
    },
    "required": ["count", "colour", "flags"],
    "additionalProperties": False,
}
CODE = "[a-f]{3,9}(-[0-9]{2})*!?"
NO_SPACES = {ord(space): -100.0 for space in " \t\r\n"}
"""Between JSON's tokens any white space is allowed, and random weights have no taste."""
STRUCTURES = {
    "object": Structure("json_object"),
    "schema": Structure("json_schema", json.dumps(SCHEMA)),
    "regex": Structure("regex", CODE),
    "grammar": Structure("grammar", 'start: item ("," item)*\nitem: /[xyz]{2}/ | "(" start ")"'),
}
SAMPLING = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 5, "n": 2},
    "filtered": {"temperature": 1.2, "seed": 6, "top_k": 40, "min_p": 0.001, "logprobs": 1},
    "penalised": {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "min_tokens": 12, "stop": ["1", "zz"]},
}
PROMPTS = ("give me some json: ", "x", "a longer prompt, please, that fills several pages of the cache ")
LONGEST = 32
METHODS = (("linear", 1), ("linear", 8), ("recguide", None), ("recguide", 16), ("tidar", 8))


@cache
def machine(**config):
    return LLM(toy.toy_model(), **config)


def complete(structure, method, block, llm=None, **params):
    wanted = SamplingParams(
        structure=structure,
        max_tokens=params.pop("max_tokens", LONGEST),
        method=method,
        block_size=block,
        logit_bias=NO_SPACES,
        **params,
    )
    llm = llm or machine()
    return fake.complete(llm.engine, [llm.tokenizer.encode(prompt) for prompt in PROMPTS], wanted)


@cache
def plain(structure, sampling):
    return complete(STRUCTURES[structure], "ar", None, **SAMPLING[sampling])


@pytest.mark.parametrize(("method", "block"), METHODS)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("structure", ["schema", "regex", "grammar"])
def test_structured_text_is_plain_decodings(structure, sampling, method, block):
    completions = complete(STRUCTURES[structure], method, block, **SAMPLING[sampling])
    assert_same(completions, plain(structure, sampling))


def has_form(structure, text):
    """Whether a whole text has a structure's form, as other libraries see it."""
    if structure == "regex":
        return regex.fullmatch(CODE, text) is not None
    if structure == "grammar":
        item = r"(?P<list>(?P<item>[xyz]{2}|\((?&list)\))(,(?&item))*)"
        return regex.fullmatch(item, text) is not None
    value = json.loads(text)
    if structure == "object":
        return isinstance(value, dict)
    return (
        set(value) - {"note"} == {"count", "colour", "flags"}
        and type(value["count"]) is int
        and value["colour"] in ("red", "blue", "grün")
        and all(isinstance(flag, bool) for flag in value["flags"])
        and len(value["flags"]) <= 3
        and len(value.get("note", "")) <= 5
    )


@settings(max_examples=8, deadline=None)
@given(
    structure=st.sampled_from(sorted(STRUCTURES)),
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
    block=st.integers(2, 20),
    method=st.sampled_from(["linear", "recguide", "tidar"]),
)
def test_a_text_that_ends_by_itself_is_complete_and_any_other_a_beginning(
    structure, seed, temperature, block, method
):
    completions = complete(STRUCTURES[structure], method, block, seed=seed, temperature=temperature)
    for completion in completions:
        if completion.finish_reason is FinishReason.STOP:
            assert completion.token_ids[-1] == toy.EOS
            assert has_form(structure, completion.text)
        else:
            assert len(completion.token_ids) == LONGEST
            assert begins(structure, bytes(completion.token_ids))


def begins(structure, text):
    """Whether bytes are the beginning of a text with the structure's form, as far as others can tell."""
    if structure == "regex":
        return regex.fullmatch(CODE, text.decode(), partial=True) is not None
    if structure == "grammar":
        return regex.fullmatch(rb"[xyz(),]*", text) is not None
    return text.startswith(b"{") and not _is_json(text)


def _is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_texts_end_by_themselves_and_drafts_pass_now_and_then():
    """The comparisons above are worth little if neither ever happens."""
    completions = complete(STRUCTURES["schema"], "recguide", 8, temperature=1.0, seed=5, max_tokens=90)
    assert any(completion.finish_reason is FinishReason.STOP for completion in completions)
    assert sum(completion.stats.accepted for completion in completions) > 10
    assert sum(completion.stats.reuse for completion in completions) > 0


@pytest.mark.parametrize(
    "config", [{"max_batch_tokens": 7}, {"kv_cache_tokens": 128}, {"max_running": 1}], ids=str
)
def test_preemption_and_company_leave_a_structure_alone(config):
    """A pool that is too small for all preempts some: their grammars stand where they stood."""
    sampling = SAMPLING["sampled"]
    llm = LLM(toy.toy_model(), **config)
    completions = complete(STRUCTURES["schema"], "recguide", 8, llm, **sampling)
    assert_same(completions, plain("schema", "sampled"))


# --- scripted: where several ends meet ----------------------------------------------------------------------

QUESTION = tuple(fake.encode("Say it: "))


def scripted(answer, structure, *, prompt=QUESTION, slips=(), **params):
    """Completions by every method, equal, of a model that wants `answer`."""
    script = fake.Script(prompt, tuple(answer), {len(prompt) + at: fake.Slip() for at in slips})
    engine = fake.engine(script)
    wanted = [
        SamplingParams(**{"max_tokens": 40, **params}, structure=structure, method=method, block_size=block)
        for method, block in (("ar", None), *METHODS)
    ]
    requests = [engine.add(prompt, each)[0] for each in wanted]
    fake.run(engine)
    first, *others = [request.completion() for request in requests]
    assert_same(others, [first] * len(others))
    return first


@pytest.mark.parametrize("offset", range(9))
def test_a_stop_string_before_the_grammars_end_in_one_block_wins(offset):
    answer = "a" * offset + "#!bc"
    structure = Structure("regex", f"a{{{offset}}}#!bc")
    completion = scripted(fake.encode(answer), structure, stop=["#!"])
    assert completion.text == "a" * offset
    assert completion.stop_reason == "#!"
    assert len(completion.token_ids) == offset + 2


@pytest.mark.parametrize("length", range(1, 12))
def test_the_grammars_end_comes_before_a_stop_string_that_the_model_wanted_later(length):
    completion = scripted(fake.encode("a" * length + "#!"), Structure("regex", f"a{{{length}}}"), stop=["#!"])
    assert completion.text == "a" * length
    assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, fake.EOS)


@pytest.mark.parametrize("cap", range(1, 12))
def test_a_cap_cuts_a_structure(cap):
    completion = scripted(fake.encode("abcdefgh"), Structure("regex", "[a-z]{8}"), max_tokens=cap, slips=[3])
    assert completion.text == "abcdefgh"[:cap]
    assert completion.finish_reason is (FinishReason.STOP if cap > 8 else FinishReason.LENGTH)


def test_nothing_ends_early_but_a_complete_structure_does_not_wait_for_min_tokens():
    """min_tokens holds end-of-sequence back for as long as anything else is allowed."""
    eager = {"min_tokens": 7, "logit_bias": {fake.EOS: 50.0}}
    assert scripted(fake.encode("aa"), Structure("regex", "a*"), **eager).text == "a" * 7
    assert scripted(fake.encode("aa"), Structure("regex", "a{3}"), **eager).text == "aaa"


@pytest.mark.parametrize("thoughts", range(10))
def test_a_structure_begins_after_the_thinking_that_the_prompt_opened(thoughts):
    answer = [*fake.encode("think...!!"[:thoughts]), fake.CLOSE, *fake.encode("ab!")]
    completion = scripted(answer, Structure("regex", "ab"), prompt=(*QUESTION, fake.OPEN))
    assert completion.token_ids == (*answer[:-1], fake.EOS)


def test_nothing_ends_inside_thinking():
    answer = [*fake.encode("hm"), fake.EOS]
    completion = scripted(answer, Structure("regex", "ab"), prompt=(*QUESTION, fake.OPEN), thinking_budget=6)
    assert fake.EOS not in completion.token_ids[:6]
    assert completion.token_ids[6:] == (fake.CLOSE, *fake.encode("ab"), fake.EOS)


def test_without_open_thinking_a_structure_begins_at_once():
    closed = (*QUESTION, fake.OPEN, fake.CLOSE)
    completion = scripted([fake.OPEN, *fake.encode("ab")], Structure("regex", "[a-z]{2}"), prompt=closed)
    assert len(completion.text) == 2
    assert fake.OPEN not in completion.token_ids


def test_a_grammar_that_gives_up_fails_its_request_alone():
    explosive = Structure("regex", "((a{0,100}){0,100}){0,100}")
    engine = fake.engine(fake.Script(QUESTION, tuple(fake.encode("a" * 40))))
    (failed,) = engine.add(QUESTION, SamplingParams(max_tokens=40, structure=explosive))
    (well,) = engine.add(QUESTION, SamplingParams(max_tokens=40, structure=Structure("regex", "a+")))
    fake.run(engine)
    assert failed.finish_reason is FinishReason.ABORT
    assert "structure" in str(failed.error)
    assert well.completion().text == "a" * 40
    assert engine.runner.pool.used_pages == 0


@pytest.mark.parametrize("make", [device_engine, padded_engine])
def test_structures_beside_requests_that_a_device_decides(make):
    """Plain steps run ahead of their text, but never past a structure's choice of tokens."""
    script = fake.Script(QUESTION, tuple(fake.encode("abcdefghijklmnop")), {len(QUESTION) + 4: fake.Slip()})
    engine = make(fake.FakeBackbone(script), fake.decode)
    engine.grammars = fake.engine(script).grammars
    structures = [Structure("regex", "[a-h]{8}"), None, Structure("regex", "[a-z]{3}xy")]
    for method, block in (("ar", None), ("recguide", 8)):
        requests = [
            engine.add(
                QUESTION, SamplingParams(max_tokens=12, structure=each, method=method, block_size=block)
            )[0]
            for each in structures
        ]
        fake.run(engine)
        assert [request.completion().text for request in requests] == ["abcdefgh", "abcdefghijkl", "abcxy"]


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "structure",
    [
        Structure("json_schema", '{"type": "objec"}'),
        Structure("json_schema", "{"),
        Structure("json_schema", "5"),
        Structure("json_schema", "false"),
        Structure("json_schema", '{"type": "string", "pattern": "(?=a)b"}'),
        Structure("regex", "(["),
        Structure("regex", "(?=a)b"),
        Structure("grammar", "start: ("),
        Structure("json_schema", '{"$ref": "#/a", "a": {"$ref": "#/a"}}'),
    ],
    ids=str,
)
def test_what_cannot_be_compiled_is_refused_before_anything_runs(structure):
    with pytest.raises(ParameterError, match="structure") as caught:
        machine().engine.add([1, 2], SamplingParams(structure=structure))
    assert caught.value.parameter == "structure"
    assert not machine().engine.busy


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"method": "diffusion", "block_size": 8}, "structure"),
        ({"ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_does_not_go_with_a_structure_is_refused_by_name(params, field):
    with pytest.raises(ParameterError) as caught:
        machine().engine.add([1, 2], SamplingParams(structure=STRUCTURES["object"], **params))
    assert caught.value.parameter == field


def test_without_a_tokenizer_there_are_no_structures():
    script = fake.Script(QUESTION, ())
    bare = fake.Engine(fake.FakeBackbone(script), fake.decode, EngineConfig())
    with pytest.raises(ParameterError, match="tokenizer"):
        bare.add(QUESTION, SamplingParams(structure=STRUCTURES["regex"]))


def test_without_llguidance_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(ParameterError, match=r"recguide\[serve\]"):
        LLM(toy.toy_model()).generate("x", SamplingParams(structure=STRUCTURES["regex"]))
