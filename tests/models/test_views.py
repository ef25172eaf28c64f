import torch

from recguide.models.views import columns, tail


def test_views_are_what_indexing_gives_also_of_views():
    whole = torch.arange(60.0).view(5, 12)
    for x in (whole, whole[:, 2:9], whole[1:4, 3:8]):
        for which in (slice(0, x.shape[1]), slice(0, 2), slice(1, 4)):
            assert torch.equal(columns(x, which), x[:, which])
        for start in range(len(x) + 1):
            assert torch.equal(tail(x, start), x[start:])
    columns(tail(whole, 3), slice(1, 3)).zero_()
    assert not whole[3:, 1:3].any()
    assert whole[:3, 1:3].all()
