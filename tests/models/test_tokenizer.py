"""Tokenizers and chat templates of checkpoint folders."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny import SPECIALS, VOCABULARY, write_json, write_tokenizer

from recguide.core import CheckpointError, ParameterError, Structure, Vocabulary
from recguide.models.tokenizer import Tokenizer
from recguide.speculation.grammar import Grammars

ASK = [{"role": "user", "content": "2+2?"}]
NO_SYSTEM = "<|im_start|>system\n<|im_end|>\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tokenizer(folder)
    return Tokenizer.load(folder)


@pytest.fixture
def folder(tmp_path):
    write_tokenizer(tmp_path)
    return tmp_path


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    if "<" not in text:
        assert ids == [SPECIALS + byte for byte in text.encode()]


def test_spaces_are_kept_as_they_are(tokenizer):
    for text in ("a , b !", " it 's", "x  y\n\n z ", "I do n't ."):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=6), max_size=4))
@settings(max_examples=60, deadline=None)
def test_whole_characters_are_joined_where_tokens_are_bytes(tokenizer, parts):
    assert tokenizer.joins
    texts = [tokenizer.decode(part) for part in parts]
    if not any("\ufffd" in text for text in texts):
        assert tokenizer.decode([token for part in parts for token in part]) == "".join(texts)


@pytest.mark.parametrize(
    "decoder", [None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}]
)
def test_other_decoders_know_more_than_single_tokens(folder, decoder):
    content = json.loads((folder / "tokenizer.json").read_text())
    write_json(folder / "tokenizer.json", {**content, "decoder": decoder})
    assert not Tokenizer.load(folder).joins


def test_special_tokens(tokenizer):
    ids = tokenizer.encode("<|im_start|>a<|im_end|>")
    assert ids == [10, SPECIALS + ord("a"), 11]
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>a<|im_end|>"
    assert tokenizer.special_ids == frozenset(range(SPECIALS))
    assert tokenizer.think_ids == (12, 13)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.size) == (1, 11, VOCABULARY)
    assert tokenizer.token_id("<|im_end|>") == 11
    assert tokenizer.token_id("no token") is None
    assert tokenizer.token(11) == "<|im_end|>"


def test_reasoning_marks_are_text(tokenizer):
    """They are special tokens here, and without them nobody could tell reasoning from the answer."""
    ids = tokenizer.encode("<|im_start|><think>hm</think>4<|im_end|>")
    assert tokenizer.decode(ids) == "<think>hm</think>4"


def test_tool_marks_are_text_even_if_they_are_special_tokens(folder):
    """Both in what is decoded and for a grammar, which then may demand them."""
    file = folder / "tokenizer.json"
    file.write_text(
        file.read_text().replace("<SPECIAL_14>", "<tool_call>").replace("<SPECIAL_15>", "</tool_call>")
    )
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.encode("<tool_call>{}</tool_call><|im_end|>")
    assert (ids[0], ids[-2], ids[-1]) == (14, 15, 11)
    assert tokenizer.decode(ids) == "<tool_call>{}</tool_call>"
    grammars = Grammars(tokenizer.json, tokenizer.size, Vocabulary(size=VOCABULARY, eos=(11,)))
    matcher = grammars.matcher(Structure("regex", "<tool_call>x"), ())
    assert (0, 14) in matcher.allowed([])
    assert (0, 12) not in matcher.allowed([])
    assert (0, SPECIALS + ord("x")) in matcher.allowed([14])


@pytest.mark.parametrize(
    ("switch", "ending"),
    [
        ({}, "<think></think>"),
        ({"enable_thinking": False}, "<think></think>"),
        ({"enable_thinking": True}, "<think>\n"),
    ],
)
def test_the_thinking_switch(tokenizer, switch, ending):
    text = NO_SYSTEM + "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n" + ending
    assert tokenizer.render(ASK, **switch) == text
    assert tokenizer.chat(ASK, **switch) == tokenizer.encode(text)


def test_history_and_system_turns(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>long</think>b"},
        *ASK,
    ]
    assert tokenizer.render(messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
        "<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n"
        "<|im_start|>assistant\n<think></think>"
    )


def test_an_argument_that_the_template_does_not_know(tokenizer):
    with pytest.raises(ParameterError, match=r"chat_template_kwargs: .*no 'enable_thoughts'"):
        tokenizer.chat(ASK, enable_thoughts=True)


@pytest.mark.parametrize(
    "name", ["messages", "self", "tokenize", "add_generation_prompt", "tools", "chat_template"]
)
def test_arguments_of_the_renderer_are_no_template_arguments(tokenizer, name):
    with pytest.raises(ParameterError, match="chat_template_kwargs"):
        tokenizer.chat(ASK, **{name: "x"})


@pytest.mark.parametrize(
    "messages", [[{"role": "tool", "content": "x"}], [{"role": "user", "content": 3}], []]
)
def test_messages_that_the_template_refuses(tokenizer, messages):
    with pytest.raises(ParameterError, match=r"messages: the chat template of .* refuses them: "):
        tokenizer.chat(messages)


@pytest.mark.parametrize(
    "messages",
    [[{"role": "user"}], [{"content": "x"}], [{"role": 5, "content": "x"}], [5], "hi", None, ASK[0]],
)
def test_what_is_no_conversation(folder, messages):
    """Whatever the template: most print nothing where something is missing."""
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(ParameterError, match=r"^messages: (turn 0|must be a list)"):
        Tokenizer.load(folder).chat(messages)


@pytest.mark.parametrize("text", ["a\ud800", "\udfff!", "\ud83d \ude00"])
def test_half_a_surrogate_pair_is_no_text(tokenizer, text):
    with pytest.raises(ParameterError, match=r"^prompt: character \d+ is U\+D"):
        tokenizer.encode(text)
    with pytest.raises(ParameterError, match=r"^messages: character \d+ is U\+D"):
        tokenizer.chat([{"role": "user", "content": text}])


@pytest.mark.parametrize("template", ["{% for %}", "{{ nothing.there.at.all }}"])
def test_a_broken_template(folder, template):
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ParameterError, match="refuses them"):
        Tokenizer.load(folder).chat(ASK)


def test_a_base_model_has_no_template(folder):
    (folder / "chat_template.jinja").unlink()
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.chat_template is None
    with pytest.raises(ParameterError, match=r"messages: .* has no chat template"):
        tokenizer.chat(ASK)


def test_one_bos_whoever_writes_it(folder):
    """A tokenizer that adds a BOS to texts, under templates with and without one of their own."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    write_json(file, content)
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode("a") == [1, SPECIALS + ord("a")]
    assert tokenizer.encode("a", add_special_tokens=False) == [SPECIALS + ord("a")]
    assert tokenizer.chat([{"role": "user", "content": "a"}]) == [1, SPECIALS + ord("a")]
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert Tokenizer.load(folder).chat([{"role": "user", "content": "a"}]) == [SPECIALS + ord("a")]


def test_a_missing_or_broken_file(folder):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(folder)
