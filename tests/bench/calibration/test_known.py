"""One pass over a finished text says what really decoding from any of its places would have come to."""

from __future__ import annotations

import pytest
import torch
from tests.fake import EOS, MASK, VOCABULARY, FakeBackbone, Script, Slip, engine
from tests.tiny import tiny_model

from recguide.bench.calibration.known import Place, Reader
from recguide.bench.calibration.ranks import Wrong, candidate_ranks
from recguide.bench.replay import Text
from recguide.core import ParameterError, SamplingParams
from recguide.guidance.value import BLOCKS
from recguide.llm import LLM
from recguide.speculation.noise import gumbel

PROMPT = (5, 6, 7, 8, 9)
TOKENS = 40


def text_of(llm, temperature):
    params = SamplingParams(temperature=temperature, max_tokens=TOKENS, seed=3, ignore_eos=True)
    made = llm.generate([list(PROMPT)], params)[0]
    return Text(made.prompt_token_ids, made.token_ids, params)


def decoded(llm, text, position, block):
    """A of the first round when the text is taken up at that place, and its first entropies."""
    params = SamplingParams(
        temperature=text.params.temperature,
        seed=text.params.seed,
        max_tokens=block + 1,
        ignore_eos=True,
        method="linear",
        block_size=block,
    )
    (request,) = llm.engine.add((*text.prompt, *text.tokens[:position]), params)
    while not request.stats.rounds:
        llm.engine.step()
    llm.engine.abort(request)
    assert request.emitted[0] == text.tokens[position]
    (acceptance,) = request.stats.acceptance
    return acceptance


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("family", ["llama", "nemotron_labs_diffusion"])
def test_one_pass_says_what_decoding_with_that_block_there_does(family, temperature):
    llm = LLM(tiny_model(family))
    text = text_of(llm, temperature)
    reader = Reader(llm.engine.runner, most=200)
    known = reader.read(text)
    places = [
        Place(known, n, tuple(b for b in (1, *BLOCKS) if n + b <= TOKENS)) for n in range(0, TOKENS - 1, 3)
    ]
    found = [
        (place.position, trial)
        for place, trials in zip(places, reader.trials(places), strict=True)
        for trial in trials
    ]
    known.release()
    drafted = [(position, trial) for position, trial in found if trial.block > 1]
    expected = [decoded(llm, text, position, trial.block) for position, trial in drafted]
    assert [trial.acceptance for _, trial in drafted] == expected
    if temperature > 0:
        assert len(set(expected)) > 3  # or nothing would have been compared
    assert llm.engine.runner.pool.used_pages == 0


def script(slips, answer=60):
    return Script((1, 2, 3), tuple(65 + n % 26 for n in range(answer)), slips)


def fake_trials(slips, position, blocks=(1, *BLOCKS)):
    one = script(slips)
    reader = Reader(engine(one).runner, most=64)
    known = reader.read(Text(one.prompt, one.answer, SamplingParams(seed=0)))
    (trials,) = reader.trials([Place(known, position, blocks)])
    return {trial.block: trial for trial in trials}


def test_slips_margins_and_ranks_are_those_of_the_script():
    """The emitted token of number n stands at position 3 + n."""
    at = 10
    found = fake_trials({3 + at + 6: Slip(risky=True), 3 + at + 12: Slip(risky=False)}, at)
    assert {block: trial.acceptance for block, trial in found.items()} == {1: 1, 4: 4, 8: 6, 16: 6, 32: 6}
    assert (found[8].rank, found[4].rank) == (1, 0)
    margins = found[16].margins
    assert [slot for slot, margin in enumerate(margins, 1) if margin < 0.5] == [6]
    assert [len(trial.margins) for trial in found.values()] == [0, 3, 7, 15, 31]
    assert [len(trial.entropies) for trial in found.values()] == [1, 3, 6, 6, 6]


def test_a_continuation_is_tried_where_the_block_passed():
    at = 10
    found = fake_trials({3 + at + 4: Slip(), 3 + at + 9: Slip()}, at)
    assert {block: trial.head for block, trial in found.items()} == {1: 1, 4: 0, 8: -1, 16: -1, 32: -1}
    assert found[8].acceptance == 4


def test_nothing_is_said_of_a_continuation_behind_the_text():
    assert fake_trials({}, 60 - 8, (1, 8))[8].head == -1


def test_small_forwards_say_what_large_ones_do():
    llm = LLM(tiny_model("llama"))
    text = text_of(llm, 1.0)
    found = []
    for most in (1, 10_000):
        reader = Reader(llm.engine.runner, most)
        known = reader.read(text)
        found.append(reader.trials([Place(known, n, (1, 4, 8)) for n in range(12)]))
        known.release()
    assert [[(t.acceptance, t.rank, t.head) for t in one] for one in found[0]] == [
        [(t.acceptance, t.rank, t.head) for t in one] for one in found[1]
    ]


def test_a_model_that_does_not_draft_is_refused():
    class Plain(FakeBackbone):
        vocabulary = VOCABULARY.__class__(size=260, eos=(EOS,), mask=None)

    runner = engine(script({})).runner
    runner.backbone = Plain(script({}))
    with pytest.raises(ParameterError, match="does not draft"):
        Reader(runner, most=64)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_ranks_are_places_in_the_sorted_scores(temperature):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, VOCABULARY.size, generator=generator)
    logits[:, 7] = logits[:, 8]  # a tie
    params = SamplingParams(temperature=temperature, seed=5)
    rights = torch.randint(0, VOCABULARY.size, (40,), generator=generator).tolist()
    rights[:3] = [8, EOS, MASK]
    wrong = [Wrong(slot, 100 + slot, (right + 1) % 200, right, params) for slot, right in enumerate(rights)]
    found = candidate_ranks(logits, wrong, VOCABULARY, most=50)
    for one, rank in zip(wrong, found, strict=True):
        noise = gumbel(torch.tensor([5]), torch.tensor([one.position]), torch.arange(VOCABULARY.size))[0]
        scores = logits[one.slot].double() + temperature * noise
        order = sorted(
            (token for token in range(VOCABULARY.size) if token not in (one.drafted, EOS, MASK)),
            key=lambda token: (-float(scores[token]), token),
        )
        place = order.index(one.right) + 1 if one.right in order else 0
        assert rank == (place if place <= 50 else 0)
