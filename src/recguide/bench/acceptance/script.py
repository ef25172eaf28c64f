"""What a process says at a slot, as a pure function of (sampling seed, start, slot, position).

The text and the verifier's certainty depend on the position alone, so every method emits the same text; a
draft's slots depend on where the draft starts too, so a branch that starts there drafts what a draft forward
would have. Randomness is that of the picks' noise: Philox4x32-10 under the sampling seed, other counters.

This is the reference, in torch; `kernel` is the same function in one launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recguide.bench.acceptance.doubt import SPAN
from recguide.bench.acceptance.process import WINDOW, AcceptanceReplay
from recguide.core import MAX_BLOCK, ParameterError, Vocabulary
from recguide.speculation.noise import SCALE, WORD, Words, philox
from recguide.speculation.slots import SlotTable

TEXT, RENEWAL, STATE, DRAFT, DOUBT = range(1, 6)
"""Last counter word, one for each purpose, so that no two draws share their randomness."""

GROUPS = WINDOW // 4
"""One Philox call decides for four positions whether their state is drawn anew."""
STRIDE = 32
"""Groups looked at before it is seen which slots need more: nine in ten need no more at dwells like ours."""


@dataclass(frozen=True, slots=True)
class Said:
    """As in Picks: tokens [W] and candidates [2, W] int64, the rest [W] float32."""

    tokens: Tensor
    p1: Tensor
    p2: Tensor
    candidates: Tensor
    entropy: Tensor


@dataclass(frozen=True, slots=True)
class Constants:
    """A process and a vocabulary as the numbers that the script compares and computes with.

    Attributes:
        words: allowed tokens.
        excluded: ids that are never said (mask, ends of text, thinking marks), ascending.
        wrong: [2, MAX_BLOCK] a slot is drafted wrongly if its word lies below; easy, hard.
        renewal, hard, alarm, recall, second, either: probabilities as words.
        sure_right, sure_wrong, shared: as in the process.
        entropy_log, entropy_noise, entropy_hard, entropy_easy: log entropy = log + noise·n, plus hard or
            easy by the state; n has mean 0 and deviation 1.
    """

    words: int
    excluded: tuple[int, ...]
    wrong: tuple[tuple[int, ...], tuple[int, ...]]
    renewal: int
    hard: int
    alarm: int
    recall: int
    second: int
    either: int
    sure_right: float
    sure_wrong: float
    shared: float
    entropy_log: float
    entropy_noise: float
    entropy_hard: float
    entropy_easy: float

    @classmethod
    def of(cls, process: AcceptanceReplay, vocabulary: Vocabulary) -> Constants:
        """Raises ParameterError for a vocabulary with fewer than four tokens to say."""
        marks = () if vocabulary.mask is None else (vocabulary.mask,)
        excluded = tuple(sorted({*vocabulary.eos, *marks, *(vocabulary.think or ())}))
        words = vocabulary.size - len(excluded)
        if words < 4:
            raise ParameterError("vocabulary", f"has {words} tokens to say; the script needs four")
        easy, hard = (tuple(_word(p) for p in row) for row in process.hazards())
        spread, link, share = process.entropy_spread, process.entropy_link, process.hard_share
        odds = (share / (1 - share)) ** 0.5
        return cls(
            words=words,
            excluded=excluded,
            wrong=(easy, hard),
            renewal=_word(process.renewal),
            hard=_word(share),
            alarm=_word(process.alarm),
            recall=_word(process.recall),
            second=_word(process.second_hit),
            either=_word(process.either_hit),
            sure_right=process.sure_right,
            sure_wrong=process.sure_wrong,
            shared=process.shared,
            entropy_log=float(torch.tensor(process.entropy_median).log()),
            entropy_noise=spread * (1 - link**2) ** 0.5,
            entropy_hard=spread * link / odds,
            entropy_easy=-spread * link * odds,
        )


def script(constants: Constants, slots: SlotTable) -> Said:
    """What stands at every slot; padding slots get anything."""
    position = slots.position.long()
    draws = _Draws(slots)
    hard = _hard(constants, draws, position)
    bounds = torch.tensor(constants.wrong, dtype=torch.int64, device=hard.device)
    text = draws.words(position, TEXT)
    drawn, doubt = draws.drafted(position, DRAFT), draws.drafted(position, DOUBT)

    right = drawn[0] >= bounds[hard.long(), slots.slot.long().clamp(0, MAX_BLOCK - 1)]
    risky = drawn[1] < torch.where(right, constants.alarm, constants.recall)
    second, either = drawn[2] < constants.second, drawn[2] < constants.either

    true = text[0] % constants.words
    away = 1 + drawn[3] % (constants.words - 1)  # from the right token to the drafted one, where it is wrong
    token = (true + torch.where(right | ~slots.draft, 0, away)) % constants.words
    other = 1 + doubt[0] % (constants.words - 2)
    other = other + (~right & (other >= away))  # neither the right token nor the drafted one
    another = 1 + doubt[2] % (constants.words - 3)
    low, high = torch.minimum(away, other), torch.maximum(away, other)
    another = another + (another >= torch.where(right, other, low))
    another = another + (~right & (another >= high))  # nor the first candidate
    candidates = torch.stack(
        [
            true + torch.where(~right & second, 0, other),
            true + torch.where(~right & ~second & either, 0, another),
        ]
    )

    p1, p2 = _probabilities(constants, right, risky, _uniform(doubt[1]))
    zero = torch.zeros_like(p1)
    return Said(
        tokens=_spoken(constants, token),
        p1=torch.where(slots.draft, p1, zero),
        p2=torch.where(slots.draft, p2, zero),
        candidates=torch.where(slots.draft, _spoken(constants, candidates % constants.words), 0),
        entropy=torch.where(slots.draft, zero, _entropy(constants, hard, text)),
    )


class _Draws:
    """The random words of a table's slots."""

    def __init__(self, slots: SlotTable) -> None:
        self._slots = slots
        self._key = (slots.seed & WORD, (slots.seed >> 32) & WORD)

    def words(self, position: Tensor, purpose: int, of: Tensor | None = None) -> Words[Tensor]:
        """Four words for each position, [W] or [W, n]; or for those of the slots `of`."""
        zero = torch.zeros_like(position)
        key = self._key if of is None else tuple(word[of] for word in self._key)
        low, high = (word.view(-1, *(1 for _ in position.shape[1:])) for word in key)
        return philox((position & WORD, zero, zero, torch.full_like(position, purpose)), (low, high))

    def drafted(self, position: Tensor, purpose: int) -> Words[Tensor]:
        """Four words for each slot [W] that also depend on where its draft starts."""
        start, slot = self._slots.start.long(), self._slots.slot.long()
        counter = (position & WORD, start & WORD, slot & WORD, torch.full_like(position, purpose))
        return philox(counter, self._key)


def _hard(constants: Constants, draws: _Draws, position: Tensor) -> Tensor:
    """[W] bool: the state of the position, drawn at the last renewal up to it."""
    last = 4 * ((position >> 2) - (GROUPS - 1))  # where the window begins, should nothing be renewed in it
    left = torch.arange(len(position), device=position.device)
    for begin in range(0, GROUPS, STRIDE):
        groups = (position[left] >> 2)[:, None] - torch.arange(begin, begin + STRIDE, device=left.device)
        words = torch.stack(draws.words(groups, RENEWAL, left), dim=-1)
        places = 4 * groups[:, :, None] + torch.arange(4, device=left.device)
        renewed = (words < constants.renewal) & (places <= position[left, None, None])
        found = renewed.any(2).any(1)
        last[left[found]] = torch.where(renewed, places, -WINDOW).amax((1, 2))[found]
        left = left[~found]
    return draws.words(last, STATE)[0] < constants.hard


def _probabilities(constants: Constants, right: Tensor, risky: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    shape = torch.where(right, constants.sure_right, constants.sure_wrong)
    margin = torch.where(risky, SPAN * u, 1 - SPAN * u.pow(shape))
    p2 = constants.shared * (1 - margin) / 2
    return margin + p2, p2


def _entropy(constants: Constants, hard: Tensor, text: Words[Tensor]) -> Tensor:
    """Nats. Three uniforms minus their mean, times two, have deviation 1."""
    noise = 2 * (_uniform(text[1]) + _uniform(text[2]) + _uniform(text[3]) - 1.5)
    state = torch.where(hard, constants.entropy_hard, constants.entropy_easy)
    return (constants.entropy_log + constants.entropy_noise * noise + state).exp()


def _uniform(words: Tensor) -> Tensor:
    """float32 in [0, 1]."""
    return (words.float() + 0.5) * SCALE


def _spoken(constants: Constants, index: Tensor) -> Tensor:
    """The token id of an index among the allowed tokens."""
    for token in constants.excluded:
        index = index + (index >= token)
    return index


def _word(probability: float) -> int:
    """A uniform word lies below this with that probability."""
    return round(min(1.0, max(0.0, probability)) * 2**32)
