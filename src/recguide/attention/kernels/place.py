"""Kernel 0: where the tokens of a batch stand, from where its rows begin (`attention.places`)."""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
# ruff: noqa: ANN001, ANN201, ANN202, N803

from __future__ import annotations

import triton
import triton.language as tl

from recguide.attention import work

FIELDS = tl.constexpr(work.FIELDS)
QUERY = tl.constexpr(work.QUERY)
TOKENS = tl.constexpr(work.TOKENS)
CACHED = tl.constexpr(work.CACHED)
OPEN = tl.constexpr(work.OPEN)
LISTED = tl.constexpr(work.LISTED)
TOKEN = tl.constexpr(work.TOKEN)
SEEN = tl.constexpr(work.SEEN)

BLOCK = 128
"""Tokens, or wanted slots, of a program."""
ITEMS = 8
"""Rows of the work list of a program."""
_BLOCK = tl.constexpr(BLOCK)
_ITEMS = tl.constexpr(ITEMS)


@triton.jit(do_not_specialize=["tokens", "width", "room", "table_width", "slots", "programs"])
def place(
    facts_ptr,
    begins_ptr,
    positions_ptr,
    kv_slots_ptr,
    causal_ptr,
    tables_ptr,
    wanted_ptr,
    order_ptr,
    work_ptr,
    position_ptr,
    start_ptr,
    tokens,
    width,
    room,
    table_width,
    slots,
    programs,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    WORK: tl.constexpr,
):
    """Tokens BLOCK by BLOCK, then wanted slots likewise, then the work list ITEMS by ITEMS.

    facts [5, width], begins [2, room], block tables [.., table_width]; position and start [slots].
    """
    program = tl.program_id(0)
    token_programs = tl.cdiv(tokens, _BLOCK)
    slot_programs = tl.cdiv(slots, _BLOCK)
    if program < token_programs:
        token = program * _BLOCK + tl.arange(0, _BLOCK)
        row = tl.load(facts_ptr + token, mask=token < tokens, other=-1)
        here = row >= 0
        stem = tl.load(begins_ptr + row, mask=here, other=0)
        prefix = tl.load(begins_ptr + room + row, mask=here, other=0)
        slot = tl.load(facts_ptr + 2 * width + token, mask=here, other=0)
        position = stem + prefix + slot
        tl.store(facts_ptr + 3 * width + token, stem, mask=here)
        tl.store(facts_ptr + 4 * width + token, prefix, mask=here)
        tl.store(positions_ptr + token, position, mask=here)
        writes = here & (tl.load(causal_ptr + token, mask=here, other=0) != 0)
        request = tl.load(facts_ptr + width + token, mask=writes, other=0)
        page = tl.load(tables_ptr + request * table_width + position // PAGE, mask=writes, other=0)
        tl.store(kv_slots_ptr + token, page * PAGE + position % PAGE, mask=writes)
        if WORK:
            # As many tokens are ordered as belong to rows, and both come first.
            seen = _seen(order_ptr, token, here, facts_ptr, begins_ptr, causal_ptr, width, room)
            tl.store(order_ptr + token * 3 + SEEN, seen, mask=here)
    elif program < token_programs + slot_programs:
        slot = (program - token_programs) * _BLOCK + tl.arange(0, _BLOCK)
        live = tl.load(position_ptr + slot, mask=slot < slots, other=-1) >= 0
        token = tl.load(wanted_ptr + slot, mask=live, other=0)
        row = tl.load(facts_ptr + token, mask=live, other=0)
        start = tl.load(begins_ptr + row, mask=live, other=0)
        start += tl.load(begins_ptr + room + row, mask=live, other=0)
        ahead = tl.load(facts_ptr + 2 * width + token, mask=live, other=0)
        ahead += (tl.load(causal_ptr + token, mask=live, other=0) != 0).to(tl.int32)
        tl.store(start_ptr + slot, start, mask=live)
        tl.store(position_ptr + slot, start + ahead, mask=live)
    elif WORK:
        item = (program - token_programs - slot_programs) * _ITEMS + tl.arange(0, _ITEMS)
        listed = tl.load(work_ptr + programs * FIELDS + LISTED)
        is_item = (item < listed) & (item != programs)
        count = tl.load(work_ptr + item * FIELDS + TOKENS, mask=is_item, other=0)
        query = tl.load(work_ptr + item * FIELDS + QUERY, mask=is_item, other=0)
        inside = tl.arange(0, TILE)[None] < count[:, None]
        at = query[:, None] + tl.arange(0, TILE)[None]
        seen = _seen(order_ptr, at, inside, facts_ptr, begins_ptr, causal_ptr, width, room)
        is_item = count > 0
        most = tl.max(tl.where(inside, seen, 0), 1)
        least = tl.min(tl.where(inside, seen, 1 << 30), 1)
        tl.store(work_ptr + item * FIELDS + CACHED, most, mask=is_item)
        tl.store(work_ptr + item * FIELDS + OPEN, least, mask=is_item)


@triton.jit
def _seen(order_ptr, at, there, facts_ptr, begins_ptr, causal_ptr, width, room):
    """Cached keys that the tokens at these places of the order see: a causal one those up to itself, one of a
    draft row its stem; causal rows have none."""
    token = tl.load(order_ptr + at * 3 + TOKEN, mask=there, other=0)
    row = tl.load(facts_ptr + token, mask=there, other=0)
    seen = tl.load(begins_ptr + row, mask=there, other=0)
    seen += tl.load(begins_ptr + room + row, mask=there, other=0)
    slot = tl.load(facts_ptr + 2 * width + token, mask=there, other=0)
    causal = tl.load(causal_ptr + token, mask=there, other=0) != 0
    return seen + tl.where(causal, slot + 1, 0)
