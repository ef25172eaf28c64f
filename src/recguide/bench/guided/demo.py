"""The demo model, or another that drafts, calibrated on the spot, and its prompts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recguide.bench.calibration.run import Asked, Settings, calibrate
from recguide.bench.calibration.work import Work
from recguide.guidance.records import RoundRecord
from recguide.llm import LLM
from recguide.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompts:
    """Token ids of the prompts that are decoded, and of others to calibrate on."""

    decoded: Sequence[Sequence[int]]
    calibrated: Sequence[Sequence[int]]

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: Sequence[str], decoded: int, calibrated: int) -> Prompts:
        """Through the chat template; those to calibrate on come last."""
        few = [*texts[:decoded], *texts[decoded : decoded + calibrated]]
        ids = [tokenizer.chat([{"role": "user", "content": text}]) for text in few]
        return cls(ids[:decoded], ids[decoded:] or ids[:calibrated])


def rounds_of(llm: LLM, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[RoundRecord]:
    """A calibration on the spot, of which nothing is kept."""
    asked = [Asked("prompts", tuple(ids)) for ids in prompts]
    with tempfile.TemporaryDirectory() as folder:
        work = Work(Path(folder) / "work.jsonl", {})
        return calibrate(llm, asked, Settings(max_tokens=max_tokens), work)
