"""Training sees what decoding sees: masks, layouts and hidden states against independent constructions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training import tiny
from torch.nn.attention.flex_attention import flex_attention

from recguide.training.config import BlockConfig, LoraConfig
from recguide.training.factors import Factors
from recguide.training.halves import Halves, load
from recguide.training.steps import StepPlan, draw_blocks, lay_out
from recguide.training.visibility import BlockMasks, dense_clean, dense_noisy

BLOCKS = BlockConfig(sizes={4: 1, 8: 1, 32: 1}, continuation_share=0.3)


def trained(backbone, seed: int = 1, **lora: object) -> Factors:
    """Factors whose deltas are not zero."""
    start = backbone.embedding.mean(0)
    factors = Factors(backbone.decoder.config, LoraConfig(rank=4, **lora), start, seed)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for outer in factors.outer:
            outer.copy_(torch.randn(outer.shape, generator=generator) * 0.2)
        factors.mask_embedding.copy_(torch.randn(factors.mask_embedding.shape, generator=generator) * 0.3)
    return factors.to(backbone.dtype)


@pytest.mark.parametrize("query_scale", [False, True])
def test_noisy_hidden_states_are_those_of_a_draft_row(query_scale: bool):
    backbone = tiny.backbone(torch.float64, query_scale=query_scale)
    corpus = tiny.corpus(backbone, 6)
    factors = trained(backbone)
    members = np.array([4, 1, 3])
    blocks = draw_blocks(corpus, members, 256, BLOCKS, np.random.default_rng(0))
    step = lay_out(corpus, members, blocks, 256)
    loaded = load(step, backbone.device, tiny.MASK)
    halves = Halves(backbone, 256, 256, compiled=False)
    clean_mask, noisy_mask = halves.masks(loaded)
    final, kept = halves.clean(loaded, clean_mask)
    hidden = halves.noisy(loaded, noisy_mask, factors.merged(backbone), factors.mask_embedding, kept)
    adapter = factors.adapter(backbone.decoder.config, tiny.MASK, torch.float64)
    first = 0
    for number in range(len(blocks.size)):
        text = corpus.text(int(members[blocks.document[number]])).tolist()
        start, size = int(blocks.start[number]), int(blocks.size[number])
        seed = [] if blocks.continuation[number] else [text[start]]
        tokens = torch.tensor([*text[:start], *seed, *[tiny.MASK] * (size - len(seed))])
        total = start + size
        mask = torch.ones(total, total, dtype=torch.bool).tril()
        mask[start:, start:] = True
        masked = torch.zeros(total, dtype=torch.bool)
        masked[start + len(seed) :] = True
        row = backbone.decoder.hidden(
            tokens,
            torch.arange(total),
            tiny.causal(mask),
            adapter=adapter,
            on=slice(start, None),
            masked=masked,
        )
        torch.testing.assert_close(hidden[first : first + size], row[start:], atol=1e-9, rtol=1e-9)
        if first < 64:  # and the teacher of a slot is the model before the slot's position
            want = tiny.decoder_logits(backbone, text)
            for slot in range(size):
                if loaded.labels[first + slot] >= 0:
                    got = backbone.decoder.logits(final[loaded.teacher[first + slot]][None])[0]
                    torch.testing.assert_close(got, want[start + slot - 1], atol=1e-9, rtol=1e-9)
                    assert loaded.labels[first + slot] == text[start + slot]
        first += size


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), bias=st.sampled_from([0.0, 3.0]))
def test_a_step_is_full_and_labels_are_the_text(seed: int, bias: float):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 60, size=9)
    prompts = np.array([int(rng.integers(1, n - 2)) for n in lengths])
    texts = [rng.integers(4, 64, size=n).tolist() for n in lengths]
    chances = [rng.random(n - p).tolist() for n, p in zip(lengths, prompts, strict=True)]
    corpus = tiny.Corpus.of(texts, prompts.tolist(), chances=chances)
    config = BlockConfig(sizes={4: 1, 16: 2}, continuation_share=0.4, hard_start_bias=bias)
    plan = StepPlan(corpus, 128, 256, config, seed)
    step = plan.step(seed % 7)
    again = StepPlan(corpus, 128, 256, config, seed).step(seed % 7)
    assert all((getattr(step, n) == getattr(again, n)).all() for n in step.__dataclass_fields__)
    assert len(step.clean_tokens) == 128
    assert len(step.noisy_tokens) == 256
    for q in range(256):
        first, limit = int(step.noisy_first[q]), int(step.noisy_limit[q])
        document = next(
            t
            for t in range(9)
            if step.clean_tokens[first : first + lengths[t]].tolist() == texts[t]
            and (step.clean_first[first : first + lengths[t]] == first).all()
        )
        start = limit - first
        position = start + int(step.slot[q])
        seeded = step.ahead[q] == step.slot[q]
        assert prompts[document] <= start <= lengths[document] - 2
        assert position == step.noisy_positions[q]
        assert bool(step.masked[q]) == (step.slot[q] > 0 or not seeded)
        if not step.masked[q]:
            assert step.noisy_tokens[q] == texts[document][start]
        if step.masked[q] and position < lengths[document]:
            assert step.labels[q] == texts[document][position]
            assert step.teacher[q] == first + position - 1
        else:
            assert step.labels[q] == -1


def test_an_epoch_shows_every_text_that_fits():
    rng = np.random.default_rng(0)
    texts = [[i + 4] * int(rng.integers(6, 20)) for i in range(40)]
    corpus = tiny.Corpus.of(texts, [2] * 40)
    plan = StepPlan(corpus, 128, 128, BLOCKS, 0)
    seen: set[int] = set()
    for index in range(200):
        seen |= set(plan.step(index).clean_tokens.tolist()) - {0}
    assert seen == set(range(4, 44))


def test_block_masks_equal_dense_masks():
    backbone = tiny.backbone()
    corpus = tiny.corpus(backbone, 24)
    plan = StepPlan(corpus, 384, 256, BLOCKS, 0)
    masks = BlockMasks(384, 256, backbone.device)
    torch.manual_seed(0)
    for index in (0, 1, 5):
        spans = load(plan.step(index), backbone.device, tiny.MASK).spans
        masks.fill(spans)
        cases = ((masks.clean, dense_clean(spans), 384, 384), (masks.noisy, dense_noisy(spans), 256, 640))
        for block, dense, queries, keys in cases:
            q, k, v = torch.randn(1, 4, queries, 8), torch.randn(1, 2, keys, 8), torch.randn(1, 2, keys, 8)
            sparse = flex_attention(q, k, v, block_mask=block, enable_gqa=True)
            plain = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=dense, enable_gqa=True
            )
            torch.testing.assert_close(sparse, plain, atol=1e-5, rtol=1e-5)
            _assert_tiles_cover(block, dense)


def _assert_tiles_cover(block, dense: torch.Tensor) -> None:
    """Every visible pair lies in a tile that the block mask lists, for queries and, transposed, for keys."""
    tiles = dense.view(dense.shape[0] // 128, 128, dense.shape[1] // 128, 128).any(3).any(1)
    counts, order = block.kv_num_blocks[0, 0], block.kv_indices[0, 0]
    for row in range(tiles.shape[0]):
        listed = set(order[row, : counts[row]].tolist())
        assert set(tiles[row].nonzero()[:, 0].tolist()) <= listed
    counts, order = block.q_num_blocks[0, 0], block.q_indices[0, 0]
    for column in range(tiles.shape[1]):
        listed = set(order[column, : counts[column]].tolist())
        assert set(tiles[:, column].nonzero()[:, 0].tolist()) <= listed


def test_dense_masks_against_their_words():
    backbone = tiny.backbone()
    step = StepPlan(tiny.corpus(backbone, 12), 256, 128, BLOCKS, 0).step(0)
    spans = load(step, backbone.device, tiny.MASK).spans
    clean, noisy = dense_clean(spans), dense_noisy(spans)
    text = step.clean_first
    for q in range(0, 256, 7):
        for k in range(256):
            assert clean[q, k] == (text[q] == text[k] and step.clean_positions[k] <= step.clean_positions[q])
    for q in range(0, 128, 5):
        start = step.noisy_positions[q] - step.slot[q]
        for k in range(256):
            assert noisy[q, k] == (text[k] == step.noisy_first[q] and step.clean_positions[k] < start)
        for k in range(128):
            assert noisy[q, 256 + k] == (step.noisy_block[q] == step.noisy_block[k])


@pytest.mark.parametrize("pattern", [{}, {"q_proj": 2, "layers.1.mlp.down_proj": 6}])
def test_merged_weights_have_the_gradients_of_per_token_deltas(pattern: dict[str, int]):
    backbone = tiny.backbone(torch.float64)
    factors = trained(backbone, rank_pattern=pattern)
    x = torch.randn(7, 32, dtype=torch.float64)
    for stack, inner, outer in factors._triples():
        for place, layer in enumerate(stack.layers):
            part = stack.part
            if part.inputs != 32:
                continue
            rows = slice(part.start, part.start + part.outputs)
            base = getattr(backbone.layers[layer], part.group)[rows]
            plain = x @ base.T + stack.scale * (x @ inner[place].T) @ outer[place].T
            merged = x @ getattr(factors.merged(backbone)[layer], part.group)[rows].T
            torch.testing.assert_close(merged, plain)
            a = torch.autograd.grad(plain.square().sum(), (inner, outer), retain_graph=True)
            b = torch.autograd.grad(merged.square().sum(), (inner, outer))
            torch.testing.assert_close(a, b)
    ranks = {(layer, s.part.short): s.rank for s in factors.stacks for layer in s.layers}
    assert len(ranks) == 14
    assert ranks[0, "q_proj"] == (2 if pattern else 4)
    assert ranks[1, "down_proj"] == (6 if pattern else 4)
