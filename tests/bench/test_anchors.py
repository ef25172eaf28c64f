from __future__ import annotations

import pytest
from tests.tiny import config_of

from recguide.bench import anchors

NLD = {
    "model_type": "nemotron_labs_diffusion",
    "vocab_size": 131072,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "mask_token_id": 100,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}


@pytest.mark.parametrize(
    ("hidden", "inner", "layers", "floor"), [(4096, 14336, 34, 3.71), (5120, 16384, 40, 5.99)]
)
def test_floors_are_those_of_the_published_shapes(hidden, inner, layers, floor):
    shape = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
    assert anchors.floor_ms(config_of({**NLD, **shape})) == pytest.approx(floor, rel=2e-3)


def test_anchors_stand_where_they_were_measured():
    assert anchors.anchor(anchors.PRODUCTS_MS, "nld-8b", 128) == 4.99
    assert anchors.anchor(anchors.PRODUCTS_MS, "nld-14b", 4096) == 158
    assert anchors.anchor(anchors.PLAIN_MS, "nld-14b", 256) == 14.2
    for query_tokens, model in ((384, "nld-8b"), (100, "nld-8b"), (1, "other")):
        assert anchors.anchor(anchors.PLAIN_MS, model, query_tokens) is None
