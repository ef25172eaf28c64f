"""Rows laid end to end: from what the engine wants run to what a forward takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import torch
from torch import Tensor

from recguide.core import PackedBatch, RecGuideError, Row


def pack(
    rows: Sequence[Row],
    tables: Sequence[Sequence[int]],
    page_size: int,
    device: torch.device | str = "cpu",
) -> PackedBatch:
    """Packs rows of any number of requests into one forward (architecture §2).

    Args:
        rows: in any order; `wanted` of the result follows this order.
        tables: page ids of each request; `Row.request` is an index into it.
        page_size: tokens a page.
        device: where the tensors go.

    Raises RecGuideError for rows that cannot run together, naming the row.
    """
    _check(rows, tables, page_size)
    order = sorted(range(len(rows)), key=lambda i: _place(rows[i]))
    packed = tuple(rows[i] for i in order)
    lengths = [len(row.tokens) for row in packed]
    starts = tuple(accumulate(lengths, initial=0))[:-1]
    start_of = dict(zip(order, starts, strict=True))
    causal = [row for row in packed if row.causal]
    total = sum(lengths)
    touched = sum(len(row.tokens) for row in packed if row.adapter)

    def integers(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    counts = integers(lengths)

    def per_token(values: Sequence[int]) -> Tensor:
        return torch.repeat_interleave(integers(values), counts, output_size=total)

    slot = torch.arange(total, device=device) - per_token(starts)
    prefix = per_token([row.prefix for row in packed])
    stem = per_token([row.stem for row in packed])
    masked = torch.zeros(total, dtype=torch.bool, device=device)
    masked[integers([start + i for start, row in zip(starts, packed, strict=True) for i in row.masked])] = (
        True
    )
    return PackedBatch(
        rows=packed,
        row_starts=starts,
        tokens=integers(list(chain.from_iterable(row.tokens for row in packed))),
        positions=prefix + stem + slot,
        row=per_token(range(len(packed))),
        request=per_token([row.request for row in packed]),
        slot=slot,
        stem=stem,
        prefix=prefix,
        causal=per_token([row.causal for row in packed]).bool(),
        masked=masked,
        written=sum(len(row.tokens) for row in causal),
        kv_slots=integers(
            list(chain.from_iterable(_kv_slots(row, tables[row.request], page_size) for row in causal))
        ),
        adapter_start=total - touched,
        block_tables=torch.tensor(_padded(tables), dtype=torch.int64, device=device),
        wanted=integers([start_of[i] + slot for i, row in enumerate(rows) for slot in row.wanted]),
    )


def _place(row: Row) -> int:
    """Causal rows write KV and lead; rows that the adapter touches trail."""
    return 0 if row.causal else 1 + row.adapter


def _kv_slots(row: Row, table: Sequence[int], page_size: int) -> list[int]:
    return [
        table[i // page_size] * page_size + i % page_size
        for i in range(row.prefix, row.prefix + len(row.tokens))
    ]


def _padded(tables: Sequence[Sequence[int]]) -> list[list[int]]:
    """Tables filled up with page 0 to equal length; page 0 is never read through the filling."""
    longest = max((len(table) for table in tables), default=0)
    return [[*table, *[0] * (longest - len(table))] for table in tables]


def _check(rows: Sequence[Row], tables: Sequence[Sequence[int]], page_size: int) -> None:
    if not rows:
        raise RecGuideError("batch: no rows to run")
    causal: dict[int, Row] = {}
    prefixes: dict[int, int] = {}
    for i, row in enumerate(rows):
        _check_row(i, row, tables, page_size)
        if prefixes.setdefault(row.request, row.prefix) != row.prefix:
            raise RecGuideError(f"row {i}: request {row.request} has rows with different prefixes")
        if row.causal and row.request in causal:
            raise RecGuideError(f"row {i}: request {row.request} has two causal rows")
        if row.causal:
            causal[row.request] = row
    for i, row in enumerate(rows):
        length = len(causal[row.request].tokens) if row.request in causal else 0
        if row.stem > length:
            raise RecGuideError(f"row {i}: stem {row.stem} exceeds its causal row's {length} tokens")


def _check_row(i: int, row: Row, tables: Sequence[Sequence[int]], page_size: int) -> None:
    length = len(row.tokens)
    if not 0 <= row.request < len(tables):
        raise RecGuideError(f"row {i}: request {row.request} has no block table")
    held = len(tables[row.request]) * page_size
    needed = row.prefix + (length if row.causal else 0)
    faults = (
        (length == 0, "has no tokens"),
        (row.prefix < 0 or row.stem < 0, "has a negative prefix or stem"),
        (row.causal and row.stem > 0, "is causal and has a stem"),
        (row.causal and row.adapter, "is causal and asks for the adapter"),
        (row.causal and len(row.masked) > 0, "is causal and has mask slots"),
        (any(not 0 <= slot < length for slot in row.masked), "has a mask slot outside it"),
        (any(not 0 <= slot < length for slot in row.wanted), "wants a slot outside it"),
        (needed > held, f"needs {needed} cached tokens, its pages hold {held}"),
    )
    for bad, message in faults:
        if bad:
            raise RecGuideError(f"row {i}: {message}")
