"""How rows lie in a batch: all that depends on neither their tokens nor their positions.

From one forward to the next texts grow, but the same few structures come again, so they are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from recguide.core import AdapterUse, RecGuideError, Row

Ints = NDArray[np.int32]
Index = NDArray[np.intp]

KEPT, KEPT_OF_ONE = 256, 1024
"""Structures that are kept: of several requests, and of one, whose rounds with a policy have many."""

KEPT_RUNS, KEPT_ROW = 4096, 256
"""Runs of rows that are kept, and tokens of a row: a longer one is a prompt's chunk."""

KEPT_TOKENS = 1024
"""Structures of more tokens are not: so many rows hardly ever lie the same way twice."""

_RowForm = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Of a row: number of tokens, mask slots, wanted slots."""

_Form = tuple[int, bool, bool, _RowForm]
"""Of a row: request, causal, adapter, and the rest."""

_Head = tuple[int, int]
"""Of a run: request, and kind: whether the adapter touches it, less whether it writes KV."""

ROW, REQUEST, SLOT, MASKED, TOKEN, SEEN, OWN = range(7)
"""What a structure knows of a token: the first three as in `Structure.facts`, whether its slot is a MASK
slot, and the last three as in `order`."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Rows of one request and one kind that are given one after another, wherever. There are few, and they
    come again and again, in ever other company.

    Attributes:
        lengths: tokens of each row.
        begins: of each row, where it begins.
        cells: [N, 7], see ROW and the others.
        wanted: [W, 4], as in Structure.
        wrong: the first row with slots outside it, and what is wrong with it.
    """

    lengths: tuple[int, ...]
    begins: tuple[int, ...]
    tokens: int
    cells: Ints
    wanted: Ints
    wrong: tuple[int, str] | None


@dataclass(slots=True, eq=False)
class Structure:
    """Where rows and their tokens lie. It is shared, and all of it is for reading.

    `R` rows, `N` tokens, `W` wanted logits.

    Attributes:
        packed: [R], rows in packed order: their numbers as given.
        in_turn: whether they are given in packed order.
        row_starts: [R], in packed order, where a row begins.
        owners: [3, requests], the requests by their numbers: that, where its tokens begin in `order`, and its
            first row in packed order.
        lengths: of each of them, tokens of its causal row, 0 for none, and of its draft rows.
        bounds: [R], as given; a row's request's first row, the tokens that it caches, its longest stem.
        facts: [N, 4], of each token the place of its row in packed order, its request, its slot, and whether
            that is a MASK slot.
        order: [N, 3], tokens grouped by request, each request's in packed order, with columns as `work` has
            them, but for what they see.
        wanted: [W, 4], of each logit the request, the slot, whether it is a draft row's, and the token.
        written, adapter_start: as in PackedBatch, without padding.
    """

    packed: Index
    in_turn: bool
    row_starts: tuple[int, ...]
    owners: Ints
    lengths: list[tuple[int, ...]]
    bounds: tuple[tuple[int, int, int], ...]
    facts: Ints
    order: Ints
    wanted: Ints
    tokens: int
    written: int
    adapter_start: int

    @property
    def first_tokens(self) -> Index:
        """[R], where each row begins, as given."""
        starts = np.empty_like(self.packed)
        starts[self.packed] = self.row_starts
        return starts

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
            (row.request, row.causal, row.adapter, (len(row.tokens), row.masked, tuple(row.wanted)))
            for row in rows
        ]
    )
    if sum([form[3][0] for form in forms]) > KEPT_TOKENS:
        return _structure(forms)
    return _of_one(forms) if forms and forms[-1][0] == forms[0][0] else _of_several(forms)


def _structure(forms: tuple[_Form, ...]) -> Structure:
    bounds = _bounds(forms)
    heads, runs, first = _runs_of(forms)
    requests, kinds = zip(*heads, strict=True)
    # Causal rows write KV and lead; rows that the adapter touches trail.
    given = [*range(len(runs))]
    packed = sorted(given, key=kinds.__getitem__)
    begins, places = [0] * len(runs), [0] * len(runs)
    tokens = place = written = untouched = 0
    for at in packed:
        begins[at], places[at] = tokens, place
        tokens += runs[at].tokens
        place += len(runs[at].lengths)
        if kinds[at] < 0:
            written = tokens
        if kinds[at] <= 0:
            untouched = tokens
    ordered = sorted(given, key=heads.__getitem__)
    owners, lengths = _owned(ordered, heads, runs, places)

    moved = np.zeros((len(runs), OWN + 1), np.int32)
    moved[:, ROW], moved[:, REQUEST], moved[:, TOKEN] = places, requests, begins
    moved[:, OWN] = [0 if kind < 0 else place for kind, place in zip(kinds, places, strict=True)]
    wanted = np.concatenate([run.wanted for run in runs])
    wanted += moved[:, REQUEST : TOKEN + 1].repeat([len(run.wanted) for run in runs], 0)
    cells = np.concatenate([runs[at].cells for at in ordered])
    moved = moved if ordered == given else moved[ordered]
    cells += moved.repeat([runs[at].tokens for at in ordered], 0)
    facts = np.empty((tokens, MASKED + 1), np.int32)
    facts[cells[:, TOKEN].astype(np.intp)] = cells[:, : MASKED + 1]
    return Structure(
        packed=np.array([row for at in packed for row in range(first[at], first[at + 1])]),
        in_turn=packed == given,
        row_starts=tuple([begins[at] + begin for at in packed for begin in runs[at].begins]),
        owners=owners,
        lengths=lengths,
        bounds=bounds,
        facts=facts,
        order=cells[:, TOKEN:],
        wanted=wanted,
        tokens=tokens,
        written=written,
        adapter_start=untouched,
    )


_of_one, _of_several = lru_cache(KEPT_OF_ONE)(_structure), lru_cache(KEPT)(_structure)
"""Those whose first and last rows are of one request: then nearly always all are."""


def _runs_of(forms: Sequence[_Form]) -> tuple[list[_Head], list[Run], list[int]]:
    """Runs as given, what stands above each, and their first rows; one more behind the last."""
    heads: list[_Head] = []
    rows: list[list[_RowForm]] = []
    for request, causal, adapter, row in forms:
        head = request, adapter - causal
        if heads and head == heads[-1]:
            rows[-1].append(row)
        else:
            heads.append(head)
            rows.append([row])
    runs = [
        (_run if mine[0][0] <= KEPT_ROW else _made)(kind < 0, tuple(mine))
        for (_, kind), mine in zip(heads, rows, strict=True)
    ]
    first = [0, *accumulate(map(len, rows))]
    for run, begin in zip(runs, first, strict=False):
        if run.wrong is not None:
            raise RecGuideError(f"row {begin + run.wrong[0]}: {run.wrong[1]} outside it")
    return heads, runs, first


def _owned(
    ordered: Sequence[int], heads: Sequence[_Head], runs: Sequence[Run], places: Sequence[int]
) -> tuple[Ints, list[tuple[int, ...]]]:
    """`owners` and `lengths` of a structure, of runs whose first rows have these places.

    `ordered` are runs by request, each request's in packed order.
    """
    owners: list[int] = []
    lengths: list[tuple[int, ...]] = []
    at, last = 0, -1
    for number in ordered:
        (request, kind), run = heads[number], runs[number]
        if request == last:
            lengths[-1] += run.lengths
        else:
            last = request
            owners += request, at, places[number]
            lengths.append(run.lengths if kind < 0 else (0, *run.lengths))
        at += run.tokens
    return np.array(owners, np.int32).reshape(-1, 3).T, lengths


def _made(causal: bool, rows: tuple[_RowForm, ...]) -> Run:
    lengths, masked, wanted = zip(*rows, strict=True)
    *begins, tokens = 0, *accumulate(lengths)
    cells = np.zeros((tokens, OWN + 1), np.int32)
    cells[:, ROW] = np.arange(len(rows)).repeat(lengths)
    cells[:, TOKEN] = np.arange(tokens)
    cells[:, SLOT] = cells[:, TOKEN] - np.array(begins).repeat(lengths)
    cells[:, OWN] = -1 if causal else cells[:, ROW]
    wrong = [
        (row, what)
        for row, length in enumerate(lengths)
        for slots, what in ((masked[row], "has a mask slot"), (wanted[row], "wants a slot"))
        if len(slots) and not 0 <= min(slots) <= max(slots) < length
    ]
    if not wrong:
        cells[[begin + slot for begin, mine in zip(begins, masked, strict=True) for slot in mine], MASKED] = 1
    asked = [
        (0, slot, not causal, begin + slot)
        for begin, mine in zip(begins, wanted, strict=True)
        for slot in mine
    ]
    return Run(
        lengths=lengths,
        begins=tuple(begins),
        tokens=tokens,
        cells=cells,
        wanted=np.array(asked, np.int32).reshape(-1, 4),
        wrong=wrong[0] if wrong else None,
    )


_run = lru_cache(KEPT_RUNS)(_made)


def _bounds(forms: Sequence[_Form]) -> tuple[tuple[int, int, int], ...]:
    """The rows' bounds, if nothing is wrong with the rows."""
    if not forms:
        raise RecGuideError("batch: no rows to run")
    first: dict[int, int] = {}
    stems: dict[int, int] = {}
    for i, (request, causal, adapter, (length, masked, _)) in enumerate(forms):
        if request < 0 or not length or (causal and (adapter or masked or request in stems)):
            raise _fault(i, forms)
        first.setdefault(request, i)
        if causal:
            stems[request] = length
    return tuple(
        [
            (first[request], row[0] if causal else 0, 0 if causal else stems.get(request, 0))
            for request, causal, _, row in forms
        ]
    )


def _fault(i: int, forms: Sequence[_Form]) -> RecGuideError:
    """What is wrong with a row by itself, or beside those before it."""
    request, _, adapter, (length, masked, _) = forms[i]
    faults = (
        (request < 0, f"request {request} has no block table"),
        (not length, "has no tokens"),
        (adapter, "is causal and asks for the adapter"),
        (len(masked) > 0, "is causal and has mask slots"),
        (True, f"request {request} has two causal rows"),
    )
    return RecGuideError(f"row {i}: {next(message for bad, message in faults if bad)}")
