import torch

from recguide.core import KVShape
from recguide.kv.cache import KVCache, Span


def test_written_tokens_lie_at_their_slots_of_their_layer():
    shape = KVShape(layers=2, kv_heads=3, head_dim=4, dtype=torch.float64, device=torch.device("cpu"))
    cache = KVCache(shape, pages=5, page_size=2)
    assert cache.keys.shape == cache.values.shape == (2, 10, 3, 4)
    assert cache.keys.dtype == torch.float64

    for slots in (torch.tensor([7, 0, 4]), slice(1, 4)):
        kv, found = torch.randn(2, 3, 2, 3, 4, dtype=torch.float64)
        span = Span(cache, slots)
        span.write(1, kv)
        assert torch.equal(cache.keys[1, slots], kv[:, 0])
        assert torch.equal(cache.values[1, slots], kv[:, 1])
        span.read(1, span.layout(found))
        assert torch.equal(found, kv)
    assert not cache.both[0].any()
    assert not cache.both[1, :, [5, 6, 8, 9]].any()


def test_memory_is_what_the_shape_says():
    shape = KVShape(layers=2, kv_heads=3, head_dim=4, dtype=torch.bfloat16, device=torch.device("cpu"))
    cache = KVCache(shape, pages=5, page_size=2)
    assert cache.both.untyped_storage().nbytes() == 10 * shape.bytes_per_token


def test_pages_are_copied_whole_and_nothing_else_changes():
    shape = KVShape(layers=2, kv_heads=3, head_dim=4, dtype=torch.float64, device=torch.device("cpu"))
    cache = KVCache(shape, pages=6, page_size=2)
    before = cache.both.normal_().clone()
    cache.copy([4, 0], 1)
    assert torch.equal(cache.both, before[:, :, [0, 1, 8, 9, 0, 1, 6, 7, 8, 9, 10, 11]])
