"""Safetensors of a checkpoint folder → the decoder's parameters, each assigned exactly once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from recguide.core import CheckpointError, RecGuideError
from recguide.models.decoder import Decoder
from recguide.models.families import family_of
from recguide.models.layout import ATTENTION_NORM, MLP_NORM, parts
from recguide.models.progress import Progress, ignore_progress
from recguide.models.tensors import OpenTensors, open_tensors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
IGNORED_SUFFIX = "rotary_emb.inv_freq"
"""A buffer that old checkpoints store; it is computed from the configuration."""


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files that a checkpoint names itself; never a search, so an adapter folder is not weights."""
    index = folder / INDEX
    if index.is_file():
        names = sorted(set(_read_index(index).values()))
        files = tuple(folder / name for name in names)
    else:
        files = (folder / SINGLE,)
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{file} is missing; fetch the checkpoint again")
    return files


def _read_index(index: Path) -> dict[str, str]:
    """Tensor name → file name."""
    try:
        content: object = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{index} cannot be read as JSON ({error}); fetch it again") from error
    weight_map = cast("dict[str, object]", content).get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map; fetch it again")
    names = cast("dict[str, object]", weight_map)
    for tensor, name in names.items():
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{index}: {tensor} points to {name!r}, which is no file of this folder")
    return cast("dict[str, str]", names)


def load_weights(decoder: Decoder, folder: Path, progress: Progress = ignore_progress) -> None:
    """Fills every parameter of the decoder from a checkpoint folder.

    Raises CheckpointError naming file and tensor for one that is missing, unexpected, doubled, truncated or
    of the wrong shape or kind.
    """
    targets = named_weights(decoder)
    total = len(targets)
    listed = _read_index(folder / INDEX) if (folder / INDEX).is_file() else None
    unread = set(listed or ())
    tied_head: tuple[Path, Tensor] | None = None
    for file in weight_files(folder):
        with open_tensors(file) as tensors:
            unread -= tensors.names
            for name in sorted(tensors.names):
                if name.endswith(IGNORED_SUFFIX):
                    continue
                if listed is not None and listed.get(name) != file.name:
                    raise CheckpointError(
                        f"{file}: tensor {name} is unexpected; {INDEX} does not list it there"
                    )
                if name not in targets and _is_tied_head(decoder, name):
                    tied_head = file, tensors.read(name, tuple(decoder.embedding.shape))
                    continue
                _assign(tensors, name, targets.pop(name, None))
                progress("loading weights", total - len(targets), total)
    if targets:
        where = folder / (SINGLE if listed is None else INDEX)
        raise CheckpointError(
            f"{where}: tensor {next(iter(targets))} is missing ({len(targets)} of {total} are); the file is "
            "incomplete or config.json describes another model"
        )
    if unread:
        raise CheckpointError(
            f"{folder / INDEX}: tensor {min(unread)} is missing: no file holds it; fetch the checkpoint again"
        )
    if tied_head is not None:
        _check_tied_head(decoder, *tied_head)


def _assign(tensors: OpenTensors, name: str, target: Tensor | None) -> None:
    if target is None:
        raise CheckpointError(
            f"{tensors.file}: tensor {name} is unexpected; config.json describes a model without it"
        )
    target.copy_(tensors.read(name, tuple(target.shape)))


def _is_tied_head(decoder: Decoder, name: str) -> bool:
    """A tied head may stand in the file beside the embedding."""
    return decoder.config.tie_embeddings and name == family_of(decoder.config.family).names.head


def _check_tied_head(decoder: Decoder, file: Path, head: Tensor) -> None:
    names = family_of(decoder.config.family).names
    if not torch.equal(head.to(decoder.device, decoder.dtype), decoder.embedding.data):
        raise CheckpointError(
            f"{file}: tensor {names.head} differs from {names.embedding}, but config.json sets "
            "tie_word_embeddings; set it to false"
        )


def _targets(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """(checkpoint name, where it goes); views of fused weights are disjoint and cover them."""
    config = decoder.config
    names = family_of(config.family).names
    yield names.embedding, decoder.embedding.data
    for index, layer in enumerate(decoder.blocks):
        yield names.module(index, f"{ATTENTION_NORM}.weight"), layer.attention_norm.data
        yield names.module(index, f"{MLP_NORM}.weight"), layer.mlp_norm.data
        for part in parts(config):
            fused = cast("Tensor", getattr(layer, part.group)).data.t()
            yield names.module(index, f"{part.module}.weight"), fused[part.start : part.start + part.outputs]
    yield names.norm, decoder.norm.data
    if not config.tie_embeddings:
        yield names.head, decoder.head.data


def named_weights(decoder: Decoder) -> dict[str, Tensor]:
    """The decoder's parameters under their checkpoint names and shapes; views, not copies.

    Raises RecGuideError if it is arranged: then they are no longer those of a checkpoint.
    """
    if decoder.arranged:
        raise RecGuideError("decoder: its weights are arranged for inference; load it anew")
    return dict(_targets(decoder))
