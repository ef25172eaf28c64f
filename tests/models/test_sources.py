"""Where models come from, and what of a repository is fetched."""

from __future__ import annotations

import fnmatch

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from tests.tiny import write_checkpoint

from recguide.core import CheckpointError, ParameterError
from recguide.models import demo, sources


def test_a_folder_is_itself(tmp_path):
    folder = write_checkpoint(tmp_path / "model", "llama")
    assert sources.resolve(str(folder)) == folder


@pytest.mark.parametrize(
    "source", ["smollm2", "a/b/c", "./absent", "/absent", "", "../up/there", "owner/na me"]
)
def test_what_is_no_source(source):
    with pytest.raises(ParameterError, match=r"model: .*smollm2-135m"):
        sources.resolve(source)


def test_only_repositories_have_revisions(tmp_path):
    for source in (str(tmp_path), "smollm2-135m"):
        with pytest.raises(ParameterError, match="revision: "):
            sources.resolve(source, revision="main")


def test_the_demo_models_name(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "fetch", lambda _progress: tmp_path)
    assert sources.resolve("smollm2-135m") == tmp_path


def test_a_folder_shadows_a_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    assert str(sources.resolve("smollm2-135m")) == "smollm2-135m"


def test_a_repository_is_fetched_without_code(monkeypatch, tmp_path):
    asked = {}

    def snapshot_download(name, **options):
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    steps = []
    found = sources.resolve("nvidia/Some-Model_8B.v1", "f8c3e2c", lambda *step: steps.append(step))
    assert found == tmp_path
    assert (asked["name"], asked["revision"]) == ("nvidia/Some-Model_8B.v1", "f8c3e2c")
    assert steps == [("downloading nvidia/Some-Model_8B.v1", 0, 0)]

    def fetched(name):
        return any(fnmatch.fnmatch(name, pattern) for pattern in asked["allow_patterns"])

    for name in (
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model-00001-of-00004.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "linear_spec_lora/adapter_config.json",
        "linear_spec_lora/adapter_model.safetensors",
    ):
        assert fetched(name), name
    for name in (
        "modeling_nemotron_labs_diffusion.py",
        "linear_spec_lora/evil.py",
        "pytorch_model.bin",
        "consolidated.safetensors",
        "original/consolidated.00.pth",
        "README.md",
    ):
        assert not fetched(name), name


@pytest.mark.parametrize(
    "error", [LocalEntryNotFoundError("no network\nat all"), OSError("disk full"), ValueError("bad id")]
)
def test_a_repository_that_cannot_be_fetched(monkeypatch, error):
    def snapshot_download(_name, **_options):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match=r"owner/model could not be fetched from Hugging Face \("):
        sources.resolve("owner/model")
