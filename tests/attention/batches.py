"""Random batches that obey the rules of rows, for property tests."""

from hypothesis import strategies as st

from recguide.core import Row

PAGE_SIZES = st.integers(1, 5)


@st.composite
def batches(draw, requests=3, prefix=9, length=5, page_sizes=PAGE_SIZES):
    """(rows in any order, tables, page size)."""
    page_size = draw(page_sizes)
    count = draw(st.integers(1, requests))
    rows = []
    needed = []
    for request in range(count):
        cached = draw(st.integers(0, prefix))
        causal = draw(st.integers(0, length))
        if causal:
            rows.append(Row(request, cached, tokens(draw, causal), True, wanted=some(draw, causal)))
        for _ in range(draw(st.integers(0 if causal else 1, 3))):
            size = draw(st.integers(1, length))
            rows.append(
                Row(
                    request,
                    cached,
                    tokens(draw, size),
                    False,
                    stem=draw(st.integers(0, causal)),
                    adapter=draw(st.booleans()),
                    masked=tuple(some(draw, size)),
                    wanted=some(draw, size),
                )
            )
        needed.append(-(-(cached + causal) // page_size) + draw(st.integers(0, 1)))
    free = draw(st.permutations(range(sum(needed) + 2)))
    tables = [[free.pop() for _ in range(pages)] for pages in needed]
    return draw(st.permutations(rows)), tables, page_size


def tokens(draw, count):
    return tuple(draw(st.lists(st.integers(0, 50), min_size=count, max_size=count)))


def some(draw, length):
    return sorted(draw(st.sets(st.integers(0, length - 1))))
