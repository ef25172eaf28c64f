from __future__ import annotations

import json


def test_json_answers_every_line_of_stdin(cli):
    result = cli("chat", "toy", "--max-tokens", "6", "--json", stdin="Hello\n\nAgain\n")
    found = json.loads(result.stdout)
    assert [turn["role"] for turn in found["messages"]] == ["user", "assistant"] * 2
    assert [turn["content"] for turn in found["messages"][::2]] == ["Hello", "Again"]
    assert len(found["answers"]) == 2
    assert found["tokens"] == sum(len(answer["token_ids"]) for answer in found["answers"])


def test_reset_forgets_and_stats_count(cli):
    result = cli(
        "chat", "toy", "--max-tokens", "5", stdin="Hello\n/stats\n/reset\n/stats\n/nonsense\n/exit\nnever\n"
    )
    assert result.exit_code == 0
    assert "5 tokens in" in result.stderr
    assert "forgotten" in result.stderr
    assert "0 tokens in 0 forwards" in result.stderr
    assert result.stderr.count("/reset forgets") == 2  # at the start, and for the unknown command


def test_a_system_turn_survives_reset(cli):
    result = cli("chat", "toy", "--system", "Be brief", "--json", "--max-tokens", "2", stdin="Hi\n")
    assert json.loads(result.stdout)["messages"][0] == {"role": "system", "content": "Be brief"}


def test_template_arguments_reach_the_template(cli):
    result = cli("chat", "toy", "--chat-template-kwargs", '{"loud": true}', stdin="Hi\n")
    assert result.exit_code == 2
    assert "chat_template_kwargs" in result.stderr


LONG = "x" * 1200
"""More than the toy's 1024 positions."""


def test_a_turn_that_is_refused_leaves_the_conversation(cli):
    result = cli("chat", "toy", "--max-tokens", "5", stdin=f"Hello\n{LONG}\n/stats\nAgain\n/stats\n")
    assert result.exit_code == 0, result.output
    assert "That turn is dropped" in result.stderr
    assert "/reset forgets it" in result.stderr
    assert "\n5 tokens in" in result.stderr
    assert "\n10 tokens in" in result.stderr


def test_json_keeps_what_was_answered_before_a_refusal(cli):
    result = cli("chat", "toy", "--max-tokens", "5", "--json", stdin=f"Hello\n{LONG}\nAgain\n")
    assert result.exit_code == 2
    assert "prompt: has 1223 tokens" in result.stderr
    found = json.loads(result.stdout)
    assert [turn["role"] for turn in found["messages"]] == ["user", "assistant"]
    assert len(found["answers"]) == 1


def test_pull_describes_the_model(cli):
    found = json.loads(cli("pull", "toy", "--json").stdout)
    assert found["family"] == "llama"
    assert found["mask_token"] == 257
    assert found["parameters"] > 1000
    shown = cli("pull", "toy")
    assert "parameters" in shown.stdout
