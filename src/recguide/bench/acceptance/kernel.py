"""`script` as one Triton launch, a program a slot: inside a CUDA graph it costs microseconds."""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportGeneralTypeIssues=false
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl

from recguide.bench.acceptance.doubt import SPAN
from recguide.bench.acceptance.script import DOUBT, DRAFT, GROUPS, RENEWAL, STATE, TEXT, Constants
from recguide.core import MAX_BLOCK
from recguide.speculation.noise import SCALE
from recguide.speculation.picks import Picks
from recguide.speculation.slots import SlotTable


class ScriptKernel:
    """Overwrites picks by what the script says; its tables are on the device before a graph is captured."""

    def __init__(self, constants: Constants, device: torch.device) -> None:
        self._constants = constants
        self._words = torch.tensor(
            [
                constants.renewal,
                constants.hard,
                constants.alarm,
                constants.recall,
                constants.second,
                constants.either,
                *constants.wrong[0],
                *constants.wrong[1],
            ],
            dtype=torch.int64,
            device=device,
        )
        self._excluded = torch.tensor(constants.excluded, dtype=torch.int64, device=device)

    def __call__(self, slots: SlotTable, picks: Picks) -> None:
        """Padding slots stay as they are."""
        constants = self._constants
        _say[(len(slots),)](
            slots.seed,
            slots.start,
            slots.slot,
            slots.position,
            slots.draft,
            picks.tokens,
            picks.p1,
            picks.p2,
            picks.candidates,
            picks.entropy,
            self._words,
            self._excluded,
            constants.sure_right,
            constants.sure_wrong,
            constants.shared,
            constants.entropy_log,
            constants.entropy_noise,
            constants.entropy_hard,
            constants.entropy_easy,
            words=constants.words,
            excluded_count=len(constants.excluded),
            groups=GROUPS,
            slots_cap=MAX_BLOCK,
            span=SPAN,
            scale=SCALE,
            text_purpose=TEXT,
            renewal_purpose=RENEWAL,
            state_purpose=STATE,
            draft_purpose=DRAFT,
            doubt_purpose=DOUBT,
            num_warps=1,
        )


@triton.jit
def _say(
    seeds,
    starts,
    slots,
    positions,
    drafts,
    tokens_out,
    p1_out,
    p2_out,
    candidates_out,
    entropy_out,
    table,
    excluded,
    sure_right,
    sure_wrong,
    shared,
    entropy_log,
    entropy_noise,
    entropy_hard,
    entropy_easy,
    words: tl.constexpr,
    excluded_count: tl.constexpr,
    groups: tl.constexpr,
    slots_cap: tl.constexpr,
    span: tl.constexpr,
    scale: tl.constexpr,
    text_purpose: tl.constexpr,
    renewal_purpose: tl.constexpr,
    state_purpose: tl.constexpr,
    draft_purpose: tl.constexpr,
    doubt_purpose: tl.constexpr,
):
    at = tl.program_id(0)
    seed = tl.load(seeds + at)
    start = tl.load(starts + at).to(tl.int32)
    slot = tl.load(slots + at).to(tl.int32)
    position = tl.load(positions + at).to(tl.int32)
    draft = tl.load(drafts + at).to(tl.int1)
    used = position >= 0

    # The state: drawn at the last renewal up to the position.
    group = (position >> 2) - tl.arange(0, groups)
    none = group * 0
    r0, r1, r2, r3 = tl.philox(seed, group, none, none, none + renewal_purpose)
    renewal = tl.load(table)
    last = tl.max(_renewed(r0, 4 * group, position, renewal, groups), 0)
    last = tl.maximum(last, tl.max(_renewed(r1, 4 * group + 1, position, renewal, groups), 0))
    last = tl.maximum(last, tl.max(_renewed(r2, 4 * group + 2, position, renewal, groups), 0))
    last = tl.maximum(last, tl.max(_renewed(r3, 4 * group + 3, position, renewal, groups), 0))
    zero = position * 0
    drawn, _1, _2, _3 = tl.philox(seed, last, zero, zero, zero + state_purpose)
    hard = drawn.to(tl.int64) < tl.load(table + 1)

    text, n1, n2, n3 = tl.philox(seed, position, zero, zero, zero + text_purpose)
    d0, d1, d2, d3 = tl.philox(seed, position, start, slot, zero + draft_purpose)
    u0, u1, u2, _3 = tl.philox(seed, position, start, slot, zero + doubt_purpose)

    index = tl.minimum(slot, slots_cap - 1)
    right = d0.to(tl.int64) >= tl.load(table + 6 + tl.where(hard, slots_cap, 0) + index)
    risky = d1.to(tl.int64) < tl.load(table + tl.where(right, 2, 3))
    second = d2.to(tl.int64) < tl.load(table + 4)
    either = d2.to(tl.int64) < tl.load(table + 5)

    true = text.to(tl.int64) % words
    away = 1 + d3.to(tl.int64) % (words - 1)
    token = (true + tl.where(right | (draft == 0), 0, away)) % words
    other = 1 + u0.to(tl.int64) % (words - 2)
    other += tl.where((right == 0) & (other >= away), 1, 0)
    candidate = (true + tl.where((right == 0) & second, 0, other)) % words
    another = 1 + u2.to(tl.int64) % (words - 3)
    another += tl.where(another >= tl.where(right, other, tl.minimum(away, other)), 1, 0)
    another += tl.where((right == 0) & (another >= tl.maximum(away, other)), 1, 0)
    next_candidate = (true + tl.where((right == 0) & (second == 0) & either, 0, another)) % words
    for i in tl.static_range(excluded_count):
        mark = tl.load(excluded + i)
        token += tl.where(token >= mark, 1, 0)
        candidate += tl.where(candidate >= mark, 1, 0)
        next_candidate += tl.where(next_candidate >= mark, 1, 0)

    u = (u1.to(tl.float32) + 0.5) * scale
    sure = 1 - span * tl.exp(tl.where(right, sure_right, sure_wrong) * tl.log(u))
    margin = tl.where(risky, span * u, sure)
    p2 = shared * (1 - margin) / 2
    uniforms = (n1.to(tl.float32) + 0.5) * scale
    uniforms += (n2.to(tl.float32) + 0.5) * scale
    uniforms += (n3.to(tl.float32) + 0.5) * scale
    state = tl.where(hard, entropy_hard, entropy_easy)
    entropy = tl.exp(entropy_log + entropy_noise * (2 * (uniforms - 1.5)) + state)

    tl.store(tokens_out + at, token, mask=used)
    tl.store(p1_out + at, tl.where(draft, margin + p2, 0.0), mask=used)
    tl.store(p2_out + at, tl.where(draft, p2, 0.0), mask=used)
    tl.store(candidates_out + at, tl.where(draft, candidate, 0), mask=used)
    tl.store(candidates_out + tl.num_programs(0) + at, tl.where(draft, next_candidate, 0), mask=used)
    tl.store(entropy_out + at, tl.where(draft, 0.0, entropy), mask=used)


@triton.jit
def _renewed(words, places, position, renewal, groups: tl.constexpr):
    """Places [groups] where the state is drawn anew, the earliest of the window where it is not."""
    earliest = 4 * ((position >> 2) - (groups - 1))
    return tl.where((words.to(tl.int64) < renewal) & (places <= position), places, earliest)
