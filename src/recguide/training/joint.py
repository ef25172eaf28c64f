"""Joint AR + diffusion training of a whole backbone, as Nemotron-Labs-Diffusion's (arXiv 2607.05722).

Each text runs twice: as it is, causally, for the next-token loss; and with some response tokens masked, in
blocks that see the clean text before them and their own slots, for the diffusion loss. The result is a
checkpoint that drafts without an adapter. It changes the model: its answers are no longer those of the model
it came from.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from recguide.models.checkpoint import named_weights
from recguide.models.decoder import Decoder
from recguide.models.ops.torch_ops import head_logits
from recguide.training.config import JointConfig, TrainConfig
from recguide.training.corpus import Corpus, ragged_ranges
from recguide.training.halves import clean_layer, noisy_layer
from recguide.training.network import Backbone, LayerWeights, rms_norm
from recguide.training.optimiser import rate
from recguide.training.steps import Longs, text_groups
from recguide.training.visibility import BlockMasks, Spans, dense_clean, dense_noisy

LOSS_CHUNK = 2048
LOG_EVERY = 10
COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@dataclass(frozen=True, slots=True)
class JointStep:
    """Both halves have the same `C` tokens: texts end to end.

    Attributes:
        tokens, positions, first: [C]; `first` is the index of the text's first token.
        limit: [C], first + the start of the token's block.
        block: [C], number of the token's block.
        masked: [C] bool, tokens that the noisy half does not show.
        weight: [C] 1 / p of masked tokens, p the share that was masked in their text; else 0.
        following: [C] the next token where it belongs to a response, else −1.
    """

    tokens: Tensor
    positions: Tensor
    first: Tensor
    limit: Tensor
    block: Tensor
    masked: Tensor
    weight: Tensor
    following: Tensor


def joint_step(
    corpus: Corpus, members: Longs, tokens: int, block: int, rng: np.random.Generator
) -> JointStep:
    """Lays out the texts `members`; t ~ U(0, 1) for each, p = (1 − 10⁻³)·t + 10⁻³, masked independently."""
    lengths = corpus.lengths[members]
    used = int(lengths.sum())
    before = lengths.cumsum() - lengths
    text = np.repeat(np.arange(len(members)), lengths)
    flat = np.zeros(tokens, dtype=np.int64)
    flat[:used] = corpus.tokens[ragged_ranges(corpus.offsets[members], lengths)]
    first = np.arange(tokens)
    first[:used] = np.repeat(before, lengths)
    positions = np.arange(tokens) - first
    response = np.zeros(tokens, dtype=bool)
    response[:used] = positions[:used] >= corpus.prompt_lengths[members][text]
    share = np.ones(tokens)
    share[:used] = ((1 - 1e-3) * rng.random(len(members)) + 1e-3)[text]
    masked = response & (rng.random(tokens) < share)
    start = positions // block * block
    new_block = positions == start
    following = np.full(tokens, -1, dtype=np.int64)
    following[:-1] = np.where(response[1:], flat[1:], -1)
    return JointStep(
        tokens=torch.from_numpy(flat),
        positions=torch.from_numpy(positions),
        first=torch.from_numpy(first),
        limit=torch.from_numpy(first + start),
        block=torch.from_numpy(new_block.cumsum() - 1),
        masked=torch.from_numpy(masked),
        weight=torch.from_numpy(np.where(masked, 1 / share, 0.0).astype(np.float32)),
        following=torch.from_numpy(following),
    )


class Weights(nn.Module):
    """All weights of a decoder as float32 parameters; the head is absent if it is the embedding."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self._dtype = backbone.dtype

        def own(tensor: Tensor) -> nn.Parameter:
            return nn.Parameter(tensor.detach().float().clone())

        self.layers = nn.ModuleList(
            nn.ParameterDict({name: own(weight) for name, weight in layer._asdict().items()})
            for layer in backbone.layers
        )
        self.embedding = own(backbone.embedding)
        self.norm = own(backbone.norm)
        self.head = None if backbone.decoder.config.tie_embeddings else own(backbone.head)

    def layer(self, index: int) -> LayerWeights:
        """Weights of a layer in the model's precision, differentiable."""
        held = cast("dict[str, Tensor]", self.layers[index])
        return LayerWeights(*(held[name].to(self._dtype) for name in LayerWeights._fields))

    def vocabulary(self) -> Tensor:
        """The head [vocab, hidden] in the model's precision."""
        return (self.embedding if self.head is None else self.head).to(self._dtype)

    @torch.no_grad()
    def store(self, decoder: Decoder) -> None:
        """Writes the weights back into a decoder."""
        for index, block in enumerate(decoder.blocks):
            for name in LayerWeights._fields:
                value = cast("dict[str, Tensor]", self.layers[index])[name]
                target = cast("Tensor", getattr(block, name)).data
                target.copy_(value.t() if value.dim() == 2 else value)
        decoder.embedding.data.copy_(self.embedding)
        decoder.norm.data.copy_(self.norm)
        if self.head is not None:
            decoder.head.data.copy_(self.head)


class JointTrainer:
    """One joint run. Texts, noise and order follow from the seed and the step."""

    def __init__(
        self,
        backbone: Backbone,
        corpus: Corpus,
        train: TrainConfig,
        joint: JointConfig,
        mask_token: int,
    ) -> None:
        device = backbone.device
        compiled = device.type == "cuda" if train.compiled is None else train.compiled
        self.weights = Weights(backbone).to(device)
        self.backbone = backbone
        self._corpus = corpus
        self._train = train
        self._joint = joint
        self._mask_token = mask_token
        self._masks = BlockMasks(train.clean_tokens, train.clean_tokens, device) if compiled else None
        self._clean = torch.compile(clean_layer, fullgraph=True, dynamic=False) if compiled else clean_layer
        self._noisy = torch.compile(noisy_layer, fullgraph=True, dynamic=False) if compiled else noisy_layer
        self._optimiser = torch.optim.AdamW(
            self.weights.parameters(),
            lr=train.optimiser.lr,
            betas=train.optimiser.betas,
            weight_decay=train.optimiser.weight_decay,
        )
        usable = np.flatnonzero((corpus.response_lengths >= 1) & (corpus.lengths <= train.clean_tokens))
        self._order = text_groups(corpus, usable, train.clean_tokens, train.seed)

    def run(self, on_step: Callable[[int, float, float], None] = lambda *_: None) -> None:
        """Trains all steps; `on_step` is told the step and the two mean losses (AR, diffusion)."""
        config = self._train.optimiser
        for index in range(self._train.steps):
            rng = np.random.default_rng([self._train.seed, 4, index])
            members = self._order(index)
            step = joint_step(self._corpus, members, self._train.clean_tokens, self._joint.block_size, rng)
            loss, ar, diffusion = self.loss(step)
            loss.backward()
            nn.utils.clip_grad_norm_(self.weights.parameters(), config.grad_clip)
            for group in self._optimiser.param_groups:
                group["lr"] = config.lr * rate(index, self._train.steps, config)
            self._optimiser.step()
            self._optimiser.zero_grad(set_to_none=True)
            if (index + 1) % LOG_EVERY == 0 or index + 1 == self._train.steps:
                on_step(index + 1, float(ar.item()), float(diffusion.item()))

    def loss(self, step: JointStep) -> tuple[Tensor, Tensor, Tensor]:
        """(α · Σ CE(masked) / p + Σ CE(next token)) / (masked + next tokens), and both means."""
        here = {name: getattr(step, name).to(self.backbone.device) for name in step.__dataclass_fields__}
        clean, noisy = self._hidden(here)
        head = self.weights.vocabulary()
        ar, ar_count = _cross_entropy(clean, head, here["following"], (here["following"] >= 0).float())
        labels = torch.where(here["masked"], here["tokens"], -1)
        weighted, _ = _cross_entropy(noisy, head, labels, here["weight"])
        masked = here["masked"].sum()
        total = (self._joint.alpha * weighted + ar) / (ar_count + masked).clamp(min=1)
        return total, ar.detach() / ar_count.clamp(min=1), weighted.detach() / masked.clamp(min=1)

    def _hidden(self, here: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Final hidden states of both halves, [C, hidden] each."""
        backbone, weights = self.backbone, self.weights
        spans = Spans(*(here[name].int() for name in ("first", "first", "limit", "block")))
        if self._masks is None:
            clean_mask, noisy_mask = dense_clean(spans), dense_noisy(spans)
        else:
            self._masks.fill(spans)
            clean_mask, noisy_mask = self._masks.clean, self._masks.noisy
        rotation = backbone.rotation(here["positions"])
        turn = (rotation.cos, rotation.sin, rotation.query_scale)
        table = weights.embedding.to(backbone.dtype)
        x = F.embedding(here["tokens"], table)
        y = F.embedding(here["tokens"].masked_fill(here["masked"], self._mask_token), table)
        for index in range(len(backbone.layers)):
            layer = weights.layer(index)
            x, k, v = self._clean(x, layer, *turn, clean_mask, backbone.shape)
            y = self._noisy(y, layer, *turn, k, v, noisy_mask, backbone.shape)
        norm = weights.norm.to(backbone.dtype)
        return rms_norm(x, norm, backbone.shape.eps), rms_norm(y, norm, backbone.shape.eps)


def _cross_entropy(hidden: Tensor, head: Tensor, labels: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Σ weight · CE over the tokens with a label, and their number; logits exist a chunk at a time."""

    def part(h: Tensor, w: Tensor, label: Tensor, scale: Tensor) -> Tensor:
        losses = F.cross_entropy(head_logits(h, w), label.clamp(min=0), reduction="none")
        return (losses * scale * (label >= 0)).sum()

    pieces = zip(hidden.split(LOSS_CHUNK), labels.split(LOSS_CHUNK), weight.split(LOSS_CHUNK), strict=True)
    sums = [checkpoint(part, h, head, label, scale, use_reentrant=False) for h, label, scale in pieces]
    return torch.stack(cast("list[Tensor]", sums)).sum(), (labels >= 0).sum()


def save_joint(trainer: JointTrainer, source: Path, folder: Path, mask_token: int, block_size: int) -> None:
    """A checkpoint folder: the source's files with the trained weights, and a config that says it drafts."""
    folder.mkdir(parents=True, exist_ok=True)
    decoder = trainer.backbone.decoder
    trainer.weights.store(decoder)
    tensors = {name: tensor.to("cpu").contiguous() for name, tensor in named_weights(decoder).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name in COPIED:
        if (source / name).is_file():
            shutil.copy(source / name, folder / name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config |= {"mask_token_id": mask_token, "block_size": block_size, "native_drafts": True}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
