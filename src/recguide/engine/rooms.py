"""How much room a forward's input has: that of its bucket, or just enough for its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from recguide.attention.packing import BatchShape, Flat, Tables
from recguide.engine.backends import Attention
from recguide.engine.buckets import Bucket
from recguide.engine.docket import room_for
from recguide.engine.inputs import Inputs, Room
from recguide.engine.scheduler import Scheduled
from recguide.kv.pages import pages_for
from recguide.speculation.step import SettleShape


@dataclass(frozen=True, slots=True)
class Limits:
    """What CUDA graphs have room for.

    Attributes:
        tokens: query tokens of a forward; larger ones run without a graph.
        requests: requests of a forward.
        length: tokens of a request.
        block, stops, branches: slots of a block, stop tokens and branches of a request that the device
            settles; others are left to the host.
    """

    tokens: int
    requests: int
    length: int
    block: int = 32
    stops: int = 6
    branches: int = 16


def bucket_room(bucket: Bucket, limits: Limits, attention: Attention, page_size: int) -> Room:
    """Room for every batch of a bucket."""
    requests = min(bucket.tokens, limits.requests)
    batch = BatchShape(
        tokens=bucket.tokens,
        wanted=bucket.wanted,
        requests=requests,
        pages=pages_for(limits.length, page_size),
        page_size=page_size,
        tiling=attention.tiling(bucket.tokens),
    )
    settle = SettleShape(
        requests=requests,
        block=min(bucket.tokens, limits.block),
        stops=limits.stops,
        branches=max(1, min(bucket.tokens // 2, limits.branches)),
    )
    return Room(batch, settle)


def inputs_alone(
    plan: Sequence[Scheduled],
    flat: Flat,
    tables: Tables,
    attention: Attention,
    page_size: int,
    device: torch.device,
) -> Inputs:
    """Inputs for one forward of its own size."""
    batch = BatchShape(
        tokens=flat.tokens,
        wanted=max(1, flat.wanted),
        requests=len(tables),
        pages=max(map(len, tables)),
        page_size=page_size,
        tiling=attention.tiling(flat.tokens),
    )
    room = Room(batch, room_for(plan))
    columns = room.columns()
    on_gpu = device.type == "cuda"
    host = torch.zeros(columns.size, dtype=torch.uint8, pin_memory=on_gpu)
    return Inputs(room, columns, host, torch.empty_like(host, device=device) if on_gpu else host)
