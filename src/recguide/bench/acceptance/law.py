"""What a process means for rounds, computed exactly: no simulation, so a fit is fast and a residual is one.

Rounds form a Markov chain whose state is that of the text where a draft starts: a recursion over a block's
slots gives the joint law of acceptance, of the risky slots passed on the way and of the state at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recguide.bench.acceptance.process import AcceptanceReplay

Floats = NDArray[np.float64]
CORRECTIONS = 2
"""The paper's rule: branches at the two earliest risky slots, a continuation if no more are risky."""


@dataclass(frozen=True, slots=True)
class RoundLaw:
    """The law of rounds at one block size, on policy: every round starts where the one before it ended.

    Attributes:
        kernel: [2, B + 1, 2] P(A = a, state at the end | state at the start); a = 0 is impossible.
        start: [2] share of rounds that start in each state.
        first, second: share of rounds whose first mismatch is the first, the second risky slot.
        continued: share that pass whole with at most two risky slots.
        continued_hit: share of those whose continuation predicted the bonus, of all rounds.
    """

    kernel: Floats
    start: Floats
    first: float
    second: float
    continued: float
    continued_hit: float

    @property
    def acceptance(self) -> Floats:
        """[B + 1] P(A = a)."""
        return np.einsum("s,sae->a", self.start, self.kernel)

    @property
    def mean_acceptance(self) -> float:
        return float(self.acceptance @ np.arange(len(self.acceptance)))

    @property
    def full(self) -> float:
        """Share of rounds whose whole block passes."""
        return float(self.acceptance[-1])

    @property
    def correction_coverage(self) -> float:
        return self.first + self.second

    def transitions(self, edges: tuple[int, ...] = (8, 16, 32)) -> Floats:
        """P(interval of the next A | interval of A), intervals (0, 8], (8, 16], (16, 32] (paper Table 1)."""
        bounds = (0, *edges)
        parts = [slice(low + 1, high + 1) for low, high in zip(bounds, edges, strict=False)]
        into = np.stack([self.kernel[:, part].sum((1, 2)) for part in parts], axis=1)
        joint = np.stack([self.start @ self.kernel[:, part].sum(1) @ into for part in parts])
        return joint / joint.sum(1, keepdims=True)


def round_law(process: AcceptanceReplay, block: int) -> RoundLaw:
    """The law of rounds of `block` slots."""
    step = _step(process)
    hazards = np.array(process.hazards(block))
    most = CORRECTIONS + 1  # a count that high stays there: the rest is all the same
    kernel = np.zeros((2, block + 1, 2))
    flagged = np.zeros((2, CORRECTIONS))

    # alive[s, e, n]: no mismatch yet, started in s, now in e, n risky slots passed.
    alive = np.zeros((2, 2, most + 1))
    alive[:, :, 0] = np.eye(2)
    for slot in range(1, block):
        alive = np.einsum("sfn,fe->sen", alive, step)
        failing = alive * hazards[None, :, slot, None]
        kernel[:, slot] = failing.sum(2)
        flagged += process.recall * failing.sum(1)[:, :CORRECTIONS]
        alive = alive - failing
        alarmed = alive * process.alarm
        alive = alive - alarmed
        alive[:, :, 1:] += alarmed[:, :, :-1]
        alive[:, :, -1] += alarmed[:, :, -1]
    whole = np.einsum("sfn,fe->sen", alive, step)
    kernel[:, block] = whole.sum(2)
    continued = whole[:, :, : CORRECTIONS + 1].sum(2)

    start = stationary(kernel.sum(1))
    first, second = start @ flagged
    return RoundLaw(
        kernel=kernel,
        start=start,
        first=float(first),
        second=float(second),
        continued=float(start @ continued.sum(1)),
        continued_hit=float(start @ continued @ (1 - hazards[:, 0])),
    )


def stationary(chain: Floats) -> Floats:
    """Stationary distribution of a chain of two states [from, to]."""
    share = np.array([chain[1, 0], chain[0, 1]])
    return share / share.sum()


def _step(process: AcceptanceReplay) -> Floats:
    """[from, to] transition of the text's state over one token."""
    to_hard, to_easy = 1 / process.dwell_easy, 1 / process.dwell_hard
    return np.array([[1 - to_hard, to_hard], [to_easy, 1 - to_easy]])
