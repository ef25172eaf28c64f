"""`settle.settle` in Triton, one program for each request, and the step's picks packed beside its verdicts.

Importing this file needs Triton.
"""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# ruff: noqa: ANN001, ANN201, ANN202, N803

from __future__ import annotations

import triton
import triton.language as tl

from recguide import core
from recguide.speculation import step

HEADER = tl.constexpr(step.HEADER)
VERDICT = tl.constexpr(step.VERDICT)
CANDIDATES = tl.constexpr(core.CANDIDATES)
COPIED = 256
"""Slots whose picks one program packs."""
_COPIED = tl.constexpr(COPIED)
_POINTERS = ["table", "tokens", "candidates", "bad", "p1", "p2", "entropy", "logprobs", "out"]


@triton.jit
def _first(flags, places, none):
    """Lowest place whose flag is set, `none` without one."""
    return tl.min(tl.where(flags, places, none), 0)


@triton.jit
def _judge(
    row,
    tokens,
    out,
    block,
    stop_room,
    branch_room,
    SLOTS_ROOM: tl.constexpr,
    STOPS_ROOM: tl.constexpr,
    BRANCHES_ROOM: tl.constexpr,
):
    """As `settle`, for one request's words."""
    length = tl.load(row)
    cap = tl.load(row + 1)
    trusted = tl.load(row + 2) != 0
    pick = tl.load(row + 3)
    slot = tl.arange(0, SLOTS_ROOM)
    inside = slot < length
    has_draft = slot < length - 1
    drafted = tl.load(row + HEADER + 1 + slot, mask=has_draft, other=-1)
    picked = tl.load(tokens + pick + slot, mask=inside, other=0).to(tl.int32)
    token = tl.where(trusted & has_draft, drafted, picked)

    matched = _first((token != drafted) | (slot >= length - 1), slot, SLOTS_ROOM)
    acceptance = matched + 1

    place = tl.arange(0, STOPS_ROOM)
    stops = tl.load(row + HEADER + block + place, mask=place < stop_room, other=-1)
    is_stop = tl.max((token[:, None] == stops[None, :]).to(tl.int32), 1) > 0
    stop_at = _first(is_stop & (slot < acceptance), slot, SLOTS_ROOM) + 1
    limit = tl.minimum(acceptance, cap)
    stopped = stop_at <= limit
    emitted = tl.where(stopped, stop_at, limit)

    branch = tl.arange(0, BRANCHES_ROOM)
    known = branch < branch_room
    lists = row + HEADER + block + stop_room + branch
    branch_slot = tl.load(lists, mask=known, other=0)
    head = tl.load(lists + branch_room, mask=known, other=-1)
    predicted = tl.load(lists + 2 * branch_room, mask=known, other=-1)
    head = tl.where(
        predicted >= 0, tl.load(tokens + predicted, mask=predicted >= 0, other=0).to(tl.int32), head
    )
    last = tl.sum(tl.where(slot == matched, token, 0), 0)
    in_place = branch_slot == acceptance
    covered = _first(in_place, branch, BRANCHES_ROOM)
    reused = _first(in_place & ((head == last) | (head == -1)), branch, BRANCHES_ROOM)

    alive = length > 0
    ended = stopped | (emitted == cap)
    tl.store(out, tl.where(alive, acceptance, 0))
    tl.store(out + 1, tl.where(alive, emitted, 0))
    tl.store(out + 2, (alive & stopped).to(tl.int32))
    tl.store(out + 3, tl.where(alive & (covered < BRANCHES_ROOM), covered, -1))
    tl.store(out + 4, tl.where(alive & (reused < BRANCHES_ROOM) & (ended == 0), reused, -1))
    tl.store(out + VERDICT + slot, tl.where(inside, token, 0), mask=slot < block)


# One compilation serves every table whose lists fit into the same powers of two.
@triton.jit(
    do_not_specialize=["slots", "requests", "block", "stop_room", "branch_room"],
    do_not_specialize_on_alignment=_POINTERS,
)
def settle_kernel(
    table,
    tokens,
    candidates,
    bad,
    p1,
    p2,
    entropy,
    logprobs,
    out,
    slots,
    requests,
    block,
    stop_room,
    branch_room,
    SLOTS_ROOM: tl.constexpr,
    STOPS_ROOM: tl.constexpr,
    BRANCHES_ROOM: tl.constexpr,
):
    program = tl.program_id(0)
    if program < requests:
        stride = HEADER + block + stop_room + 3 * branch_room
        _judge(
            table + program * stride,
            tokens,
            out + program * (VERDICT + block),
            block,
            stop_room,
            branch_room,
            SLOTS_ROOM,
            STOPS_ROOM,
            BRANCHES_ROOM,
        )
    else:
        slot = (program - requests) * _COPIED + tl.arange(0, _COPIED)
        here = slot < slots
        to = out + requests * (VERDICT + block) + slot
        tl.store(to, tl.load(tokens + slot, mask=here).to(tl.int32), mask=here)
        for rank in tl.static_range(CANDIDATES):
            to += slots
            tl.store(to, tl.load(candidates + rank * slots + slot, mask=here).to(tl.int32), mask=here)
        to += slots
        tl.store(to, tl.load(bad + slot, mask=here).to(tl.int32), mask=here)
        to += slots
        tl.store(to, tl.load(p1 + slot, mask=here).to(tl.int32, bitcast=True), mask=here)
        tl.store(to + slots, tl.load(p2 + slot, mask=here).to(tl.int32, bitcast=True), mask=here)
        tl.store(to + 2 * slots, tl.load(entropy + slot, mask=here).to(tl.int32, bitcast=True), mask=here)
        tl.store(to + 3 * slots, tl.load(logprobs + slot, mask=here).to(tl.int32, bitcast=True), mask=here)
