"""How rows lie in a batch: all that depends on neither their tokens nor their positions.

From one forward to the next texts grow, but the same few structures come again, so they are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from recguide.core import AdapterUse, RecGuideError, Row

Ints = NDArray[np.int32]
Index = NDArray[np.intp]

KEPT, KEPT_OF_ONE = 256, 1024
"""Structures that are kept: of several requests, and of one, whose rounds with a policy have many."""

KEPT_TOKENS = 1024
"""Structures of more tokens are not: so many rows hardly ever lie the same way twice."""

_Form = tuple[int, bool, bool, int, tuple[int, ...], tuple[int, ...]]
"""Of a row: request, causal, adapter, number of tokens, mask slots, wanted slots."""


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """Where rows and their tokens lie. The arrays are shared: they are for reading.

    `R` rows, `N` tokens, `W` wanted logits.

    Attributes:
        packed: [R], rows in packed order: their numbers as given.
        in_turn: whether they are given in packed order.
        first_rows: [requests], the first row of each as given.
        first_tokens: [R], where each row begins, as given.
        row_starts, requests, causal, lengths: [R], in packed order; the first is where a row begins.
        bounds: [R], as given; a row's request's first row, the tokens that it caches, its longest stem.
        facts: [3, N], of each token the place of its row in packed order, its request, and its slot.
        masked: tokens in mask slots.
        wanted, wanted_slot, wanted_request: [W], token, slot and request of each logit.
        wanted_draft: [W], whether the row is a draft row.
        written, adapter_start: as in PackedBatch, without padding.
    """

    packed: Index
    in_turn: bool
    first_rows: Index
    first_tokens: Ints
    row_starts: tuple[int, ...]
    requests: Ints
    causal: NDArray[np.bool_]
    lengths: Ints
    bounds: tuple[tuple[int, int, int], ...]
    facts: Ints
    masked: Ints
    wanted: Ints
    wanted_slot: Ints
    wanted_request: Ints
    wanted_draft: NDArray[np.bool_]
    tokens: int
    written: int
    adapter_start: int

    @property
    def is_kept(self) -> bool:
        """Whether it may come again."""
        return self.tokens <= KEPT_TOKENS

    @property
    def use(self) -> AdapterUse:
        if self.adapter_start == self.tokens:
            return AdapterUse.NONE
        return AdapterUse.ALL if self.adapter_start == 0 else AdapterUse.MIXED


def structure_of(rows: Sequence[Row]) -> Structure:
    """How these rows lie in a batch.

    Raises RecGuideError, naming the row, if they cannot lie in one, wherever they stand.
    """
    forms = tuple(
        [
            (row.request, row.causal, row.adapter, len(row.tokens), row.masked, tuple(row.wanted))
            for row in rows
        ]
    )
    if sum([form[3] for form in forms]) > KEPT_TOKENS:
        return _structure(forms)
    return _of_one(forms) if forms and forms[-1][0] == forms[0][0] else _of_several(forms)


def _structure(forms: tuple[_Form, ...]) -> Structure:
    bounds = _bounds(forms)
    requests, causal, adapter, lengths, masked, wanted = zip(*forms, strict=True)
    length = np.array(lengths, np.int32)
    writes, touched = np.array(causal, np.bool_), np.array(adapter, np.bool_)
    # Causal rows write KV and lead; rows that the adapter touches trail.
    packed = np.argsort(touched.astype(np.int8) - writes, kind="stable")
    packed_lengths = length[packed]
    ends = packed_lengths.cumsum(dtype=np.int32)
    begins = ends - packed_lengths
    starts = np.empty_like(ends)
    starts[packed] = begins
    tokens = int(ends[-1])
    request = np.array(requests, np.int32)
    facts = np.empty((3, tokens), np.int32)
    facts[0] = np.arange(len(forms)).repeat(packed_lengths)
    facts[1] = request[packed].repeat(packed_lengths)
    facts[2] = np.arange(tokens) - begins.repeat(packed_lengths)
    masked_row, masked_slot = _slots(masked, length, "has a mask slot")
    wanted_row, wanted_slot = _slots(wanted, length, "wants a slot")
    return Structure(
        packed=packed,
        in_turn=bool((packed[:-1] < packed[1:]).all()),
        first_rows=np.array(sorted({first for first, _, _ in bounds})),
        first_tokens=starts,
        row_starts=tuple(begins.tolist()),
        requests=request[packed],
        causal=writes[packed],
        lengths=packed_lengths,
        bounds=bounds,
        facts=facts,
        masked=starts[masked_row] + masked_slot,
        wanted=starts[wanted_row] + wanted_slot,
        wanted_slot=wanted_slot,
        wanted_request=request[wanted_row],
        wanted_draft=~writes[wanted_row],
        tokens=tokens,
        written=int(length @ writes),
        adapter_start=tokens - int(length @ touched),
    )


_of_one, _of_several = lru_cache(KEPT_OF_ONE)(_structure), lru_cache(KEPT)(_structure)
"""Those whose first and last rows are of one request: then nearly always all are."""


def _slots(each: Sequence[Sequence[int]], lengths: Ints, what: str) -> tuple[Index, Ints]:
    """Row and slot of all of these, one after another; none may lie outside its row."""
    row = np.arange(len(each)).repeat([len(slots) for slots in each])
    slots = np.fromiter(chain.from_iterable(each), np.int32, len(row))
    # As an unsigned number a negative one is too large as well.
    inside = slots.view(np.uint32) < lengths[row].view(np.uint32)
    if not inside.all():
        raise RecGuideError(f"row {row[~inside][0]}: {what} outside it")
    return row, slots


def _bounds(forms: Sequence[_Form]) -> tuple[tuple[int, int, int], ...]:
    """The rows' bounds, if nothing is wrong with the rows."""
    if not forms:
        raise RecGuideError("batch: no rows to run")
    first: dict[int, int] = {}
    stems: dict[int, int] = {}
    for i, (request, causal, adapter, length, masked, _) in enumerate(forms):
        if request < 0 or not length or (causal and (adapter or masked or request in stems)):
            raise _fault(i, forms)
        first.setdefault(request, i)
        if causal:
            stems[request] = length
    return tuple(
        [
            (first[request], length if causal else 0, 0 if causal else stems.get(request, 0))
            for request, causal, _, length, _, _ in forms
        ]
    )


def _fault(i: int, forms: Sequence[_Form]) -> RecGuideError:
    """What is wrong with a row by itself, or beside those before it."""
    request, _, adapter, length, masked, _ = forms[i]
    faults = (
        (request < 0, f"request {request} has no block table"),
        (not length, "has no tokens"),
        (adapter, "is causal and asks for the adapter"),
        (len(masked) > 0, "is causal and has mask slots"),
        (True, f"request {request} has two causal rows"),
    )
    return RecGuideError(f"row {i}: {next(message for bad, message in faults if bad)}")
