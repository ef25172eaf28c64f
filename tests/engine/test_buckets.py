"""Which graph runs a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.core import AdapterUse
from recguide.engine.buckets import AT_START, QUERY_TOKENS, WANTED, Bucket, Buckets

BUCKETS = Buckets(1024, tuple(AdapterUse))


@given(st.integers(1, 1024), st.sampled_from(AdapterUse), st.data())
def test_a_bucket_holds_its_batch_and_no_smaller_size_does(tokens, use, data):
    wanted = data.draw(st.integers(0, tokens))
    bucket = BUCKETS.of(tokens, use, wanted)
    assert bucket.use is use
    assert tokens <= bucket.tokens
    assert wanted <= bucket.wanted <= bucket.tokens
    assert not any(tokens <= size < bucket.tokens for size in QUERY_TOKENS)
    kept = WANTED if bucket.tokens > AT_START else ()
    assert not [few for few in kept if wanted <= few < bucket.wanted]


@given(st.integers(1, AT_START), st.sampled_from(AdapterUse), st.data())
def test_graphs_of_small_batches_are_there_from_the_start(tokens, use, data):
    wanted = data.draw(st.integers(0, tokens))
    assert BUCKETS.of(tokens, use, wanted) in set(BUCKETS.at_start())


@pytest.mark.parametrize(
    ("tokens", "wanted", "expected"),
    [
        (1, 1, (1, 1)),
        (48, 47, (48, 48)),
        (49, 3, (64, 64)),
        (65, 0, (80, 80)),
        (300, 9, (320, 64)),
        (1000, 1, (1024, 64)),
    ],
)
def test_examples(tokens, wanted, expected):
    bucket = BUCKETS.of(tokens, AdapterUse.NONE, wanted)
    assert (bucket.tokens, bucket.wanted) == expected


def test_beyond_the_largest_there_is_none():
    assert BUCKETS.of(1025, AdapterUse.NONE, 1) is None
    assert Buckets(100, (AdapterUse.NONE,)).of(113, AdapterUse.NONE, 1) is None
    assert Buckets(100, (AdapterUse.NONE,)).of(112, AdapterUse.NONE, 1) is not None


def test_without_an_adapter_rows_that_ask_for_it_take_the_one_graph_there_is():
    plain = Buckets(64, (AdapterUse.NONE,))
    assert plain.of(16, AdapterUse.ALL, 16) == Bucket(16, AdapterUse.NONE, 16)
    assert {bucket.use for bucket in plain.at_start()} == {AdapterUse.NONE}


def test_decoding_finds_its_graphs_captured_the_largest_first():
    ready = list(BUCKETS.at_start())
    sizes = [bucket.tokens for bucket in ready]
    assert sizes == sorted(sizes, reverse=True)
    for tokens in range(1, AT_START + 1):
        for use in AdapterUse:
            assert BUCKETS.of(tokens, use, tokens) in ready
