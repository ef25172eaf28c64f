"""aiperf against the server: it measures without errors, and counts tokens as the server does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.serving.clients.demo import MODEL, program, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AIPERF = program("aiperf", "RECGUIDE_AIPERF")
PROMPTS = ("Name three primary colours.", "Say hello in French.", "What is 12 + 30?")
MAX_TOKENS = 8
BODY = {"temperature": 0, "return_token_ids": True}


class Profile:
    """What aiperf wrote of three requests.

    Attributes:
        summary: its figures.
        requests: what it measured of each request, and what had come over the wire.
    """

    def __init__(self, out: Path) -> None:
        self.summary = json.loads((out / "profile_export_aiperf.json").read_text())
        heard = {at: Heard.of(record) for at, record in _records(out / "profile_export_raw.jsonl")}
        self.requests = [
            ({name: each["value"] for name, each in record["metrics"].items() if "value" in each}, heard[at])
            for at, record in _records(out / "profile_export.jsonl")
        ]


class Heard(NamedTuple):
    """A stream as it came over the wire."""

    sent: dict
    text: str
    token_ids: list[int]
    usage: dict
    speculation: dict

    @classmethod
    def of(cls, record: dict) -> Heard:
        lines = [packet["value"] for each in record["responses"] for packet in each["packets"]]
        assert lines.pop() == "[DONE]"
        *chunks, last = map(json.loads, lines)
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        return cls(
            record["payload"],
            "".join(map(_text, choices)),
            [token for each in choices for token in each["token_ids"]],
            last["usage"],
            last["metrics"]["speculative_decoding"],
        )


def _text(choice: dict) -> str:
    return choice["delta"].get("content", "") if "delta" in choice else choice["text"]


def _records(path: Path) -> list[tuple[str, dict]]:
    """Requests by their ids."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [(record["metadata"]["x_request_id"], record) for record in records]


@pytest.fixture
def profile(demo_url, demo_folder, tmp_path):
    def measure(endpoint: str, body: dict, *options: str) -> Profile:
        run(
            [
                *(AIPERF, "profile", "--model", MODEL, "--url", demo_url, "--tokenizer", str(demo_folder)),
                *("--endpoint-type", endpoint, "--streaming", "--extra-inputs", json.dumps(BODY | body)),
                *("--request-count", str(len(PROMPTS)), "--concurrency", "2", "--workers-max", "1"),
                *("--record-processor-service-count", "1", "--ui", "none", "--no-gpu-telemetry"),
                *("--export-level", "raw", "--output-artifact-dir", str(tmp_path / "out"), *options),
            ],
            tmp_path,
            HF_HOME=str(tmp_path / "cache"),
        )
        return Profile(tmp_path / "out")

    return measure


def assert_clean(profile: Profile) -> None:
    assert not profile.summary["error_summary"]
    assert profile.summary["request_count"]["avg"] == len(profile.requests) == len(PROMPTS)
    for measured, heard in profile.requests:
        assert measured["time_to_first_token"] <= measured["request_latency"]
        assert heard.usage["completion_tokens"] == len(heard.token_ids) <= MAX_TOKENS


def test_chats_with_its_own_count_of_tokens(profile, demo_folder, tmp_path):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(demo_folder)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f"{json.dumps({'text': text})}\n" for text in PROMPTS))
    options = ("--input-file", str(prompts), "--custom-dataset-type", "single-turn")
    body = {"max_completion_tokens": MAX_TOKENS, "stream_options": {"include_usage": True}}
    found = profile("chat", body, *options)
    assert_clean(found)
    for measured, heard in found.requests:
        templated = tokenizer.apply_chat_template(heard.sent["messages"], add_generation_prompt=True)
        assert measured["usage_prompt_tokens"] == len(templated["input_ids"])
        assert measured["usage_completion_tokens"] == len(heard.token_ids)
        assert heard.text == tokenizer.decode(heard.token_ids, skip_special_tokens=True)
        assert measured["output_sequence_length"] == len(tokenizer(heard.text).input_ids)
        accepted = heard.speculation["num_accepted_draft_tokens"]
        assert measured["spec_decode_accepted_draft_tokens"] == accepted
    total = sum(heard.usage["completion_tokens"] for _, heard in found.requests)
    assert found.summary["total_usage_completion_tokens"]["avg"] == total


def test_completions_of_its_prompts_with_the_servers_count(profile):
    lengths = ("--isl", "12", "--osl", str(MAX_TOKENS))
    found = profile("completions", {}, *lengths, "--use-server-token-count", "--random-seed", "1")
    assert_clean(found)
    for measured, heard in found.requests:
        assert measured["input_sequence_length"] == heard.usage["prompt_tokens"]
        assert measured["output_sequence_length"] == heard.usage["completion_tokens"]
