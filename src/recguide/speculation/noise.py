"""Gumbel noise that is a pure function of the sampling seed, the position and the token (architecture §3).

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) is a keyed bijection of
128-bit counters: no state, so a draft, a verification and plain decoding find the same noise at a position.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORD = 0xFFFFFFFF
SCALE = 2.0**-32

Word = TypeVar("Word", Tensor, NDArray[np.int64])
Words = tuple[Word, Word, Word, Word]

LARGEST = -math.log(-math.log1p(-0.5 * SCALE))
"""G at k = 0, about 22.87: no noise lifts a token by more."""
SMALLEST = -math.log(-math.log1p(-(2.0**32 - 0.5) * SCALE))
"""G at k = 2³² - 1, about -3.13."""


def philox(counter: Words[Word], key: tuple[Word, Word]) -> Words[Word]:
    """Philox4x32-10 on words of 32 bits held in int64 tensors or arrays, which broadcast.

    Products of two words wrap in int64, but their 64 bits are right: the low half is masked out and the high
    half is what an arithmetic shift leaves below its sign bits.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for step in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        # c1 and c3 keep stray bits above their word; they only ever meet an xor that is masked afterwards.
        c0 = ((p1 >> 32) ^ c1 ^ (k0 + step * WEYL[0])) & WORD
        c2 = ((p0 >> 32) ^ c3 ^ (k1 + step * WEYL[1])) & WORD
        c1, c3 = p1, p0
    return c0, c1 & WORD, c2, c3 & WORD


def first_words(seed: Tensor, position: Tensor, tokens: Tensor) -> Tensor:
    """First output word k of Philox with key = seed and counter = (position, token, 0, 0), int64 in [0, 2³²).

    The arguments are int64 and broadcast; the key's first word is the sampling seed's low half.
    """
    if tokens.device.type == "cpu":  # where an operation on few words takes NumPy a fraction of the time
        return torch.from_numpy(_first_words(seed.numpy(), position.numpy(), tokens.numpy()))
    return _first_words(seed, position, tokens)


def _first_words(seed: Word, position: Word, tokens: Word) -> Word:
    zero = position & 0
    return philox((position, tokens, zero, zero), (seed & WORD, (seed >> 32) & WORD))[0]


def gumbel_of(words: Tensor) -> Tensor:
    """G = −log(−log1p(−w)), w = (k + ½)·2⁻³².

    float64 holds k + ½ and 1 − w exactly, so w never rounds to 1; fp32 would.
    """
    negative_w = words.double().add_(0.5).mul_(-SCALE)
    return negative_w.log1p_().neg_().log_().neg_()


def gumbel(seed: Tensor, position: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise, float64.

    Args:
        seed, position: [W] int64, 0 ≤ seed < 2⁶³, 0 ≤ position < 2³².
        tokens: [C] int64 for all slots, giving [W, C]; or [W, C], each slot's own.
    """
    return gumbel_of(first_words(seed[:, None], position[:, None], tokens))


def gumbel_array(
    seed: NDArray[np.int64], position: NDArray[np.int64], tokens: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The same numbers of arrays that broadcast."""
    # PyTorch's logarithm and NumPy's may differ in the last bit.
    return gumbel_of(torch.from_numpy(_first_words(seed, position, tokens))).numpy()


LUCK_WORD = 2**25
"""Tokens whose k lies below it, one in 128, are lucky."""
LUCK = -math.log(-math.log1p(-(LUCK_WORD + 0.5) * SCALE))
"""G of the luckiest token that is not lucky, about 4.85."""

Lucky = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Lucky tokens in rising order and their noise, [n] each."""


class LuckyTokens:
    """The few tokens whose noise at a position exceeds LUCK, remembered by sampling seed and position.

    A token far below the most likely ones wins only with such noise, whatever the logits say, so a position
    looks at the whole vocabulary once, however often it is drafted, branched over and verified.
    """

    def __init__(self, vocabulary: int, positions: int = 4096, device: torch.device | str = "cpu") -> None:
        """For that many tokens; remembers that many positions, the oldest are forgotten first."""
        self._tokens = torch.arange(vocabulary, device=device)
        self._room = torch.empty(5, vocabulary, dtype=torch.int64, device=device)
        self._positions = positions
        self._known: dict[tuple[int, int], Lucky] = {}

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._known

    def at(self, seed: int, position: int) -> Lucky:
        """The lucky tokens of a position."""
        key = (seed, position)
        if key not in self._known:
            if len(self._known) >= self._positions:
                del self._known[next(iter(self._known))]
            self._known[key] = self._find(seed, position)
        return self._known[key]

    def _find(self, seed: int, position: int) -> Lucky:
        words = vocabulary_words(seed, position, self._tokens, self._room)
        lucky = (words < LUCK_WORD).nonzero().squeeze(1)
        return lucky.cpu().numpy(), gumbel_of(words[lucky]).cpu().numpy()


def vocabulary_words(seed: int, position: int, tokens: Tensor, room: Tensor) -> Tensor:
    """`first_words` of one position for many tokens [V], several times as fast.

    Everything happens in `room` [5, V] int64, and what the first rounds derive from the position alone is
    derived once. Returns one of the rows of `room`.
    """
    m0, m1 = MULTIPLIERS
    k0 = [(seed + step * WEYL[0]) & WORD for step in range(ROUNDS)]
    k1 = [((seed >> 32) + step * WEYL[1]) & WORD for step in range(ROUNDS)]
    c0, c2, p0, p1, spare = room

    # Rounds 1 to 3: at first only c0 differs between tokens, then c2 and c3, then c0 to c2.
    torch.mul(torch.bitwise_xor(tokens, k0[0], out=c0), m0, out=p0)
    shared = position * m0
    _mix(p0, shared & WORD, k1[1], out=c2)
    shared = ((shared >> 32) ^ k1[0]) * m1
    torch.mul(c2, m1, out=p1)
    _mix(p1, shared & WORD, k0[2], out=c0)
    shared = ((shared >> 32) ^ k0[1]) * m0
    torch.bitwise_xor(p0, (shared >> 32) ^ k1[2], out=c2).bitwise_and_(WORD)
    p0.fill_(shared & WORD)

    for step in range(3, ROUNDS - 1):
        torch.mul(c2, m1, out=spare)
        _mix(spare, p1, k0[step], out=c2)
        torch.mul(c0, m0, out=p1)
        _mix(p1, p0, k1[step], out=c0)
        c0, c2, p0, p1, spare = c2, c0, p1, spare, p0
    torch.mul(c2, m1, out=spare)
    return _mix(spare, p1, k0[-1], out=c2)


def _mix(product: Tensor, low: Tensor | int, key: int, out: Tensor) -> Tensor:
    """High half of the product ^ low ^ key, a word; `low` may have stray bits above its word."""
    torch.bitwise_right_shift(product, 32, out=out)
    return out.bitwise_xor_(low).bitwise_xor_(key).bitwise_and_(WORD)
