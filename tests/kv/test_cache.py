import torch

from recguide.core import KVShape
from recguide.kv.cache import KVCache


def test_written_tokens_lie_at_their_slots_of_their_layer():
    shape = KVShape(layers=2, kv_heads=3, head_dim=4, dtype=torch.float64, device=torch.device("cpu"))
    cache = KVCache(shape, pages=5, page_size=2)
    assert cache.keys.shape == cache.values.shape == (2, 10, 3, 4)
    assert cache.keys.dtype == torch.float64

    keys, values = torch.randn(2, 3, 3, 4, dtype=torch.float64)
    cache.write(1, torch.tensor([7, 0, 4]), keys, values)
    assert torch.equal(cache.keys[1, [7, 0, 4]], keys)
    assert torch.equal(cache.values[1, [7, 0, 4]], values)
    cache.write(1, slice(1, 4), keys, values)
    assert torch.equal(cache.keys[1, 1:4], keys)
    assert not cache.keys[0].any()
    assert not cache.keys[1, [5, 6, 8, 9]].any()


def test_memory_is_what_the_shape_says():
    shape = KVShape(layers=2, kv_heads=3, head_dim=4, dtype=torch.bfloat16, device=torch.device("cpu"))
    cache = KVCache(shape, pages=5, page_size=2)
    held = cache.keys.untyped_storage().nbytes() + cache.values.untyped_storage().nbytes()
    assert held == 10 * shape.bytes_per_token
