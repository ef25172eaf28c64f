"""What a step's settle reads and what the host gets back, each in one block of int32 words.

The host fills a `SettleTable` in the step's input buffer; `settle_step` writes a `StepOutput`, on the device
or to memory of the host: one block there, one block back, whatever the step does.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from recguide.core import CANDIDATES, RecGuideError, light
from recguide.speculation.picks import Picks
from recguide.speculation.rows import Branch, BranchKind
from recguide.speculation.settle import Verdicts, settle

Words = NDArray[np.int32]
HEADER = 4
"""Words of a request before its lists: length, cap, trusted, first pick."""
CAP = 1
"""Which of them is the cap."""
VERDICT = 5
"""Words of a verdict before its tokens: acceptance, emitted, stopped, covered, reused."""
INTEGERS = 2 + CANDIDATES
PICKS = INTEGERS + 4
"""Words of a slot: token, candidates, bad, and as real numbers p1, p2, entropy, logprob."""


MANY = 24
"""Requests from which on a table is written column by column."""


class Judged(NamedTuple):
    """A request whose block is judged in a step.

    `block` are its tokens, slot 0 the seed, and `pick` is the index of its first pick among the step's W
    slots. `cap` tokens may still be emitted, at least 1; `stops` end it; a `trusted` block is emitted as
    drafted. `heads` are, for each branch, the index of its row's first pick: a continuation's is its slot 0.
    """

    block: Sequence[int]
    pick: int
    cap: int
    trusted: bool
    stops: Sequence[int]
    branches: Sequence[Branch] = ()
    heads: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class SettleShape:
    """Room of a table: requests, slots of a block, stop tokens and branches of a request, at most."""

    requests: int
    block: int
    stops: int
    branches: int

    @property
    def stride(self) -> int:
        """Words of a request."""
        return HEADER + self.block + self.stops + 3 * self.branches

    @property
    def words(self) -> int:
        """Words of a table."""
        return self.requests * self.stride

    def output_words(self, slots: int) -> int:
        """Words of the output of a step with that many wanted slots."""
        return self.requests * (VERDICT + self.block) + PICKS * slots

    def fits(self, judged: Judged) -> bool:
        """Whether the table has room for such a request."""
        return (
            len(judged.block) <= self.block
            and len(judged.stops) <= self.stops
            and len(judged.branches) <= self.branches
        )

    def block_at(self, judged: int) -> int:
        """Word of a table at which the block of that request begins, by its index among those judged."""
        return judged * self.stride + HEADER

    def branches_at(self, judged: int) -> int:
        """Word at which that request's branches begin: their slots, then, as many words further as there is
        room for branches, what their slots 0 hold."""
        return self.block_at(judged) + self.block + self.stops

    def caps(self, words: Words, requests: int) -> Words:
        """[requests] tokens that each of the first may still emit: a filled table's own, to be changed."""
        return words[: requests * self.stride].reshape(requests, self.stride)[:, CAP]

    def fill(self, words: Words, judged: Sequence[Judged]) -> None:
        """Writes a table; requests beyond those of `judged` are inert.

        Raises RecGuideError for what does not fit.
        """
        if len(judged) >= MANY:
            self._fill_many(words, judged)
        else:
            self._fill_few(words, judged)

    def _fill_many(self, words: Words, judged: Sequence[Judged]) -> None:
        """Column by column: most requests are alike."""
        blocks, stops = [one.block for one in judged], [one.stops for one in judged]
        branching = [(row, one) for row, one in enumerate(judged) if one.branches]
        if (
            len(judged) > self.requests
            or max(map(len, blocks)) > self.block
            or max(map(len, stops)) > self.stops
            or any(len(one.branches) > self.branches for _, one in branching)
        ):
            raise self._misfit(judged)
        used = len(judged) * self.stride
        table = words[:used].reshape(len(judged), self.stride)
        first = HEADER + self.block + self.stops
        table[:, HEADER : HEADER + self.block] = 0
        table[:, HEADER + self.block :] = -1
        table[:, first : first + self.branches] = 0
        table[:, :HEADER] = [(len(one.block), one.cap, one.trusted, one.pick) for one in judged]
        _write(table[:, HEADER:], blocks)
        _write(table[:, HEADER + self.block :], stops)
        for row, one in branching:
            for at, values in enumerate(_branch_words(one)):
                start = first + at * self.branches
                table[row, start : start + len(values)] = values
        words[used : self.words] = 0

    def _misfit(self, judged: Sequence[Judged]) -> RecGuideError:
        return RecGuideError(f"settle: {len(judged)} requests do not fit into {self}")

    def _fill_few(self, words: Words, judged: Sequence[Judged]) -> None:
        """Request by request, which is faster for few."""
        table = b"".join([part for one in judged for part in self._parts_of(one)])
        used = len(judged) * self.stride
        # Lists that are too long leave a number of words that no number of requests has.
        if len(judged) > self.requests or len(table) != 4 * used:
            raise self._misfit(judged)
        words[:used] = np.frombuffer(table, np.int32)
        if len(judged) < self.requests:
            words[used : self.words] = 0

    def _parts_of(self, judged: Judged) -> tuple[bytes, ...]:
        """The words of a request, most of which are padding."""
        block, pick, cap, trusted, stops, branches, _ = judged
        head = array("i", (len(block), cap, trusted, pick, *block)).tobytes()
        blank = _ZERO * (self.block - len(block))
        ends = array("i", stops).tobytes(), _NONE * (self.stops - len(stops))
        if not branches:
            return head, blank, *ends, _ZERO * self.branches, _NONE * (2 * self.branches)
        slots, candidates, predicted = [array("i", column).tobytes() for column in _branch_words(judged)]
        spare = self.branches - len(branches)
        zeros, none = _ZERO * spare, _NONE * spare
        return head, blank, *ends, slots, zeros, candidates, none, predicted, none


_ZERO, _NONE = bytes(4), bytes([255]) * 4


def _branch_words(judged: Judged) -> tuple[list[int], list[int], list[int]]:
    """Of a request's branches the slots, the candidates, and the first picks of continuations."""
    continuation, branches = BranchKind.CONTINUATION, judged.branches
    return (
        [branch.slot for branch in branches],
        [-1 if branch.head is None else branch.head for branch in branches],
        [
            head if branch.kind is continuation else -1
            for branch, head in zip(branches, judged.heads, strict=True)
        ],
    )


def _write(table: Words, lists: Sequence[Sequence[int]]) -> None:
    """Writes a list into the beginning of each row."""
    width = len(lists[0])
    if set(map(len, lists)) == {width}:
        table[:, :width] = lists
        return
    for row, one in zip(table, lists, strict=True):
        row[: len(one)] = one


@dataclass(frozen=True, slots=True)
class SettleTable:
    """A filled table on the device: `words` [shape.words] int32.

    A request's words: length of the block (0: inert), cap, trusted, index of its first pick; the block [B];
    stops [S], −1 for padding; slot of each branch [K], 0 for padding; the token that its slot 0 holds [K], −1
    where any fits or it was predicted; index of the pick that predicted it [K], −1 for none.
    """

    shape: SettleShape
    words: Tensor


@light
class StepOutput:
    """What a step decided, on the host: views of its words, so copy what has to outlive them.

    Attributes:
        verdicts: [R, VERDICT + B], acceptance, emitted, stopped, covered and reused as `settle.Outcome` has
            them, then the tokens, of which the first `emitted` count.
        integers: [INTEGERS, W], tokens, candidates and bad as `Picks` has them.
        reals: [4, W], p1, p2, entropy and logprobs as `Picks` has them.
    """

    verdicts: Words
    integers: Words
    reals: NDArray[np.float32]

    @staticmethod
    def read(words: Words, shape: SettleShape, slots: int) -> StepOutput:
        """The words that `settle_step` wrote for so many slots."""
        end = shape.requests * (VERDICT + shape.block)
        picks = words[end : end + PICKS * slots].reshape(PICKS, slots)
        return StepOutput(
            words[:end].reshape(shape.requests, VERDICT + shape.block),
            picks[:INTEGERS],
            picks[INTEGERS:].view(np.float32),
        )

    @property
    def emitted(self) -> Words:
        """[R]."""
        return self.verdicts[:, 1]

    @property
    def stopped(self) -> Words:
        """[R], 0 or 1."""
        return self.verdicts[:, 2]

    @property
    def reused(self) -> Words:
        """[R], index of a branch, negative for none."""
        return self.verdicts[:, 4]

    def last_tokens(self, requests: NDArray[np.intp]) -> Words:
        """The last token that each of these emits."""
        return self.verdicts[requests, VERDICT - 1 + self.emitted[requests]]

    @property
    def tokens(self) -> Words:
        """[W]."""
        return self.integers[0]

    @property
    def candidates(self) -> Words:
        """[W], those of the first rank."""
        return self.integers[1]

    @property
    def bad(self) -> Words:
        """[W], 0 or 1."""
        return self.integers[-1]

    @property
    def entropies(self) -> NDArray[np.float32]:
        """[W], in nats."""
        return self.reals[2]

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """[W], of the picked tokens."""
        return self.reals[3]


def settle_step(picks: Picks, table: SettleTable, out: Tensor) -> None:
    """Settles every block of the table by the step's picks and writes both to `out` for `StepOutput.read`.

    `out` is int32 with `shape.output_words(W)` words. On a CUDA device it is one launch that can be captured,
    and `out` may be pinned memory of the host, to be read when the launch is done.
    """
    if picks.tokens.is_cuda:
        settle_on_device(picks, table, out)
    else:
        _settle_on_host(picks, table, out)


def settle_on_device(picks: Picks, table: SettleTable, out: Tensor) -> None:
    """`settle_step` in Triton."""
    from recguide.speculation.kernels.settle import COPIED, settle_kernel

    shape, slots = table.shape, len(picks.tokens)
    programs = shape.requests + -(-slots // COPIED)
    # Triton's stubs, where it is installed, know neither launches nor plain integers as constants.
    cast("Any", settle_kernel)[(programs,)](
        table.words,
        picks.tokens,
        picks.candidates,
        picks.bad,
        *_reals(picks),
        out,
        slots,
        shape.requests,
        shape.block,
        shape.stops,
        shape.branches,
        SLOTS_ROOM=_room(shape.block),
        STOPS_ROOM=_room(shape.stops),
        BRANCHES_ROOM=_room(shape.branches),
        num_warps=1,
    )


def _reals(picks: Picks) -> tuple[Tensor, ...]:
    """In the order of the output, behind tokens, candidates and bad."""
    return picks.p1, picks.p2, picks.entropy, picks.logprobs


def _room(size: int) -> int:
    """The next power of two, 1 at least."""
    return 1 << max(0, size - 1).bit_length()


def _settle_on_host(picks: Picks, table: SettleTable, out: Tensor) -> None:
    """`settle_step` by the plain rules, where the tensors lie."""
    shape = table.shape
    rows = table.words.numpy().reshape(shape.requests, shape.stride).astype(np.int64)
    ends = np.cumsum([HEADER, shape.block, shape.stops, shape.branches, shape.branches])
    header, blocks, stops, slots, heads, predicted = np.split(rows, ends, axis=1)
    length, cap, trusted, pick = header.T
    tokens = np.append(picks.tokens.numpy(), 0)  # the last one for all that lies beyond a block
    slot = np.arange(shape.block)
    inside = slot < length[:, None]
    outcome = settle(
        Verdicts(
            blocks=blocks,
            lengths=length,
            picks=tokens[np.where(inside, pick[:, None] + slot, -1)],
            trusted=trusted.astype(np.bool_),
            stops=stops,
            caps=cap,
            branch_slots=slots,
            branch_heads=np.where(predicted >= 0, tokens[predicted], heads),
        )
    )
    alive = length > 0
    said = StepOutput.read(out.numpy(), shape, len(picks.tokens))
    for at, column in enumerate((outcome.acceptance, outcome.emitted, outcome.stopped)):
        said.verdicts[:, at] = np.where(alive, column, 0)
    for at, column in enumerate((outcome.covered, outcome.reused), start=3):
        said.verdicts[:, at] = np.where(alive, column, -1)
    said.verdicts[:, VERDICT:] = np.where(inside, outcome.tokens, 0)
    said.integers[0], said.integers[1:-1], said.integers[-1] = picks.tokens, picks.candidates, picks.bad
    for row, column in zip(said.reals, _reals(picks), strict=True):
        row[:] = column
