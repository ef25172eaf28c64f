"""Tools: calls are read the same however a text comes, and an answer that has to be a call is one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.test_reasoning import cut
from tests.toy import toy_model

from recguide.core import ParameterError, SamplingParams
from recguide.llm import LLM
from recguide.serving.tools import plan_tools, template_turn

TAGGED = "{% if tools %}<tool_call> is how {{ tools }} are called{% endif %}"
BARE = '{% if tools %}answer with {"name": ..., "parameters": ...} for {{ tools }}{% endif %}'


def tool(name, **properties):
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


WEATHER = tool("weather", city={"enum": ["Oslo", "Rome"]}, days={"type": "integer", "maximum": 9})
CLOCK = tool("clock", utc={"type": "boolean"})
TOOLS = [WEATHER, CLOCK]
WEATHER_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
CLOCK_CALL = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'


def hear(pieces, template=TAGGED, tools=TOOLS):
    parser = plan_tools(tools, None, template).parser()
    heard = [*map(parser.push, pieces), parser.finish()]
    calls = [(call.name, json.loads(call.arguments)) for part in heard for call in part.calls]
    return "".join(part.content for part in heard), calls


PIECES = st.sampled_from(
    [WEATHER_CALL, CLOCK_CALL, "<tool_call>", "</tool_call>", "<tool_", "hm", " ", "\n", '{"name": "x"}']
)


@given(st.lists(PIECES, max_size=8).map("".join), st.lists(st.integers(0, 300), max_size=12))
def test_any_cut_is_heard_like_the_whole(text, places):
    assert hear(cut(text, places)) == hear([text])


@given(st.lists(st.sampled_from([WEATHER_CALL, CLOCK_CALL, "one", "two"]), max_size=6))
def test_words_and_calls_come_out_in_their_order(parts):
    content, calls = hear(list("\n".join(parts)))
    assert [name for name, _ in calls] == [
        "weather" if part is WEATHER_CALL else "clock" for part in parts if part.startswith("<")
    ]
    assert content.split() == [part for part in parts if not part.startswith("<")]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (WEATHER_CALL, "", [("weather", {"city": "Rome", "days": 2})]),
        (f"Let me see.\n\n{CLOCK_CALL}\n", "Let me see.", [("clock", {})]),
        (WEATHER_CALL.removesuffix("</tool_call>"), "", [("weather", {"city": "Rome", "days": 2})]),
        (WEATHER_CALL[:40], WEATHER_CALL[:40], []),
        ("<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", []),
        (CLOCK_CALL.replace("clock", "rm"), CLOCK_CALL.replace("clock", "rm"), []),
        ("plain words  \n", "plain words  \n", []),
        ("a < b", "a < b", []),
    ],
)
def test_what_is_a_call_and_what_is_text(text, content, calls):
    assert hear(list(text)) == (content, calls)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('{"name": "clock", "parameters": {"utc": true}}', "", [("clock", {"utc": True})]),
        ('{"name": "clock"', '{"name": "clock"', []),
        ('{"name": "other", "parameters": {}}', '{"name": "other", "parameters": {}}', []),
        ("It is late.", "It is late.", []),
    ],
)
def test_a_bare_object_is_a_call_or_text(text, content, calls):
    assert hear(list(text), BARE) == (content, calls)


def test_words_that_are_no_call_are_not_held_back():
    parser = plan_tools(TOOLS, "auto", TAGGED).parser()
    assert parser.push("so a <").content == "so a"
    assert parser.push("b").content == " <b"


def test_every_call_has_an_id_of_its_own():
    heard = plan_tools(TOOLS, None, TAGGED).parser().push(WEATHER_CALL + CLOCK_CALL)
    assert len({call.id for call in heard.calls}) == 2


@pytest.mark.parametrize("template", [TAGGED, BARE])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "clock"}),
        ({"type": "function", "function": {"name": "clock"}}, {"clock"}),
    ],
)
def test_an_answer_that_has_to_be_a_call_is_one(template, choice, names):
    """Random weights write it, so only the structure can be to blame."""
    plan = plan_tools(TOOLS, choice, template, parallel=False)
    spaces = {ord(space): -100.0 for space in " \t\r\n"}
    params = SamplingParams(
        structure=plan.structure, max_tokens=200, temperature=1.0, seed=3, n=4, logit_bias=spaces
    )
    for completion in LLM(toy_model()).generate("call: ", params)[0].completions:
        content, calls = hear([completion.text], template)
        assert content == ""
        ((name, arguments),) = calls
        assert name in names
        if name == "weather":
            assert arguments["city"] in ("Oslo", "Rome")
            assert arguments["days"] <= 9
        else:
            assert arguments in ({"utc": True}, {"utc": False})


def test_one_call_ends_an_answer_that_may_hold_no_more():
    assert plan_tools(TOOLS, "auto", TAGGED, parallel=False).stop == ("</tool_call>",)
    assert plan_tools(TOOLS, "auto", TAGGED).stop == ()


@pytest.mark.parametrize("choice", ["none", None, "auto"])
def test_without_use_there_is_no_plan(choice):
    assert plan_tools([], choice, None) is None
    assert plan_tools(TOOLS, "none", None) is None


@pytest.mark.parametrize(
    ("tools", "choice", "template", "field"),
    [
        (TOOLS, None, None, "tools"),
        (TOOLS, None, "{{ messages }}", "tools"),
        (TOOLS, None, "{{ tools }} in unknown ways", "tools"),
        (TOOLS, None, "{{ tools }} <tool_call><function=name>", "tools"),
        ([{"type": "retrieval"}], None, TAGGED, "tools"),
        ([tool("no spaces")], None, TAGGED, "tools"),
        (TOOLS, "sometimes", TAGGED, "tool_choice"),
        (TOOLS, {"type": "function", "function": {"name": "rm"}}, TAGGED, "tool_choice"),
        ([], "required", TAGGED, "tool_choice"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(tools, choice, template, field):
    with pytest.raises(ParameterError) as caught:
        plan_tools(tools, choice, template)
    assert caught.value.parameter == field


def test_a_templates_turn_has_arguments_as_values():
    call = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"utc": true}'}}
    turn = template_turn({"role": "assistant", "content": None, "tool_calls": [call]})
    assert turn["tool_calls"][0]["function"]["arguments"] == {"utc": True}
    call["function"]["arguments"] = "[1]"
    with pytest.raises(ParameterError, match="clock"):
        template_turn({"role": "assistant", "tool_calls": [call]})
