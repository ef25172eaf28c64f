"""What a draft row may and may not do: it leaves the cache alone, and its logits are of its own slots."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.tiny import FAMILIES, tiny_adapter, tiny_config, tiny_model

from recguide.core import Row, SamplingParams
from recguide.engine.runner import Runner
from recguide.llm import LLM
from recguide.models.loading import Model

PROMPT = (5, 9, 7, 12, 3, 8, 20)
PREFIX = len(PROMPT)
BLOCK = (11, 4, 30, 17, 6, 25)
PAGES = 8
TABLES = [list(range(4)), list(range(4, 8))]


@cache
def model(family):
    return tiny_model(family)


def runner_of(backbone):
    """A runner that has cached PROMPT for two requests."""
    runner = Runner(backbone, pages=PAGES, page_size=4)
    runner.forward([Row(request, 0, PROMPT, causal=True) for request in range(2)], TABLES)
    return runner


def content(runner):
    """The cache's content, copied."""
    return runner._cache.keys.clone(), runner._cache.values.clone()


def draft_row(tokens, masked, *, request=0, prefix=PREFIX, **more):
    return Row(
        request,
        prefix,
        tuple(tokens),
        causal=False,
        masked=tuple(masked),
        wanted=range(len(tokens)),
        **more,
    )


def same_bytes(left, right):
    return all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_row_leaves_the_caches_bytes_unchanged(family, adapter):
    runner = runner_of(model(family))
    before = content(runner)
    assert before[0].any()
    runner.forward([draft_row(BLOCK, range(1, len(BLOCK)), adapter=adapter)], TABLES)
    assert same_bytes(content(runner), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_beside_a_verification_only_the_causal_tokens_are_written(family):
    runner = runner_of(model(family))
    before = content(runner)
    causal = Row(0, PREFIX, BLOCK, causal=True, wanted=range(len(BLOCK)))
    branches = [
        draft_row((3,) * 6, range(6), stem=4, adapter=True),
        draft_row((3,) * 6, range(6), request=1, adapter=True),
    ]
    runner.forward([causal, *branches], TABLES)
    changed = [
        (now != then).flatten(2).any(2).any(0).nonzero().flatten().tolist()
        for now, then in zip(content(runner), before, strict=True)
    ]
    written = list(range(PREFIX, PREFIX + len(BLOCK)))
    assert changed == [written, written]


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_values_and_logits_of_a_verification_do_not_depend_on_the_adapter(family):
    plain = tiny_model(family, adapter=False)
    causal = Row(0, PREFIX, BLOCK, causal=True, wanted=range(len(BLOCK)))
    branch = draft_row((3,) * 6, range(6), stem=2, adapter=True)
    alone, beside = runner_of(plain), runner_of(model(family))
    expected = alone.forward([causal], TABLES)
    got = beside.forward([causal, branch], TABLES)[: len(BLOCK)]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    for mine, theirs in zip(content(beside), content(alone), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_id_fills_a_masked_slot_is_never_seen(family):
    """With a learned mask embedding the id at a masked slot is a placeholder: no logits depend on it."""
    runner = runner_of(model(family))
    for slot in range(1, len(BLOCK)):
        rows = [
            draft_row((*BLOCK[:slot], token, *BLOCK[slot + 1 :]), (slot,), adapter=True) for token in (3, 22)
        ]
        one, other = (runner.forward([row], TABLES) for row in rows)
        assert torch.equal(one, other)
        unmasked = runner.forward([draft_row(BLOCK, (), adapter=True)], TABLES)
        assert (unmasked - one).abs().amax(1).min() > 1e-6  # while every slot sees that it is masked


def echo_model(said):
    """A model whose slots say what they hold, and masked ones the token `said`: nothing mixes positions."""
    config = tiny_config("llama")
    model = Model.random(config, adapter=tiny_adapter(config, ranks={}))
    weights = dict(model.decoder.named_parameters())
    (embedding,) = (weights.pop(name) for name in list(weights) if "embed" in name)
    for weight in weights.values():
        weight.data.fill_(0.0 if weight.dim() == 2 else 1.0)
    embedding.data.div_(embedding.data.norm(dim=1, keepdim=True))
    model.adapter.mask_embedding.data.copy_(embedding.data[said])
    return model


def test_shift_a_draft_rows_logits_at_slot_i_are_of_slot_i():
    """Shifted logits would say the neighbour's token at a masked slot."""
    for slot, true in enumerate(BLOCK):
        row = draft_row((*BLOCK[:slot], 3, *BLOCK[slot + 1 :]), (slot,), adapter=True)
        logits = runner_of(echo_model(true)).forward([row], TABLES)
        assert logits.argmax(1).tolist() == list(BLOCK)


@pytest.mark.slow
def test_shift_the_demo_model_fills_a_masked_slot_with_the_true_token():
    """One slot of its own greedy text masked: the logits there, and no neighbour's, say that token."""
    llm = LLM("smollm2-135m", device="cpu")
    question = "Write a Python function that returns the sum of the squares of a list."
    prompt = llm.tokenizer.chat([{"role": "user", "content": question}])
    (generation,) = llm.generate([prompt], SamplingParams(max_tokens=40, method="ar"))
    known = (*prompt, *generation.token_ids)
    runner = Runner(llm.model, pages=16, page_size=16)
    tables = [list(range(16))]
    runner.forward([Row(0, 0, known, causal=True)], tables)

    block, positions = 4, 20
    hits = {-1: 0, 0: 0, 1: 0}
    for at in distinct(known, len(prompt) + 2)[:positions]:
        slot = 1 + at % 2
        start = at - slot
        tokens = [*known[start:at], llm.model.vocabulary.mask, *known[at + 1 : start + block]]
        said = runner.forward([draft_row(tokens, (slot,), prefix=start, adapter=True)], tables)[slot].argmax()
        for shift in hits:
            hits[shift] += said == known[at + shift]
    assert hits[0] > positions * 0.7, hits
    assert max(hits[-1], hits[1]) <= positions * 0.1, hits


def distinct(tokens, start):
    """Positions whose token differs from both neighbours, which differ too: only there a shift would show."""
    return [at for at in range(start, len(tokens) - 3) if len(set(tokens[at - 1 : at + 2])) == 3]
