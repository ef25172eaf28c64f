"""What rounds did, added up."""

from __future__ import annotations

from recguide.core import RoundStats


def test_statistics_add_up():
    one, two = RoundStats(), RoundStats()
    one.acceptance.update([3, 3, 5])
    two.acceptance.update([5])
    one.forwards, two.forwards = 6, 2
    one.tokens, two.tokens = 12, 6
    one.add(two)
    assert one.acceptance == {3: 2, 5: 2}
    assert one.mean_acceptance == 4.0
    assert one.rounds == 4
    assert one.tpf == 17 / 8


def test_a_request_that_never_decoded_has_no_rate():
    assert RoundStats().tpf == RoundStats(prefill_forwards=2).tpf_with_prefill == 0.0
    assert RoundStats().mean_acceptance == 1.0
