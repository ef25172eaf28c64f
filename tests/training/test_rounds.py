"""Replayed rounds are the engine's: the same texts, acceptance, coverage and reuse, to the digit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from tests.training import tiny

from recguide.core import RoundStats, SamplingParams, Vocabulary
from recguide.llm import LLM
from recguide.models.loading import Model
from recguide.speculation.slots import torch_picker
from recguide.training.config import BlockConfig, LoraConfig, OptimiserConfig, TrainConfig
from recguide.training.corpus import Corpus
from recguide.training.drafted import DraftReader
from recguide.training.halves import Halves
from recguide.training.rounds import Prepared, Replay, Replayed, everywhere
from recguide.training.trainer import Trainer

CAP = 40
SIZES = (256, 256)
VOCABULARY = Vocabulary(size=64, eos=(tiny.END,), mask=tiny.MASK)


@pytest.fixture(scope="module")
def backbone():
    return tiny.backbone()


@pytest.fixture(scope="module")
def adapter(backbone):
    """Trained a little, so that some blocks pass and some margins are wide."""
    config = TrainConfig(
        steps=150,
        clean_tokens=512,
        noisy_tokens=512,
        eval_every=0,
        lora=LoraConfig(rank=16),
        blocks=BlockConfig(sizes={4: 1, 8: 1}, continuation_share=0.3),
        optimiser=OptimiserConfig(lr=1e-2),
    )
    trainer = Trainer(backbone, tiny.corpus(backbone, 64), config, tiny.MASK)
    trainer.run()
    return trainer.finished().adapter(backbone.decoder.config, tiny.MASK, torch.float32)


@pytest.fixture(scope="module")
def reader(backbone, adapter) -> DraftReader:
    halves = Halves(backbone, *SIZES, compiled=False)
    return DraftReader(backbone, adapter, VOCABULARY, halves, SIZES, torch_picker(VOCABULARY), compiled=False)


def texts(backbone, asked: list[list[int]], temperature: float, seeds: list[int]) -> Corpus:
    found = {w.index: w.tokens for w in tiny.lanes(backbone, 5, CAP).write(asked, temperature, 0, seeds)}
    return Corpus.of(
        [[*prompt, *found[index]] for index, prompt in enumerate(asked)], [len(p) for p in asked]
    )


def counted(replayed: list[Replayed]) -> dict[str, object]:
    rounds = [r for text in replayed for r in text.rounds]

    def kinds(found: list[Prepared | None]) -> Counter[str]:
        return Counter(kind.value.split()[0] for kind in found if kind is not None)

    return {
        "acceptance": Counter(r.kept for r in rounds),
        "branches": kinds([kind for r in rounds for kind in r.opened]),
        "covered": kinds([r.covered for r in rounds]),
        "reused": kinds([r.reused for r in rounds]),
        "forwards": sum(text.forwards for text in replayed),
    }


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("block", [3, 8])
def test_rounds_are_those_of_the_engine(backbone, adapter, reader, block: int, temperature: float):
    asked = tiny.prompts(12, seed=5)
    seeds = [100 + index for index in range(len(asked))]
    corpus = texts(backbone, asked, temperature, seeds)
    drafted = reader.read(corpus, everywhere(corpus, block, CAP), block, temperature, seeds)
    replay = Replay(
        corpus, drafted, block, CAP, lambda places: reader.read(corpus, places, block, temperature, seeds)
    )
    overlapped, _ = replay.overlapped()
    random = Model.random(backbone.decoder.config, dtype=torch.float32, adapter=adapter)
    model = replace(random, decoder=backbone.decoder)
    params = [SamplingParams(temperature=temperature, seed=seed, max_tokens=CAP) for seed in seeds]
    for method, replayed in (("linear", replay.linear()), ("recguide", overlapped)):
        engine = LLM(model, device="cpu", method=method, block_size=block)
        stats = RoundStats()
        for index, generation in enumerate(engine.generate(asked, params)):
            assert list(generation.token_ids) == corpus.text(index)[len(asked[index]) :].tolist()
            stats.add(generation.completions[0].stats)
        expected = {name: getattr(stats, name) for name in counted(replayed)}
        assert counted(replayed) == expected
    assert counted(overlapped)["reused"]  # else nothing was compared


def test_ranks_are_those_of_the_sorted_scores(backbone, adapter, reader):
    asked = tiny.prompts(4, seed=6)
    corpus = texts(backbone, asked, 0.0, [0] * 4)
    drafted = reader.read(corpus, everywhere(corpus, 8, CAP), 8, 0.0, [0] * 4)
    missed = (~drafted.hits[:, 1:]).argmax(1) + 1
    place = next(i for i in range(len(missed)) if drafted.rank[i] > 2)
    text, start = int(drafted.places.text[place]), int(drafted.places.start[place])
    tokens = corpus.text(text)[: start + 1].tolist()
    total, length = start + int(drafted.places.length[place]), len(tokens)
    mask = torch.ones(total, total, dtype=torch.bool).tril()
    mask[start:, start:] = True
    hidden = backbone.decoder.hidden(
        torch.tensor([*tokens, *[tiny.MASK] * (total - length)]),
        torch.arange(total),
        tiny.causal(mask),
        adapter=adapter,
        on=slice(start, None),
        masked=torch.arange(total) > start,
    )
    logits = backbone.decoder.logits(hidden)[start + missed[place]]
    logits[tiny.MASK] = float("-inf")
    order = logits.argsort(descending=True).tolist()
    assert order.index(int(corpus.text(text)[start + missed[place]])) + 1 == drafted.rank[place]
    assert (drafted.rank == drafted.raw_rank).all()
    assert (drafted.rank[drafted.rank > 0] >= 2).all()


def test_noise_moves_a_rank_and_not_the_raw_one(backbone, reader):
    asked = tiny.prompts(4, seed=6)
    corpus = texts(backbone, asked, 0.0, [0] * 4)
    one, other = (reader.read(corpus, everywhere(corpus, 8, CAP), 8, 1.0, [seed] * 4) for seed in (1, 2))
    assert (one.tokens != other.tokens).any()
    assert (one.rank[one.rank > 0] >= 2).all()
    assert (one.raw_rank == 1).any()


def test_texts_of_sampling_seeds_do_not_depend_on_their_lanes(backbone):
    asked = tiny.prompts(6)
    one = {w.index: w.tokens for w in tiny.lanes(backbone, 2, 12).write(asked, 1.0, 0, range(6))}
    other = {w.index: w.tokens for w in tiny.lanes(backbone, 6, 12).write(asked, 1.0, 9, range(6))}
    assert one == other
