"""Many sequences decoding together, one token a step, each in a lane of a fixed batch.

A lane that ends is given the next prompt. Shapes never change, so on a GPU the step is one CUDA graph; the
host looks at the lanes only every few steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import Tensor

from recguide.models.ops.torch_ops import head_logits
from recguide.speculation.noise import gumbel
from recguide.training import lane_attention
from recguide.training.network import Backbone, finish, project

LOOK_EVERY = 16
"""Steps between two looks of the host at which lanes have ended."""
REFILL_SHARE = 8
"""Lanes are refilled once 1 / REFILL_SHARE of them are free."""


@dataclass(frozen=True, slots=True)
class Written:
    """A finished continuation of prompt `index`: its tokens and the probability the model gave to each."""

    index: int
    tokens: tuple[int, ...]
    chances: tuple[float, ...]


class _Draw(NamedTuple):
    """How a pass draws its tokens; `seeded` by the noise of picks."""

    temperature: float
    seeded: bool

    @property
    def precise(self) -> float:
        """The temperature as picks have it."""
        return float(np.float32(self.temperature))


class Lanes:
    """The batch: caches, and each lane's next token, its position, and what was written so far."""

    def __init__(
        self,
        backbone: Backbone,
        *,
        lanes: int,
        positions: int,
        max_new_tokens: int,
        end_tokens: Sequence[int],
        mask_token: int,
    ) -> None:
        device, shape = backbone.device, backbone.shape
        self._backbone = backbone
        self._mask_token = mask_token
        self._max_new = max_new_tokens
        self._end = torch.tensor(list(end_tokens), dtype=torch.int64, device=device)
        size = (len(backbone.layers), lanes, positions, shape.kv_heads, shape.head_dim)
        self._keys = torch.zeros(size, dtype=backbone.dtype, device=device)
        self._values = torch.zeros(size, dtype=backbone.dtype, device=device)
        self._lane = torch.arange(lanes, device=device)
        self._token = torch.zeros(lanes, dtype=torch.int64, device=device)
        self._position = torch.zeros(lanes, dtype=torch.int64, device=device)
        self._count = torch.zeros(lanes, dtype=torch.int64, device=device)
        self._active = torch.zeros(lanes, dtype=torch.bool, device=device)
        self._out = torch.zeros(lanes, max_new_tokens, dtype=torch.int32, device=device)
        self._chances = torch.zeros(lanes, max_new_tokens, dtype=torch.float16, device=device)
        self._seed = torch.zeros(lanes, dtype=torch.int64, device=device)
        self._vocabulary = torch.arange(backbone.head.shape[0], device=device)
        self._generator = torch.Generator(device)
        self._attention = lane_attention.best(shape.head_dim, device)
        self._steps: dict[_Draw, Callable[[], None]] = {}

    @torch.no_grad()
    def write(
        self,
        prompts: Sequence[Sequence[int]],
        temperature: float,
        seed: int,
        sampling_seeds: Sequence[int] | None = None,
    ) -> Iterator[Written]:
        """Continues every prompt; results come in the order in which they end.

        Prompts of similar length are best handed over side by side: they are padded to the longest of a
        refill.

        Args:
            seed: of the noise that all lanes share, which is soon made.
            sampling_seeds: one for each prompt; its text is then the one that the engine's picks give with
                that sampling seed, and `seed` does not matter.
        """
        draw = _Draw(temperature, sampling_seeds is not None)
        step = self._step_at(draw)
        self._generator.manual_seed(seed)
        waiting = iter(range(len(prompts)))
        owner = [-1] * len(self._lane)
        left = len(prompts)
        running = 0
        while left or running:
            free = [lane for lane, prompt in enumerate(owner) if prompt < 0]
            if left and (len(free) * REFILL_SHARE >= len(owner) or not running):
                taken = [next(waiting) for _ in range(min(left, len(free)))]
                for lane, prompt in zip(free, taken, strict=False):
                    owner[lane] = prompt
                if sampling_seeds is not None:
                    own = torch.tensor([sampling_seeds[prompt] for prompt in taken], dtype=torch.int64)
                    self._seed[free[: len(taken)]] = own.to(self._seed.device)
                self._prefill(free[: len(taken)], [prompts[prompt] for prompt in taken], draw)
                left -= len(taken)
                running += len(taken)
            for _ in range(LOOK_EVERY):
                step()
            done = [lane for lane, on in enumerate(self._active.tolist()) if not on and owner[lane] >= 0]
            yield from self._collect(done, owner)
            running -= len(done)

    def _collect(self, done: Sequence[int], owner: list[int]) -> Iterator[Written]:
        if not done:
            return
        index = torch.tensor(done, device=self._lane.device)
        counts = self._count[index].tolist()
        tokens, chances = self._out[index].tolist(), self._chances[index].tolist()
        for place, lane in enumerate(done):
            count = counts[place]
            yield Written(owner[lane], tuple(tokens[place][:count]), tuple(chances[place][:count]))
            owner[lane] = -1

    def _prefill(self, lanes: Sequence[int], prompts: Sequence[Sequence[int]], draw: _Draw) -> None:
        """Runs prompts padded on the right (causality hides the padding) and picks their first tokens."""
        backbone, shape = self._backbone, self._backbone.shape
        device = backbone.device
        longest = max(len(prompt) for prompt in prompts)
        padded = torch.tensor(
            [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device
        )
        where = torch.tensor(lanes, device=device)
        rotation = backbone.rotation(torch.arange(longest, device=device).repeat(len(prompts)))
        x = F.embedding(padded.flatten(), backbone.embedding)
        for index, weights in enumerate(backbone.layers):
            q, k, v = project(x, weights, rotation.cos, rotation.sin, rotation.query_scale, shape)
            q, k, v = (t.unflatten(0, (len(prompts), longest)) for t in (q, k, v))
            self._keys[index, where, :longest] = k
            self._values[index, where, :longest] = v
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = finish(x, attended.transpose(1, 2).flatten(0, 1), weights, shape)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        last = torch.arange(len(prompts), device=device) * longest + lengths - 1
        token, chance = self._pick(x[last], draw, where, lengths)
        self._position[where] = lengths
        self._count[where] = 0
        self._active[where] = True
        self._record(where, token, chance, torch.zeros_like(lengths))

    def _step_at(self, draw: _Draw) -> Callable[[], None]:
        """One token for every lane, as a CUDA graph where there is a GPU."""
        if draw not in self._steps:
            self._steps[draw] = self._captured(draw)
        return self._steps[draw]

    def _captured(self, draw: _Draw) -> Callable[[], None]:
        def step() -> None:
            self._step(draw)

        if self._backbone.device.type != "cuda":
            return step
        state = (self._token, self._position, self._count, self._active, self._out, self._chances)
        kept = [tensor.clone() for tensor in state]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        with torch.cuda.graph(graph):
            step()
        for tensor, value in zip(state, kept, strict=True):
            tensor.copy_(value)
        return graph.replay

    def _step(self, draw: _Draw) -> None:
        backbone, shape = self._backbone, self._backbone.shape
        rotation = backbone.rotation(self._position)
        lengths = self._position + 1
        x = F.embedding(self._token, backbone.embedding)
        for index, weights in enumerate(backbone.layers):
            q, k, v = project(x, weights, rotation.cos, rotation.sin, rotation.query_scale, shape)
            keys, values = self._keys[index], self._values[index]
            keys[self._lane, self._position] = k
            values[self._lane, self._position] = v
            x = finish(x, self._attention(q, keys, values, lengths), weights, shape)
        token, chance = self._pick(x, draw, self._lane, lengths)
        self._record(self._lane, token, chance, self._active.to(torch.int64))

    def _pick(self, x: Tensor, draw: _Draw, where: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Next tokens [n] of lanes `where`, at `position`, and the probability of each at temperature 1.

        `x` [n, hidden] are the last hidden states.
        """
        logits = head_logits(self._backbone.final(x), self._backbone.head)
        logits[:, self._mask_token] = float("-inf")
        if draw.temperature > 0 and draw.seeded:
            noise = gumbel(self._seed[where], position, self._vocabulary)
            token = noise.add_(logits.double().div_(draw.precise)).argmax(-1)
        elif draw.temperature > 0:
            # Gumbel noise is −log of an exponential variable, and T scales all: argmax of logits − T·log E.
            noise = torch.empty_like(logits).exponential_(generator=self._generator).log_()
            token = torch.sub(logits, noise, alpha=draw.temperature).argmax(-1)
        else:
            token = logits.argmax(-1)
        chosen = logits.gather(1, token[:, None]).squeeze(1)
        return token, torch.exp(chosen - logits.logsumexp(-1)).to(torch.float16)

    def _record(self, where: Tensor, token: Tensor, chance: Tensor, advance: Tensor) -> None:
        """Appends tokens to lanes that are active; their positions move by `advance`."""
        active, count = self._active[where], self._count[where]
        place = count.clamp(max=self._max_new - 1)
        self._out[where, place] = torch.where(active, token.to(torch.int32), self._out[where, place])
        self._chances[where, place] = torch.where(active, chance, self._chances[where, place])
        count = count + active
        ended = (token[:, None] == self._end).any(1) | (count >= self._max_new)
        self._token[where] = token
        self._count[where] = count
        self._position[where] = self._position[where] + advance
        self._active[where] = active & ~ended
