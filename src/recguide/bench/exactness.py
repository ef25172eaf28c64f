"""When a method's text may differ from plain decoding's: the rule that tells a tie from a bug.

Two forwards that lay the same tokens out differently add the same numbers in another order, so their logits
differ by rounding. Where two tokens are closer than that, either may win: a tie. Anything else is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from recguide.core import ParameterError, SamplingParams, Vocabulary
from recguide.speculation.picks import PickRow, pick

UNREACHABLE = 1e4
"""A raise that makes any token win that the request allows; a gap above it is infinite."""

BISECTIONS = 56
"""Finds a gap to 1e-12."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What rounding explains in one precision.

    Attributes:
        relative: ε ÷ largest absolute logit of the text; two to four times what the layouts of a 30-layer
            decoder differ by.
        tie_rate: share of texts that may end in a tie; more is suspicious even where each is explained.
    """

    relative: float
    tie_rate: float


TOLERANCES = {
    torch.float64: Tolerance(relative=1e-12, tie_rate=0.0),
    torch.float32: Tolerance(relative=3e-5, tie_rate=0.05),
    torch.float16: Tolerance(relative=1e-2, tie_rate=0.3),
    torch.bfloat16: Tolerance(relative=6e-2, tie_rate=0.6),
}


def tolerance(dtype: torch.dtype) -> Tolerance:
    if dtype not in TOLERANCES:
        raise ParameterError("dtype", f"no tolerance is known for {dtype}")
    return TOLERANCES[dtype]


class Verdict(StrEnum):
    IDENTICAL = "identical"
    TIE = "tie"
    BUG = "bug"


@dataclass(frozen=True, slots=True)
class Forced:
    """A text teacher-forced through one layout of rows and through rows of one token.

    Attributes:
        difference: largest |logit difference| at any position and token.
        position: where, an index into the text.
        scale: largest |logit|.
    """

    difference: float
    position: int
    scale: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token in which a text differs from plain decoding's.

    Attributes:
        position: index into the emitted tokens.
        expected, got: plain decoding's token and the method's; None where one text has ended.
        gap: how much `got` is behind `expected` in plain decoding's perturbed logits.
        later_gap: the largest such gap of the method's later tokens, each judged on the method's own text.
    """

    position: int
    expected: int | None
    got: int | None
    gap: float
    later_gap: float = 0.0


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Index of the first token that differs; the shorter length where one text is the other's beginning."""
    for position, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return position
    return None if len(expected) == len(got) else min(len(expected), len(got))


def compare(layout: Tensor, single: Tensor) -> Forced:
    """Largest difference between two [positions, vocab] sets of logits of one text.

    Logits that are infinite or NaN in just one of them count as infinitely different.
    """
    same = (layout == single) | (layout.isnan() & single.isnan())
    gaps = torch.where(same, 0.0, (layout - single).abs().nan_to_num(nan=torch.inf, posinf=torch.inf))
    largest = gaps.amax(1)
    position = int(largest.argmax())
    finite = single[single.isfinite()]
    scale = float(finite.abs().max()) if len(finite) else 0.0
    return Forced(float(largest[position]), position, scale)


def judge(epsilon: float, forced: Sequence[Forced], divergence: Divergence | None) -> Verdict:
    """Identical, tie or bug.

    A logit difference above ε at any position is a bug even if no token changed: on another prompt one will.
    """
    if any(not one.difference <= epsilon for one in forced):
        return Verdict.BUG
    if divergence is None:
        return Verdict.IDENTICAL
    explained = divergence.gap <= 2 * epsilon and divergence.later_gap <= 2 * epsilon
    return Verdict.TIE if explained else Verdict.BUG


def gaps(
    logits: Tensor,
    params: SamplingParams,
    prompt: Sequence[int],
    text: Sequence[int],
    positions: Sequence[int],
    vocabulary: Vocabulary,
) -> list[float]:
    """How much the logit of `text`'s token at each position must rise for plain decoding to pick it there.

    Without filters that is (z + T·G) of the token picked minus that of the text's, z being the edited logits;
    with top-k, top-p or min-p it also covers a token that stands just outside the filter, which the
    difference alone would not. Found by bisection over the very function that picks.

    Args:
        logits: [len(positions), vocab], what the tokens before each position predict.
        positions: indices into `text`.

    Returns 0 for a token that is picked as it is, infinity where no raise helps.
    """
    rows = [_pick_row(params, prompt, text[: at + 1], first=at) for at in positions]
    tokens = torch.tensor([text[at] for at in positions], device=logits.device)

    def wins(lifts: Tensor) -> Tensor:
        raised = logits.to(torch.float64, copy=True)
        raised.scatter_add_(1, tokens[:, None], lifts[:, None])
        return pick(raised, rows, vocabulary).tokens == tokens

    low = torch.zeros(len(positions), dtype=torch.float64, device=logits.device)
    high = torch.full_like(low, UNREACHABLE)
    won, reachable = wins(low), wins(high)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        enough = wins(middle)
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    found = torch.where(won, 0.0, torch.where(reachable, high, torch.inf))
    return [float(gap) for gap in found]


def follow(
    logits: Tensor, params: SamplingParams, prompt: Sequence[int], text: Sequence[int], vocabulary: Vocabulary
) -> list[Divergence]:
    """Every token of a text that plain decoding would not have picked after the ones before it.

    `logits` [len(text), vocab] predict each token.
    """
    answers: list[int] = pick(logits, [_pick_row(params, prompt, text)], vocabulary).tokens.tolist()
    strayed = [at for at, token in enumerate(text) if answers[at] != token]
    if not strayed:
        return []
    behind = gaps(logits[strayed], params, prompt, text, strayed, vocabulary)
    return [Divergence(at, answers[at], text[at], gap) for at, gap in zip(strayed, behind, strict=True)]


def _pick_row(
    params: SamplingParams, prompt: Sequence[int], text: Sequence[int], *, first: int = 0
) -> PickRow:
    """Picks in place of the tokens of `text` from index `first` on."""
    return PickRow(
        params=params,
        prompt=prompt,
        history=text[:first],
        extra=text[first:-1],
        position=len(prompt) + first,
        count=len(text) - first,
        draft=False,
    )
