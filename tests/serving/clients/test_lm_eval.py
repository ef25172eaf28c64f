"""lm-evaluation-harness against the server: what transformers says of the same checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.serving.clients.demo import MODEL, program, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LM_EVAL = program("lm_eval", "RECGUIDE_LM_EVAL")
TASKS = Path(__file__).parent / "tasks"
CHOICES, GENERATION, TEXT = "recguide_choices", "recguide_generation", "recguide_text"
STOPS, MAX_TOKENS = ("\n\n", " nine"), 12
TOLERANCE = 1e-3


class Reference:
    """The demo model in transformers."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text).input_ids

    @torch.no_grad()
    def loglikelihood(self, context: list[int], whole: list[int]) -> tuple[float, bool]:
        """Of what follows the context, and whether greedy decoding would have said it."""
        logprobs = self.model(torch.tensor([whole])).logits[0, len(context) - 1 : -1].log_softmax(-1)
        said = torch.tensor(whole[len(context) :])
        return logprobs.gather(1, said[:, None]).sum().item(), bool((logprobs.argmax(-1) == said).all())

    @torch.no_grad()
    def continuation(self, context: str) -> str:
        ids = torch.tensor([self.ids(context)])
        out = self.model.generate(ids, max_new_tokens=MAX_TOKENS, do_sample=False)[0, ids.shape[1] :]
        text = self.tokenizer.decode(out, skip_special_tokens=True)
        return min((text.partition(stop)[0] for stop in STOPS), key=len)


@pytest.fixture(scope="module")
def reference(demo_folder):
    return Reference(demo_folder)


@pytest.fixture(
    scope="module",
    params=[
        {"tokenized_requests": True, "num_concurrent": 2, "batch": 2},
        {"tokenized_requests": False, "num_concurrent": 1, "batch": 1},
    ],
    ids=["token-ids-in-batches", "text-one-by-one"],
)
def samples(request, demo_url, demo_folder, tmp_path_factory):
    """Task → its documents, as the harness logs them."""
    out = tmp_path_factory.mktemp("lm_eval")
    settings = dict(request.param)
    batch = settings.pop("batch")
    settings |= {
        "model": MODEL,
        "base_url": f"{demo_url}/v1/completions",
        "tokenizer": demo_folder,
        "tokenizer_backend": "huggingface",
    }
    arguments = ",".join(f"{name}={value}" for name, value in settings.items())
    run(
        [
            *(LM_EVAL, "--model", "local-completions", "--model_args", arguments),
            *("--batch_size", str(batch), "--include_path", str(TASKS)),
            *("--tasks", ",".join((CHOICES, GENERATION, TEXT)), "--log_samples", "--output_path", str(out)),
        ],
        TASKS,
        HF_HOME=str(out / "cache"),
        HF_HUB_OFFLINE="1",
        HF_DATASETS_OFFLINE="1",
    )
    return {task: _logged(out, task) for task in (CHOICES, GENERATION, TEXT)}


def _logged(out: Path, task: str) -> list[dict]:
    (path,) = out.rglob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_loglikelihoods(samples, reference):
    said = []
    for sample in samples[CHOICES]:
        for choice, ((found, greedy),) in enumerate(sample["resps"]):
            asked = sample["arguments"][f"gen_args_{choice}"]
            context = asked["arg_0"]
            expected = reference.loglikelihood(
                reference.ids(context), reference.ids(context + asked["arg_1"])
            )
            assert float(found) == pytest.approx(expected[0], abs=TOLERANCE)
            assert greedy == str(expected[1])
            said.append(expected[1])
    assert len(said) == 7
    assert {*said} == {True, False}, "one choice is what greedy decoding says"


def test_loglikelihoods_of_whole_texts(samples, reference):
    tokenizer = reference.tokenizer
    for sample in samples[TEXT]:
        before = [tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id]
        expected, _ = reference.loglikelihood(before, before + reference.ids(sample["doc"]["text"]))
        assert float(sample["resps"][0][0]) == pytest.approx(expected, abs=TOLERANCE)


def test_greedy_generations(samples, reference):
    found = {sample["doc"]["context"]: sample["resps"][0][0] for sample in samples[GENERATION]}
    assert found == {context: reference.continuation(context) for context in found}
    assert len(found) == 4
