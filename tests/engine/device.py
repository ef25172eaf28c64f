"""Engines whose picks and verdicts are made beside the logits, as on a GPU, with PyTorch as the device.

A padded engine also runs its forwards as graphs do: in buckets, over inputs that lie where those of the
forwards before them lay.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from recguide.attention.packing import FACTS
from recguide.engine.buckets import Buckets
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.inputs import Inputs
from recguide.engine.landing import Landing
from recguide.engine.rooms import Limits, bucket_room
from recguide.engine.runner import adapter_uses
from recguide.speculation.slots import torch_picker


def device_engine(backbone, decode=str, **config):
    return Engine(backbone, decode, EngineConfig(**config), torch_picker(backbone.vocabulary))


def padded_engine(backbone, decode=str, *, limits=None, **config):
    engine = device_engine(backbone, decode, **config)
    limits = limits or Limits(tokens=1024, requests=64, length=256)
    engine.runner._replays = PaddedForwards(engine.runner, limits)
    engine._planner = engine._planner_of(engine._policies.named, engine.config.batching)
    return engine


PER_TOKEN = (*FACTS, "tokens", "positions", "causal", "masked", "adapter_on", "kv_slots")


class PaddedForwards:
    """Stands in for `Replays`: the same buckets, a buffer of the device, two of the host, no graphs."""

    def __init__(self, runner, limits):
        self.buckets = Buckets(limits.tokens, adapter_uses(runner.backbone))
        self.ran = []
        self._runner = runner
        self._room = lambda bucket: bucket_room(bucket, limits, runner._attention, runner.pool.page_size)
        size = self._room(self.buckets.largest_bucket).columns().size
        # Whatever lay there before, what is filled in must not leave any of it to be read.
        *self._hosts, self._device = (torch.randint(0, 255, (size,), dtype=torch.uint8) for _ in range(3))
        self._turn = 0
        self._kept = {}

    def bucket(self, flat):
        return self.buckets.of(flat.tokens, flat.structure.use, flat.wanted)

    def inputs(self, bucket):
        self._turn = 1 - self._turn
        key = (bucket, self._turn)
        if key not in self._kept:
            self._kept[key] = self._inputs_in(bucket, self._hosts[self._turn])
        return self._kept[key]

    def own_inputs(self, bucket):
        size = self._room(bucket).columns().size
        return self._inputs_in(bucket, torch.randint(0, 255, (size,), dtype=torch.uint8))

    def _inputs_in(self, bucket, host):
        room = self._room(bucket)
        return RememberedInputs(room, room.columns(), host, self._device, bucket.use)

    def forward(self, bucket, inputs):
        self.ran.append(bucket)
        inputs.send()
        flat = inputs.flat
        inputs.place()
        batch = inputs.batch_with(flat)
        # PyTorch's attention takes every token for some row's.
        own = {name: getattr(batch, name)[: flat.tokens] for name in PER_TOKEN}
        # A fake model reads the rows.
        logits, output = self._runner._run(inputs, replace(batch, rows=rows_in(batch), **own))
        return logits, Landing(output.numpy())


def rows_in(batch):
    """Its rows as they stand in its arrays: they may have been laid out for an earlier step."""
    return tuple(
        replace(
            row,
            tokens=tuple(batch.tokens[start : start + len(row.tokens)].tolist()),
            stem=int(batch.stem[start]),
            prefix=int(batch.prefix[start]),
        )
        for row, start in zip(batch.rows, batch.row_starts, strict=True)
    )


class RememberedInputs(Inputs):
    """PyTorch's attention asks for the rows, which a graph does not know."""

    def fill(self, flat, *rest):
        self.flat = flat
        super().fill(flat, *rest)

    def fill_step(self, before, flat, *rest):
        self.flat = flat
        super().fill_step(before, flat, *rest)
