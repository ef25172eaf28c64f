"""The visibility rule: which in-flight tokens a token sees (architecture §2).

Every row sees its request's whole cached prefix, so the rule only speaks of the tokens in flight.
"""

from __future__ import annotations

from torch import Tensor

from recguide.core import PackedBatch


def visible(batch: PackedBatch, among: Tensor | slice = slice(None)) -> Tensor:
    """Which in-flight tokens see which: [n, n] bool, query × key.

    `among` [n] restricts the rule to some of the batch's N tokens.

    Own row: every slot sees every own slot in a draft row, slots up to its own in a causal one. Stem: a draft
    row's slots see its request's causal slots below the row's stem. Nothing else in flight is seen.
    """
    return rule(
        batch.row[among], batch.request[among], batch.slot[among], batch.stem[among], batch.causal[among]
    )


def rule(row: Tensor, request: Tensor, slot: Tensor, stem: Tensor, causal: Tensor) -> Tensor:
    """`visible` on the tokens' own columns, each [n]; `stem` is 0 in causal rows."""
    own_row = row[:, None] == row[None, :]
    not_after = slot[None, :] <= slot[:, None]
    own = own_row & (not_after | ~causal[:, None])
    same_request = request[:, None] == request[None, :]
    in_stem = same_request & causal[None, :] & (slot[None, :] < stem[:, None])
    return own | in_stem
