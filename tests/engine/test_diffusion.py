"""Block diffusion against its own reference: the rule written as plain loops over whole-sequence forwards."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.tiny import tiny_model

from recguide.core import Row, SamplingParams
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.runner import Runner

FAMILIES = ("llama", "nemotron_labs_diffusion")
PROMPT = (5, 9, 7, 12, 3, 8)


@cache
def model(family):
    return tiny_model(family)


def logits_of(backbone, known, block, masked):
    """Logits [block, vocab] of a draft row after `known`, whose KV is computed afresh."""
    runner = Runner(backbone, pages=16, page_size=8)
    pages = list(range(16))
    runner.forward([Row(0, 0, tuple(known), causal=True)], [pages])
    row = Row(
        0,
        len(known),
        tuple(block),
        causal=False,
        adapter=backbone.diffusion_adapter,
        masked=tuple(masked),
        wanted=range(len(block)),
    )
    return runner.forward([row], [pages])


def next_token(backbone, known):
    runner = Runner(backbone, pages=16, page_size=8)
    row = Row(0, 0, tuple(known), causal=True, wanted=(len(known) - 1,))
    return without_mask(backbone, runner.forward([row], [list(range(16))])).argmax().item()


def without_mask(backbone, logits):
    logits = logits.clone()
    logits[:, backbone.vocabulary.mask] = float("-inf")
    return logits


def reference(backbone, length, size, threshold):
    text = [next_token(backbone, PROMPT)]
    forwards = 0
    while len(text) < length:
        known = [*PROMPT, *text[:-1]]
        block = [text[-1], *[backbone.vocabulary.mask] * (size - 1)]
        masked = set(range(1, size))
        while masked:
            probabilities = without_mask(backbone, logits_of(backbone, known, block, sorted(masked))).softmax(
                -1
            )
            forwards += 1
            confidence, token = probabilities.max(-1)
            best = max(masked, key=lambda slot: (confidence[slot].item(), -slot))
            for slot in sorted(masked):
                if slot == best or confidence[slot] >= threshold:
                    block[slot] = int(token[slot])
                    masked.discard(slot)
        forwards += 1
        text += [*block[1:], next_token(backbone, [*known, *block])]
    return text[:length], forwards


@pytest.mark.parametrize("threshold", [0.05, 0.2, 0.9])
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_block_diffusion_is_its_reference(family, size, threshold):
    backbone = model(family)
    machine = Engine(backbone, str, EngineConfig())
    params = SamplingParams(
        max_tokens=20, method="diffusion", block_size=size, threshold=threshold, ignore_eos=True
    )
    (request,) = machine.add(PROMPT, params)
    while machine.busy:
        machine.step()
    tokens, forwards = reference(backbone, 20, size, threshold)
    assert list(request.completion().token_ids) == tokens
    assert request.stats.forwards == forwards


def test_a_lower_cap_gives_the_same_beginning():
    """Blocks keep their length at the cap: their length shapes the text."""
    texts = []
    for cap in (9, 20):
        machine = Engine(model("llama"), str, EngineConfig())
        (request,) = machine.add(
            PROMPT, SamplingParams(max_tokens=cap, method="diffusion", block_size=8, ignore_eos=True)
        )
        while machine.busy:
            machine.step()
        texts.append(request.completion().token_ids)
    assert texts[0] == texts[1][:9]


def test_logits_are_float64_here():
    assert logits_of(model("llama"), PROMPT, (5, 1), (1,)).dtype is torch.float64
