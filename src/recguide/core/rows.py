"""What a forward runs: rows, and the batch that they are packed into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from recguide.core.light import light

if TYPE_CHECKING:  # only names of types: a process that runs no model does without torch
    from torch import Tensor

CANDIDATES = 2
"""Tokens beside the drafted one that every drafted slot comes with: those that corrections may try."""


@light
class Row:
    """Tokens of one request that run together in a forward (architecture §2).

    Attributes:
        request: index of the request's block table in the batch.
        prefix: cached tokens of the request; every slot sees all of them.
        tokens: token ids, one per slot.
        causal: causal row (KV written) or draft row (KV in flight only).
        stem: for a draft row, how many tokens of its request's causal row in the same forward it sees.
        adapter: whether the draft adapter's delta applies.
        masked: MASK slots (they take the learned mask embedding, if the adapter has one).
        wanted: slots whose logits are wanted.
    """

    request: int
    prefix: int
    tokens: tuple[int, ...]
    causal: bool
    stem: int = 0
    adapter: bool = False
    masked: tuple[int, ...] = ()
    wanted: Sequence[int] = ()

    @property
    def start(self) -> int:
        """Absolute position of slot 0."""
        return self.prefix + self.stem


class AdapterUse(Enum):
    """Which of a forward's tokens the draft adapter touches."""

    NONE = "none"
    MIXED = "mixed"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Rows of any number of requests, laid end to end without padding between them.

    Rows stand in the order causal, draft without adapter, draft with adapter, so that the tokens that write
    KV are a head slice and those that the adapter touches a tail slice. `N` query tokens, `W` wanted logits,
    `R` requests. All tensors are views of one buffer, so integers are int32.

    A batch may be padded at its end up to the shape of a CUDA graph. Padding tokens are token 0 at position
    0; they write no KV, no work item covers them, and nobody reads what becomes of them. Padding of `wanted`
    is token 0, that of tables is anything.

    Attributes:
        rows: the rows in packed order.
        row_starts: index of each row's slot 0 among the N tokens.
        tokens, positions: [N] int32; positions are absolute.
        row, request, slot, stem, prefix: [N] int32, each token's row index, request index, slot in its row,
            stem length (0 in causal rows) and prefix length.
        causal, masked, adapter_on: [N] bool; causal row, MASK slot, touched by the adapter.
        use: whether the adapter touches no token, some or all.
        written: number of leading tokens that write KV (those of causal rows).
        kv_slots: [N] int32, page × page_size + offset where a token's KV goes; −1 for tokens that write none.
        adapter_start: first token that the adapter touches; the number of tokens for none.
        block_tables: [R, pages] int32, page ids of each request.
        wanted: [W] int32, token indices whose logits are wanted, in the order of the rows *as given*.
        order, work: [N, 3] and [rows, FIELDS] int32, the attention's work list (see `attention.work`); empty
            for a backend that needs none.
    """

    rows: tuple[Row, ...]
    row_starts: tuple[int, ...]
    tokens: Tensor
    positions: Tensor
    row: Tensor
    request: Tensor
    slot: Tensor
    stem: Tensor
    prefix: Tensor
    causal: Tensor
    masked: Tensor
    adapter_on: Tensor
    use: AdapterUse
    written: int
    kv_slots: Tensor
    adapter_start: int
    block_tables: Tensor
    wanted: Tensor
    order: Tensor
    work: Tensor
