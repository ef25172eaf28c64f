"""Settle: what a verification emits and which branch it reuses, as pure array code (architecture §3).

Nothing else decides what was emitted. All requests of a step are settled together; shorter blocks and fewer
branches are padded, and the padding is inert. These are the rules on the host, in NumPy, whose operations on
few numbers cost a fraction of PyTorch's; `speculation.kernels.settle` has the same for a device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What settle needs of `R` verified blocks of at most `B` slots with at most `K` branches each.

    Attributes:
        blocks: [R, B] token ids, slot 0 is the seed.
        lengths: [R] slots of each block.
        picks: [R, B] the verifier's token for slot i+1, picked at slot i.
        trusted: [R] bool, blocks that are emitted as drafted (block diffusion).
        stops: [R, S] token ids that end the request, padded with −1.
        caps: [R] tokens that may still be emitted, at least 1.
        branch_slots: [R, K] slot of each branch, 0 for padding.
        branch_heads: [R, K] token that slot 0 of the branch holds; −1 where any token fits.
    """

    blocks: Ints
    lengths: Ints
    picks: Ints
    trusted: Flags
    stops: Ints
    caps: Ints
    branch_slots: Ints
    branch_heads: Ints


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of each block.

    Attributes:
        tokens: [R, B] the tokens that the round emits, of which the first `emitted` count.
        acceptance: [R] A = matched draft slots + 1, before any cut.
        emitted: [R] tokens emitted: A, cut after the first stop token and at the cap.
        stopped: [R] bool, the last emitted token is a stop token.
        capped: [R] bool, the cap is reached.
        covered: [R] index of the first branch at the outcome's slot, −1 for none.
        reused: [R] index of the branch that becomes the next draft, −1 for none.
    """

    tokens: Ints
    acceptance: Ints
    emitted: Ints
    stopped: Flags
    capped: Flags
    covered: Ints
    reused: Ints


def settle(verdicts: Verdicts) -> Outcome:
    """Acceptance, cuts and branch match of every block."""
    blocks, lengths = verdicts.blocks, verdicts.lengths
    requests = np.arange(len(blocks))
    slots = np.arange(blocks.shape[1])
    drafted = np.full_like(blocks, -1)
    drafted[:, :-1] = blocks[:, 1:]
    has_draft = slots < (lengths - 1)[:, None]
    tokens = np.where(verdicts.trusted[:, None] & has_draft, drafted, verdicts.picks)

    acceptance = ((tokens != drafted) | ~has_draft).argmax(1) + 1

    is_stop = (tokens[:, :, None] == verdicts.stops[:, None, :]).any(2)
    stop_at = _first(is_stop & (slots < acceptance[:, None])) + 1
    limit = np.minimum(acceptance, verdicts.caps)
    stopped = (stop_at > 0) & (stop_at <= limit)
    emitted = np.where(stopped, stop_at, limit)
    capped = emitted == verdicts.caps

    last = tokens[requests, acceptance - 1][:, None]
    in_place = verdicts.branch_slots == acceptance[:, None]
    exact = in_place & ((verdicts.branch_heads == last) | (verdicts.branch_heads == -1))
    return Outcome(
        tokens=tokens,
        acceptance=acceptance,
        emitted=emitted,
        stopped=stopped,
        capped=capped,
        covered=_first(in_place),
        reused=np.where(stopped | capped, -1, _first(exact)),
    )


def _first(flags: Flags) -> Ints:
    """[R, n] → [R] index of the first true flag, −1 for none."""
    if flags.shape[1] == 0:
        return np.full(len(flags), -1)
    return np.where(flags.any(1), flags.argmax(1), -1)
