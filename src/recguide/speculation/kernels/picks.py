"""Picks in Triton: one pass over the vocabulary in chunks, then a small kernel that concludes from chunks.

Scores are first taken in fp32, with an error far below MARGIN. Tokens that lie within MARGIN of a chunk's
best are compared by their exact scores, and so are the winners of all chunks: the pick is that of float64
scores for every token, whatever the chunks are. The mask and the end-of-sequence tokens are left out of the
pass and looked at one by one in the merge: what leads among the rest may be tried by a correction.

Importing this file needs Triton.
"""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# ruff: noqa: ANN001, ANN201, ANN202, N803

from __future__ import annotations

import triton
import triton.language as tl

from recguide.speculation.kernels.noise import first_words, gumbel, quick_exp, rough_gumbel

NEVER = tl.constexpr(float("-inf"))
MARGIN = tl.constexpr(2.0**-12)
"""More than twice what an fp32 score is off. Scores are shifted so that the chunk's largest logit has 0, and
a token 26 below it cannot win: that bounds the rounding of z ÷ T. The noise is within 2e-5."""
FLOOR = tl.constexpr(-1e30)
NOTHING = tl.constexpr(-200.0)
"""exp of it is 0 in fp32."""
_TABLE = ["seeds", "positions", "temperatures", "drafts"]
REALS, NUMBERS = 6, 3
"""A chunk's partial results: peak, Σ exp, moment or Σ exp with noise, best, second and third z + T·G; their
ids."""


@triton.jit
def _lowest(values, ids, value, none):
    """Lowest id whose value is `value`, `none` without one."""
    return tl.min(tl.where(values == value, ids, none), 0)


@triton.jit
def _two(values, ids, none):
    """The two largest values and their ids, the lowest of equals first."""
    first = tl.max(values, 0)
    first_id = _lowest(values, ids, first, none)
    rest = tl.where(ids == first_id, NEVER, values)
    second = tl.max(rest, 0)
    return first, first_id, second, _lowest(rest, ids, second, none)


@triton.jit
def _exact(row, token, seed, position, temperature):
    """z ÷ T + G of a token in float64."""
    z = tl.load(row + token).to(tl.float64)
    return z / temperature.to(tl.float64) + gumbel(first_words(seed, position, token))


@triton.jit
def _winner(scores, ids, row, seed, position, temperature, none):
    """The token of the chunk whose exact score is highest, given fp32 scores."""
    first = tl.max(scores, 0)
    winner = _lowest(scores, ids, first, none)
    limit = tl.maximum(first - MARGIN, FLOOR)
    rest = tl.where(ids == winner, NEVER, scores)
    near = tl.max(rest, 0)
    if near > limit:
        best = _exact(row, winner, seed, position, temperature)
        while near > limit:
            rival = _lowest(rest, ids, near, none)
            score = _exact(row, rival, seed, position, temperature)
            ahead = (score > best) | ((score == best) & (rival < winner))
            winner = tl.where(ahead, rival, winner)
            best = tl.where(ahead, score, best)
            rest = tl.where(ids == rival, NEVER, rest)
            near = tl.max(rest, 0)
    return winner


@triton.jit
def _without(z, ids, specials, start, SPECIALS: tl.constexpr, CHUNK: tl.constexpr):
    """The chunk's logits without the special tokens, which few chunks have."""
    any_here = False
    for i in tl.static_range(SPECIALS):
        special = tl.load(specials + i)
        any_here |= (special >= start) & (special < start + CHUNK)
    if any_here:
        for i in tl.static_range(SPECIALS):
            z = tl.where(ids == tl.load(specials + i), NEVER, z)
    return z


# Tables lie where the step's input buffer has room: their alignment is not worth a compilation.
@triton.jit(do_not_specialize_on_alignment=_TABLE)
def scan(
    logits,
    stride,
    seeds,
    positions,
    temperatures,
    drafts,
    specials,
    reals,
    numbers,
    width,
    SPECIALS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    chunk = tl.program_id(0)
    slot = tl.program_id(1)
    position = tl.load(positions + slot)
    if position >= 0:
        temperature = tl.load(temperatures + slot)
        is_draft = tl.load(drafts + slot)
        row = logits + slot.to(tl.int64) * stride
        start = chunk * CHUNK
        ids = start + tl.arange(0, CHUNK)
        z = tl.load(row + ids, mask=ids < width, other=NEVER)
        z = _without(z, ids, specials, start, SPECIALS, CHUNK)

        peak = tl.max(z, 0)
        x = (z - tl.where(peak > NEVER, peak, 0.0)).to(tl.float32)
        terms = quick_exp(x)
        total = tl.sum(terms, 0)
        extra = tl.sum(terms * tl.maximum(x, NOTHING), 0)
        first = peak.to(tl.float32)
        second = first
        third = first
        second_id = width
        third_id = width
        if temperature > 0:
            scores = x * (1 / temperature) + rough_gumbel(first_words(tl.load(seeds + slot), position, ids))
            first_id = _winner(scores, ids, row, tl.load(seeds + slot), position, temperature, width)
            if is_draft:
                best = tl.max(scores, 0)
                best = tl.where(best > NEVER, best, 0.0)
                extra = tl.sum(quick_exp((scores - best) * temperature), 0)
                rest = tl.where(ids == first_id, NEVER, scores)
                rival, second_id, next_rival, third_id = _two(rest, ids, width)
                second = first + rival * temperature
                third = first + next_rival * temperature
                first += best * temperature
        else:
            first_id = _lowest(z, ids, peak, width)
            if is_draft:
                runner_up, second_id, next_up, third_id = _two(
                    tl.where(ids == first_id, NEVER, z), ids, width
                )
                second = runner_up.to(tl.float32)
                third = next_up.to(tl.float32)

        chunks = tl.num_programs(0)
        field = chunks * tl.num_programs(1)
        at = slot * chunks + chunk
        tl.store(reals + at, peak.to(tl.float32))
        tl.store(reals + field + at, total)
        tl.store(reals + 2 * field + at, extra)
        tl.store(reals + 3 * field + at, first)
        tl.store(reals + 4 * field + at, second)
        tl.store(reals + 5 * field + at, third)
        tl.store(numbers + at, first_id)
        tl.store(numbers + field + at, second_id)
        tl.store(numbers + 2 * field + at, third_id)


@triton.jit(do_not_specialize=["chunks"], do_not_specialize_on_alignment=_TABLE)
def conclude(
    logits,
    stride,
    seeds,
    positions,
    temperatures,
    drafts,
    ends,
    mask_token,
    reals,
    numbers,
    tokens_out,
    reals_out,
    bad_out,
    width,
    chunks,
    CHUNKS: tl.constexpr,
    ENDS: tl.constexpr,
):
    slot = tl.program_id(0)
    slots = tl.num_programs(0)
    position = tl.load(positions + slot)
    pick = 0
    candidate = 0
    next_candidate = 0
    p1 = 0.0
    p2 = 0.0
    nats = 0.0
    own_log = 0.0
    bad = False
    if position >= 0:
        temperature = tl.load(temperatures + slot)
        is_draft = tl.load(drafts + slot)
        row = logits + slot.to(tl.int64) * stride
        field = slots * chunks
        chunk = tl.arange(0, CHUNKS)
        here = chunk < chunks
        at = slot * chunks + chunk
        peaks = tl.load(reals + at, mask=here, other=NEVER)
        totals = tl.load(reals + field + at, mask=here, other=0.0)
        extras = tl.load(reals + 2 * field + at, mask=here, other=0.0)
        ids = tl.load(numbers + at, mask=here, other=width)
        z = tl.load(row + ids, mask=ids < width, other=NEVER)
        # The tokens that the pass left out, padded with `width`.
        end_ids = tl.load(ends + tl.arange(0, ENDS))
        z_ends = tl.load(row + end_ids, mask=end_ids < width, other=NEVER)

        scores = z.to(tl.float64)
        end_scores = z_ends.to(tl.float64)
        if temperature > 0:
            seed = tl.load(seeds + slot)
            t = temperature.to(tl.float64)
            scores = scores / t + gumbel(first_words(seed, position, ids))
            end_scores = end_scores / t + gumbel(first_words(seed, position, end_ids))
        best = tl.maximum(tl.max(scores, 0), tl.max(end_scores, 0))
        pick = tl.minimum(_lowest(scores, ids, best, width), _lowest(end_scores, end_ids, best, width))

        x_ends = z_ends.to(tl.float32)
        peak = tl.maximum(tl.max(peaks, 0), tl.max(x_ends, 0))
        shrink = tl.exp(peaks - peak)
        end_terms = tl.exp(x_ends - peak)
        total = tl.sum(totals * shrink, 0) + tl.sum(end_terms, 0)
        bad = ((total >= 0.5) & (total < -NEVER)) == 0
        pick = tl.where(bad, 0, pick)
        whole = peak + tl.log(total)
        if mask_token >= 0:
            z_mask = tl.load(row + mask_token).to(tl.float32)
            top = tl.maximum(whole, z_mask)
            raw = top + tl.log(tl.exp(whole - top) + tl.exp(z_mask - top))
        else:
            raw = whole
        z_pick = tl.load(row + pick).to(tl.float32)
        own_log = z_pick - raw

        if is_draft:
            firsts = tl.load(reals + 3 * field + at, mask=here, other=NEVER)
            seconds = tl.load(reals + 4 * field + at, mask=here, other=NEVER)
            second_ids = tl.load(numbers + field + at, mask=here, other=width)
            thirds = tl.load(reals + 5 * field + at, mask=here, other=NEVER)
            third_ids = tl.load(numbers + 2 * field + at, mask=here, other=width)
            reached = z_pick
            if temperature > 0:
                reached = (best * temperature.to(tl.float64)).to(tl.float32)
                x_ends = (end_scores * temperature.to(tl.float64)).to(tl.float32)
                peak = tl.maximum(tl.max(firsts, 0), tl.max(x_ends, 0))
                total = tl.sum(extras * tl.exp(firsts - peak), 0) + tl.sum(tl.exp(x_ends - peak), 0)
            # What a chunk has beside the pick: its best, and what is next once that is tried.
            others = tl.where(ids == pick, seconds, firsts)
            other_ids = tl.where(ids == pick, second_ids, ids)
            rival = tl.max(others, 0)
            candidate = _lowest(others, other_ids, rival, width - 1)
            tried = other_ids == candidate
            others = tl.where(tried, tl.where(ids == pick, thirds, seconds), others)
            other_ids = tl.where(tried, tl.where(ids == pick, third_ids, second_ids), other_ids)
            next_candidate = _lowest(others, other_ids, tl.max(others, 0), width - 1)
            rival = tl.maximum(rival, tl.max(tl.where(end_ids == pick, NEVER, x_ends), 0))
            p1 = tl.minimum(tl.exp(reached - peak) / total, 1.0)
            p2 = tl.exp(rival - peak) / total
        else:
            away = tl.maximum(peaks - peak, NOTHING)
            moment = tl.sum(shrink * (extras + away * totals), 0)
            moment += tl.sum(end_terms * tl.maximum(x_ends - peak, NOTHING), 0)
            nats = tl.log(total) - moment / total

    tl.store(tokens_out + slot, pick)
    tl.store(tokens_out + slots + slot, candidate)
    tl.store(tokens_out + 2 * slots + slot, next_candidate)
    tl.store(reals_out + slot, p1)
    tl.store(reals_out + slots + slot, p2)
    tl.store(reals_out + 2 * slots + slot, nats)
    tl.store(reals_out + 3 * slots + slot, own_log)
    tl.store(bad_out + slot, bad)
