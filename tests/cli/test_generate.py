from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from tests.toy import toy_model

from recguide.cli import summary
from recguide.core import Completion, FinishReason, Generation, Origin, RoundStats


def test_json_is_one_object_with_everything(cli):
    result = cli(
        "generate", "toy", "Hello", "--max-tokens", "12", "--json", "--ignore-eos", "--logprobs", "2"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert found["method"] == "recguide"
    (generation,) = found["generations"]
    (choice,) = generation["choices"]
    assert generation["prompt"] == "Hello"
    assert len(choice["token_ids"]) == len(choice["origins"]) == len(choice["logprobs"]) == 12
    assert choice["finish_reason"] == "length"
    assert set(choice["origins"]) <= {origin.value for origin in Origin}
    assert {"tpf", "tpf_with_prefill", "acceptance", "coverage", "reuse", "seconds"} <= set(found)
    assert found["tokens"] == 12


def test_the_streamed_text_is_that_of_json(cli):
    arguments = ("generate", "toy", "Hello", "--max-tokens", "20", "--temperature", "1", "--seed", "3")
    streamed = cli(*arguments)
    text = json.loads(cli(*arguments, "--json").stdout)["generations"][0]["choices"][0]["text"]
    assert streamed.exit_code == 0
    assert streamed.stdout == text + "\n"
    assert "accepted draft" in streamed.stderr
    assert "TPF with prefill" in streamed.stderr


def test_compare_says_that_both_texts_are_equal(cli):
    result = cli("generate", "toy", "Hello", "--max-tokens", "20", "--compare", "--temperature", "0.9")
    assert result.exit_code == 0
    assert "Both texts are equal" in result.stderr
    assert "compute-bound" in result.stderr
    assert "forwards saved" in result.stderr


def test_compare_fails_if_texts_differ(cli, monkeypatch):
    monkeypatch.setattr(summary, "difference", lambda *_: "text 0 differs at token 3")
    result = cli("generate", "toy", "Hello", "--max-tokens", "4", "--compare", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["equal"] is False
    shown = cli("generate", "toy", "Hello", "--max-tokens", "4", "--compare")
    assert shown.exit_code == 1
    assert "NOT equal: text 0 differs at token 3" in shown.stderr


def test_compare_gives_plain_decoding_the_same_sampling_seed(cli):
    found = json.loads(
        cli(
            "generate",
            "toy",
            "Hi",
            "-n",
            "3",
            "--temperature",
            "1",
            "--max-tokens",
            "9",
            "--compare",
            "--json",
        ).stdout
    )
    assert found["equal"] is True
    assert found["plain"]["method"] == "ar"
    seeds = [[c["seed"] for c in run["generations"][0]["choices"]] for run in (found, found["plain"])]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3


def test_prompts_from_a_file_and_from_stdin(cli, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    found = json.loads(cli("generate", "toy", "--file", str(file), "--max-tokens", "3", "--json").stdout)
    assert [generation["prompt"] for generation in found["generations"]] == ["one", "two"]
    piped = json.loads(cli("generate", "toy", "--max-tokens", "3", "--json", stdin="from a pipe").stdout)
    assert piped["generations"][0]["prompt"] == "from a pipe"


def test_the_template_switch(cli):
    def prompt_tokens(*flags: str) -> int:
        result = cli("generate", "toy", "Hello", "--max-tokens", "1", "--json", *flags)
        return json.loads(result.stdout)["generations"][0]["prompt_tokens"]

    assert prompt_tokens("--raw") == len("Hello")
    assert prompt_tokens() == prompt_tokens("--chat") == len("UHello\nA")
    assert prompt_tokens("--chat-template-kwargs", '{"shout": true}') == len("UHello\nA!")


def test_several_prompts_are_printed_with_a_summary(cli):
    result = cli(
        "generate", "toy", "one", "two", "--max-tokens", "4", "--method", "linear", "--block-size", "4"
    )
    assert result.exit_code == 0
    assert "linear" in result.stderr


def test_rounds_can_be_watched(cli):
    result = cli("generate", "toy", "Hello", "--max-tokens", "10", "--show-rounds")
    assert "acceptance" in result.stderr
    assert len(result.stdout.splitlines()) >= 5


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--top-p", "2"), "top_p"),
        (("--method", "magic"), "method"),
        (("--threshold", "0.5"), "threshold"),
        (("--max-tokens", "5000"), "max_tokens"),
        (("--chat-template-kwargs", '{"loud": 1}'), "chat_template_kwargs"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(cli, flags, named):
    result = cli("generate", "toy", "Hello", *flags)
    assert result.exit_code == 2
    assert named in result.stderr
    assert result.stdout == ""


def test_a_model_that_cannot_draft_decodes_plainly(cli, monkeypatch):
    monkeypatch.setattr(
        "recguide.cli.opening.load", lambda *_, **__: toy_model(drafts=False, chat_template=None)
    )
    found = json.loads(cli("generate", "toy", "Hello", "--max-tokens", "5", "--json").stdout)
    assert found["method"] == "ar"
    assert found["generations"][0]["prompt_tokens"] == 5


def test_nothing_is_saved_where_there_was_nothing_to_save(cli):
    result = cli("generate", "toy", "Hello", "--max-tokens", "1", "--compare")
    assert "0 of 0 forwards saved (0%)" in result.stderr


def test_difference_names_text_and_token():
    found = summary.Run("a", _generations((1, 2, 3)), 1.0)
    other = summary.Run("b", _generations((1, 9, 3)), 1.0)
    shorter = summary.Run("c", _generations((1, 2)), 1.0)
    assert summary.difference(found, found) is None
    assert summary.difference(found, other) == "text 0 differs at token 1"
    assert summary.difference(found, shorter) == "text 0 differs at token 2"


def _generations(tokens):
    blank = Completion(0, "", (), (), None, FinishReason.LENGTH, None, 0, RoundStats())
    return [Generation(None, (1,), (replace(blank, token_ids=tokens),))]


def test_an_expression_shapes_the_text(cli):
    result = cli("generate", "toy", "Hi", "--regex", "[ab]{3}-[0-9]{2}", "--json")
    text = json.loads(result.stdout)["generations"][0]["choices"][0]["text"]
    assert re.fullmatch("[ab]{3}-[0-9]{2}", text)


def test_a_schema_that_cannot_be_followed_is_named(cli, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "objec"}')
    result = cli("generate", "toy", "Hi", "--json-schema", str(schema))
    assert result.exit_code != 0
    assert "structure" in result.stderr
