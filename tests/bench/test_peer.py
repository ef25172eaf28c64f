"""The peer runs the same model: same weights in the same memory, same greedy text."""

from __future__ import annotations

import pytest
import torch
from tests.tiny import FAMILIES, tiny_model

from recguide.bench.peer import Peer
from recguide.core import SamplingParams
from recguide.engine.engine import Engine, EngineConfig
from recguide.models.checkpoint import named_weights

pytest.importorskip("transformers")

PROMPTS = [[5, 6, 7, 8, 9] * 5, [20, 4, 30, 11, 12] * 5]


def plain_text(model, tokens):
    engine = Engine(model, str, EngineConfig(kv_cache_tokens=1024))
    params = SamplingParams(max_tokens=tokens, method="ar", ignore_eos=True)
    requests = [engine.add(prompt, params)[0] for prompt in PROMPTS]
    while engine.busy:
        engine.step()
    return [list(request.emitted) for request in requests]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_peer_says_what_plain_decoding_says(family):
    model = tiny_model(family, seed=3, adapter=False, dtype=torch.float32)
    run = Peer(model, mode=None).decode(PROMPTS, 16)
    assert run.tokens.tolist() == plain_text(model, 16)
    assert len(run.step_ms) == 14
    assert min(run.step_ms) > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_shared(family):
    model = tiny_model(family, adapter=False, dtype=torch.float32)
    peer = Peer(model, mode=None)
    before = peer.decode(PROMPTS, 4).tokens
    for weight in named_weights(model.decoder).values():
        weight.copy_(torch.randn_like(weight))
    assert not torch.equal(peer.decode(PROMPTS, 4).tokens, before)


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_on_a_device(family):
    made = tiny_model(family, seed=3, adapter=False, dtype=torch.float32)
    model = type(made).random(made.config, seed=3, dtype=torch.float32, device="cuda")
    assert torch.equal(
        Peer(model).decode(PROMPTS, 16).tokens, Peer(model, mode=None).decode(PROMPTS, 16).tokens
    )
