"""Where models come from: a folder, a Hugging Face id, or the name of the demo model."""

from __future__ import annotations

import re
from pathlib import Path

from recguide.core import CheckpointError, ParameterError
from recguide.models import demo
from recguide.models.progress import Progress, ignore_progress

FILES = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "linear_spec_lora/adapter_config.json",
    "linear_spec_lora/adapter_model.safetensors",
)
"""What is fetched of a repository: no code, and no second format of the weights."""


def resolve(source: str, revision: str | None = None, progress: Progress = ignore_progress) -> Path:
    """The local checkpoint folder of a model, fetched if need be.

    Args:
        source: a folder, a Hugging Face id (owner/name), or smollm2-135m.
        revision: branch, tag or commit of a Hugging Face id.

    Raises ParameterError if the source is none of these, CheckpointError if it cannot be fetched.
    """
    folder = Path(source).expanduser()
    if source and folder.is_dir():
        _refuse_revision(source, revision)
        return folder
    if source == demo.NAME:
        _refuse_revision(source, revision)
        return demo.fetch(progress)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not source.startswith("."):
        return _fetch_repository(source, revision, progress)
    raise ParameterError(
        "model", f"{source!r} is no folder, no Hugging Face id (owner/name) and not {demo.NAME}"
    )


def _refuse_revision(source: str, revision: str | None) -> None:
    if revision is not None:
        raise ParameterError("revision", f"{source!r} has no revisions; only a Hugging Face id has")


def _fetch_repository(source: str, revision: str | None, progress: Progress) -> Path:
    """Downloads through Hugging Face's own cache, which resumes interrupted files."""
    from huggingface_hub import snapshot_download  # slow to import, and a local model never needs it
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    progress(f"downloading {source}", 0, 0)
    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=list(FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{source} could not be fetched from Hugging Face ({reason}); check the name, the revision, "
            "access rights (HF_TOKEN) and the network, or give a local folder"
        ) from error
