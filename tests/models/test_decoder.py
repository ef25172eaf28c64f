"""The decoder against an independent one: unfused weights, loops over heads, a dense mask, merged deltas."""

from __future__ import annotations

import math

import pytest
import torch
from tests.tiny import (
    FAMILIES,
    causal_logits,
    causal_mask,
    dense_attend,
    tiny_adapter,
    tiny_config,
    tiny_model,
)
from torch.nn.functional import scaled_dot_product_attention, silu

from recguide.models.adapter_files import named_tensors
from recguide.models.checkpoint import named_weights
from recguide.models.norm import ELSEWHERE, RmsNorm
from recguide.models.rotary import inverse_frequencies


class PlainDecoder:
    """Token by token and head by head, on weights under their checkpoint names, deltas merged where asked."""

    def __init__(self, model, adapter=None):
        self.config = model.config
        self.body = "encoder" if model.config.family == "nemotron_labs_diffusion" else "model"
        self.weights = dict(named_weights(model.decoder))
        self.merged = dict(self.weights)
        self.mask_embedding = None
        if adapter is not None:
            tensors = named_tensors(adapter)
            self.mask_embedding = tensors.get("mask_embedding")
            for (layer, module), lora in adapter.ranks.items():
                name = f"{self.body}.layers.{layer}.{module}"
                a = tensors[f"base_model.model.{name}.lora_A.weight"]
                b = tensors[f"base_model.model.{name}.lora_B.weight"]
                self.merged[f"{name}.weight"] = self.weights[f"{name}.weight"] + lora.scale * (b @ a)

    def norm(self, x, name):
        return (
            x / torch.sqrt((x * x).mean() + self.config.norm_eps) * self.weights[f"{self.body}.{name}.weight"]
        )

    def turn(self, head, position):
        angles = position * inverse_frequencies(self.config.rope, self.config.head_dim)
        first, second = head.chunk(2)
        return torch.cat(
            (
                first * angles.cos() - second * angles.sin(),
                second * angles.cos() + first * angles.sin(),
            )
        )

    def scale(self, position):
        scale = self.config.query_scale
        return (
            1.0 if scale is None else 1 + scale.beta * math.log(1 + position // scale.original_max_positions)
        )

    def hidden(self, tokens, positions, mask, adapted, masked):
        """Lists of N token ids, positions and booleans, mask [N, N] → [N, hidden]."""
        config, dim, body = self.config, self.config.head_dim, self.body
        share = config.heads // config.kv_heads
        embedding = self.weights[f"{body}.embed_tokens.weight"]
        xs = [
            self.mask_embedding if a and m and self.mask_embedding is not None else embedding[t]
            for t, a, m in zip(tokens, adapted, masked, strict=True)
        ]
        weights = [self.merged if a else self.weights for a in adapted]
        for layer in range(config.layers):

            def apply(i, x, module, layer=layer):
                return weights[i][f"{body}.layers.{layer}.{module}.weight"] @ x

            queries, keys, values = [], [], []
            for i, x in enumerate(xs):
                y = self.norm(x, f"layers.{layer}.input_layernorm")
                q, k, v = (apply(i, y, f"self_attn.{n}_proj").split(dim) for n in "qkv")
                queries.append([self.turn(h, positions[i]) * self.scale(positions[i]) for h in q])
                keys.append([self.turn(h, positions[i]) for h in k])
                values.append(v)
            after = []
            for i, x in enumerate(xs):
                seen = [j for j in range(len(xs)) if mask[i, j]]
                heads = []
                for h in range(config.heads):
                    scores = torch.stack([queries[i][h] @ keys[j][h // share] for j in seen]) / math.sqrt(dim)
                    chosen = torch.stack([values[j][h // share] for j in seen])
                    heads.append(scores.softmax(0) @ chosen)
                x = x + apply(i, torch.cat(heads), "self_attn.o_proj")
                y = self.norm(x, f"layers.{layer}.post_attention_layernorm")
                inner = silu(apply(i, y, "mlp.gate_proj")) * apply(i, y, "mlp.up_proj")
                after.append(x + apply(i, inner, "mlp.down_proj"))
            xs = after
        return torch.stack([self.norm(x, "norm") for x in xs])


def draft_beside_verification(prefix, causal, draft):
    """Mask [N, N]: a prefix and a causal row, and a draft row that sees the prefix and two of the row."""
    head = prefix + causal
    mask = torch.zeros(head + draft, head + draft, dtype=torch.bool)
    mask[:head, :head] = causal_mask(head)
    mask[head:, : prefix + 2] = True
    mask[head:, head:] = True
    return mask


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_causal_and_draft_rows_are_the_plain_decoder(family, adapted):
    model = tiny_model(family, seed=5, num_key_value_heads=1 if adapted else 2)
    adapter = model.adapter if adapted else None
    prefix, causal, draft = 30, 4, 5
    count, head = prefix + causal + draft, prefix + causal
    mask = draft_beside_verification(prefix, causal, draft)
    tokens = torch.randint(0, 32, (count,), generator=torch.Generator().manual_seed(2))
    tokens[3] = model.config.mask_token_id  # in the prompt, where it is a token like any other
    positions = torch.tensor([*range(head), *range(prefix + 2, prefix + 2 + draft)])
    masked = torch.arange(count) > head
    attend = dense_attend(mask, model.config.kv_heads)
    with torch.no_grad():
        found = model.decoder.hidden(
            tokens, positions, attend, adapter=adapter, on=slice(head, None), masked=masked
        )
    expected = PlainDecoder(model, adapter).hidden(
        tokens.tolist(),
        positions.tolist(),
        mask,
        [adapted and i >= head for i in range(count)],
        masked.tolist(),
    )
    assert found.dtype == torch.float64
    assert (found - expected).abs().max() < 1e-10


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_is_prefill_and_verification_with_a_cache(family):
    """A causal row of B tokens behind a prefix: its mask is aligned bottom right."""
    model = tiny_model(family)
    tokens = torch.randint(0, 32, (29,), generator=torch.Generator().manual_seed(1))
    keys, values = {}, {}

    def cached(layer, qkv, rotation):
        q, k, v = rotation.split(qkv, qkv.shape[1] - 4, 2)
        keys[layer] = torch.cat((keys[layer], k)) if layer in keys else k
        values[layer] = torch.cat((values[layer], v)) if layer in values else v
        total = len(keys[layer])
        share = q.shape[1] // k.shape[1]
        heads = [t.repeat_interleave(share, 1).transpose(0, 1) for t in (keys[layer], values[layer])]
        return (
            scaled_dot_product_attention(q.transpose(0, 1), *heads, attn_mask=causal_mask(total)[-len(q) :])
            .transpose(0, 1)
            .flatten(1)
        )

    parts = []
    with torch.no_grad():
        for start, stop in ((0, 21), (21, 29)):
            hidden = model.decoder.hidden(tokens[start:stop], torch.arange(start, stop), cached)
            parts.append(model.decoder.logits(hidden))
    assert (torch.cat(parts) - causal_logits(model, tokens)).abs().max() < 1e-10


@pytest.mark.parametrize("family", FAMILIES)
def test_the_adapter_touches_its_tail_alone(family):
    """Keys, values and results of causal tokens are the same to the last bit with any adapter beside them."""
    model = tiny_model(family)
    head, tail = 6, 5
    mask = torch.zeros(head + tail, head + tail, dtype=torch.bool)
    mask[:head, :head] = causal_mask(head)
    mask[head:] = True
    tokens = torch.arange(head + tail) % 7
    attend = dense_attend(mask)

    def run(adapter, on):
        written = []

        def recording(layer, qkv, rotation):
            _, k, v = rotation.split(qkv, qkv.shape[1] - 4, 2)
            written.append((k[:head].clone(), v[:head].clone()))
            return attend(layer, qkv, rotation)

        with torch.no_grad():
            hidden = model.decoder.hidden(
                tokens,
                torch.arange(head + tail),
                recording,
                adapter=adapter,
                on=on,
                masked=tokens == 3,
            )
        return hidden, written

    plain, plain_kv = run(None, None)
    for adapter in (model.adapter, tiny_adapter(model.config, seed=9)):
        with_adapter, kv = run(adapter, slice(head, None))
        assert torch.equal(plain[:head], with_adapter[:head])
        assert (plain[head:] - with_adapter[head:]).abs().max() > 0.1
        for (k, v), (plain_k, plain_v) in zip(kv, plain_kv, strict=True):
            assert torch.equal(k, plain_k)
            assert torch.equal(v, plain_v)
    assert torch.equal(run(model.adapter, slice(head + tail, None))[0], plain)


@pytest.mark.parametrize("on", [slice(2, None), torch.arange(5) >= 2])
def test_the_mask_embedding_goes_by_slot_not_by_token(on):
    model = tiny_model("llama")
    mask_token = model.config.mask_token_id
    tokens = torch.tensor([mask_token, mask_token, 5, mask_token, mask_token])
    masked = torch.tensor([True, False, False, False, True])
    embedded = model.decoder.embed(tokens, model.adapter, on, masked)
    table = model.decoder.embedding
    expected = [
        table[mask_token],
        table[mask_token],
        table[5],
        table[mask_token],
        model.adapter.mask_embedding,
    ]
    for found, row in zip(embedded, expected, strict=True):
        assert torch.equal(found, row)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_precision(family, dtype, expected):
    model = tiny_model(family, dtype=dtype)
    tokens = torch.arange(12)
    exact = causal_logits(tiny_model(family, dtype=torch.float64), tokens)
    found = causal_logits(model, tokens)
    assert found.dtype == expected
    bound = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.3}[dtype]
    assert (found.double() - exact).abs().max() < bound


def test_an_adapter_may_be_more_precise_than_its_model():
    config = tiny_config("llama")
    model = tiny_model("llama", dtype=torch.bfloat16)
    tokens, mask = torch.arange(10), torch.ones(10, 10, dtype=torch.bool)
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        adapter = tiny_adapter(config, dtype=dtype)
        with torch.no_grad():
            found.append(
                model.decoder.hidden(tokens, tokens, dense_attend(mask), adapter=adapter, masked=tokens == 3)
            )
    assert found[1].dtype == torch.bfloat16
    assert (found[0] - found[1]).abs().max() < 0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_norm_is_the_formula(dtype, scale):
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(5, 24, generator=generator, dtype=torch.float64) * scale).to(dtype)
    weight = torch.rand(24, generator=generator, dtype=torch.float64).to(dtype)
    found = RmsNorm(24, 1e-5, dtype, torch.device("cpu"))(x, weight)
    exact = x.double() / torch.sqrt((x.double() ** 2).mean(-1, keepdim=True) + 1e-5) * weight.double()
    assert found.dtype == dtype
    assert torch.allclose(found.double(), exact, rtol=8 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_norm_without_its_weight_follows_what_is_added_to_x(dtype, scale):
    x, y = (torch.randn(5, 24, dtype=dtype) * scale for _ in range(2))
    norm = RmsNorm(24, 1e-5, dtype, torch.device("cpu"))
    running = norm.begin(x)
    for total in (x, x + y):
        exact = total.double() / torch.sqrt((total.double() ** 2).mean(-1, keepdim=True) + 1e-5)
        found = norm(running, ELSEWHERE).double() * math.sqrt(24)
        assert torch.allclose(found, exact, rtol=8 * torch.finfo(dtype).eps, atol=0)
        running.add_(y)


def test_norm_of_zeros_is_zero():
    norm = RmsNorm(24, 1e-5, torch.float32, torch.device("cpu"))
    zeros = torch.zeros(2, 24)
    assert torch.equal(norm(zeros, torch.ones(24)), zeros)
    assert torch.equal(norm(norm.begin(zeros), ELSEWHERE), zeros)


def test_random_weights_are_those_of_the_seed():
    first, same, other = (tiny_model("llama", seed=seed) for seed in (1, 1, 2))
    tokens = torch.arange(5)
    assert torch.equal(causal_logits(first, tokens), causal_logits(same, tokens))
    assert not torch.equal(causal_logits(first, tokens), causal_logits(other, tokens))
    assert first.fingerprint == same.fingerprint != other.fingerprint
