"""Where tokens stand and what they see, by a row's own definition, in NumPy and by the kernel."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attention.batches import batches
from tests.attention.listing import RowColumns, work_list

from recguide.attention.columns import Columns
from recguide.attention.packing import BatchShape, Flat
from recguide.attention.places import WantedPlaces, place_by_kernel, places_of
from recguide.attention.tiles import work_of
from recguide.attention.work import CACHED, OPEN, QUERY, SEEN, TOKENS, Tiling

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TILING = Tiling(
    share=2, kv_heads=2, rows=12, keys=4, programs=4, resident=2, grain=1, exact=False, partial_rows=1024
)
INERT = -1


class Filled:
    """A padded batch, filled but for its places, among rubbish."""

    def __init__(self, rows, tables, page_size, spare, tiling):
        self.tables, self.page_size, self.tiling = tables, page_size, tiling
        self.flat = Flat(rows, tables, page_size)
        tokens, wanted = self.flat.tokens + spare, self.flat.wanted + spare
        shape = BatchShape(tokens, wanted, len(tables), max(map(len, tables)), page_size, tiling)
        columns = Columns(shape.columns())
        buffer = torch.randint(0, 255, (columns.size,), dtype=torch.uint8)
        self.flat.fill(columns.arrays(buffer.numpy()), tables, tiling)
        self.tensors = columns.tensors(buffer.to(DEVICE))
        position = torch.full((wanted,), INERT, dtype=torch.int32, device=DEVICE)
        position[: self.flat.wanted] = 0
        self.wanted = WantedPlaces(position, torch.full_like(position, -7))

    def check(self):
        rows, n = self.flat.packed_rows, self.flat.tokens
        facts = self.tensors["facts"].cpu()
        for row, start in zip(rows, self.flat.structure.row_starts, strict=True):
            for slot in range(len(row.tokens)):
                at, position = start + slot, row.start + slot
                assert self.tensors["positions"][at] == position
                assert facts[3:, at].tolist() == [row.stem, row.prefix]
                page, inside = divmod(position, self.page_size)
                kv = self.tables[row.request][page] * self.page_size + inside if row.causal else -1
                assert self.tensors["kv_slots"][at] == kv
        assert not self.tensors["positions"][n:].any()
        given = self.flat.rows
        begin = [row.start for row in given for _ in row.wanted]
        slots = [row.start + slot + row.causal for row in given for slot in row.wanted]
        padding = len(self.wanted.position) - len(slots)
        assert self.wanted.position.tolist() == [*slots, *[INERT] * padding]
        assert self.wanted.start.tolist() == [*begin, *[-7] * padding]
        if self.tiling is not None:
            order, _ = work_list(RowColumns.of(rows), self.tiling)
            np.testing.assert_array_equal(self.tensors["order"][:n].cpu(), order)
            begins = self.tensors["begins"][:, : len(rows)].cpu().numpy()
            listed = work_of(self.flat.structure, begins, TILING)
            for row, item in enumerate(listed):
                if item[TOKENS] > 0 and row != TILING.programs:
                    seen = order[item[QUERY] : item[QUERY] + item[TOKENS], SEEN]
                    item[CACHED], item[OPEN] = seen.max(), seen.min()
            np.testing.assert_array_equal(self.tensors["work"][: len(listed)].cpu(), listed)

    def spoil(self):
        """Ends that belong to other prefixes, as a list has them that is used again."""
        if self.tiling is not None:
            n = self.flat.tokens
            self.tensors["order"][:n, 1] = 10**6
            rows = int(self.tensors["work"][self.tiling.programs, 2])
            item = self.tensors["work"][:rows, 1] > 0
            item[self.tiling.programs] = False
            for column in (4, 7):
                self.tensors["work"][:rows, column][item] = 10**6


CASES = (batches(), st.integers(0, 9), st.sampled_from((None, TILING)))


@settings(max_examples=60, deadline=None)
@given(*CASES)
def test_numpy_places_rows(case, spare, tiling):
    filled = Filled(*case, spare, tiling)
    filled.spoil()
    place = places_of(filled.tensors, filled.page_size, tiling, filled.wanted)
    for _ in range(2):
        place()
        filled.check()


@settings(max_examples=25, deadline=None)
@given(*CASES)
def test_the_kernel_places_rows(case, spare, tiling):
    pytest.importorskip("triton")
    filled = Filled(*case, spare, tiling)
    filled.spoil()
    for _ in range(2):
        place_by_kernel(filled.tensors, filled.page_size, tiling, filled.wanted)
        filled.check()
