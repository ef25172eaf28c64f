"""Calibration: texts are made once, then every block is tried at many of their places."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from recguide.bench.calibration.known import Known, Place, Reader
from recguide.bench.calibration.work import Work
from recguide.bench.replay import Text
from recguide.core import MAX_SEED, ParameterError, SamplingParams
from recguide.guidance.explore import Walk
from recguide.guidance.records import RoundRecord
from recguide.kv.pages import pages_for
from recguide.llm import LLM
from recguide.models.progress import Progress, ignore_progress

TOGETHER = {"cpu": 4, "cuda": 16}
"""Texts that are made and read together at most, by the device: so much is lost by an interruption."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt as token ids, and the set that it belongs to: sets weigh the same."""

    set: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How texts are made and how many places are tried.

    Attributes:
        max_tokens: of each text at most.
        temperature: 0 is greedy; drafts use the texts' own noise.
        seed: of the texts and of the blocks that are committed.
        positions: no more prompts are taken once that many places were tried; None takes them all.
        minutes: nor after so many minutes; then what was found depends on the machine's speed.
    """

    max_tokens: int = 192
    temperature: float = 0.0
    seed: int = 0
    positions: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 8:
            raise ParameterError("max_tokens", f"must be at least 8 (got {self.max_tokens!r})")
        for name in ("positions", "minutes"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ParameterError(name, f"must be positive, or None for no limit (got {value!r})")

    def params(self, prompt: int) -> SamplingParams:
        """Of that prompt's text."""
        return SamplingParams(
            temperature=self.temperature, max_tokens=self.max_tokens, seed=(self.seed + prompt) % MAX_SEED
        )


def interleaved(prompts: Sequence[Asked]) -> list[Asked]:
    """Sets by turns, so that a calibration that ends early has seen all of them."""
    sets: dict[str, list[Asked]] = {}
    for prompt in prompts:
        sets.setdefault(prompt.set, []).append(prompt)
    longest = max(map(len, sets.values()), default=0)
    return [mine[turn] for turn in range(longest) for mine in sets.values() if turn < len(mine)]


def calibrate(
    llm: LLM,
    prompts: Sequence[Asked],
    settings: Settings,
    work: Work,
    progress: Progress = ignore_progress,
) -> list[RoundRecord]:
    """Rounds of every block from the same states, under histories of every kind.

    Prompts in `work` are not done again; the others are added to it. The model must be one that drafts.

    Raises ParameterError for a prompt that the engine cannot hold.
    """
    reader = Reader(llm.engine.runner, llm.engine.config.max_batch_tokens)
    began, total = time.monotonic(), len(prompts) * settings.max_tokens
    for group in _groups(llm, prompts, settings, work):
        done = settings.max_tokens * len(work.found)
        late = settings.minutes is not None and time.monotonic() - began > 60 * settings.minutes
        if late or _places(work, len(prompts)) >= (settings.positions or np.inf):
            break
        progress("making texts", done, total)
        texts = _texts(llm, [prompts[number] for number in group], [settings.params(n) for n in group])
        walks = [
            Walk(_random(settings, number), len(text.tokens), set=prompts[number].set, prompt=f"{number}")
            for number, text in zip(group, texts, strict=True)
        ]
        for position in _walked(reader, texts, walks):
            progress("trying blocks", done + position, total)
        for number, walk in zip(group, walks, strict=True):
            work.add(number, walk.records)
    return _enough(work, len(prompts), settings.positions)


def _groups(llm: LLM, prompts: Sequence[Asked], settings: Settings, work: Work) -> Iterator[list[int]]:
    """Numbers of prompts that are not done yet and whose texts the cache holds together."""
    pool = llm.engine.runner.pool
    most = TOGETHER.get(llm.engine.runner.backbone.kv_shape.device.type, 4)
    group: list[int] = []
    pages = 0
    for number, prompt in enumerate(prompts):
        if number in work.found:
            continue
        need = pages_for(len(prompt.ids) + settings.max_tokens, pool.page_size)
        if group and (len(group) == most or pages + need > pool.pages):
            yield group
            group, pages = [], 0
        group.append(number)
        pages += need
    if group:
        yield group


def _texts(llm: LLM, prompts: Sequence[Asked], params: Sequence[SamplingParams]) -> list[Text]:
    made = llm.generate([list(prompt.ids) for prompt in prompts], list(params))
    return [Text(one.prompt_token_ids, one.token_ids, p) for one, p in zip(made, params, strict=True)]


def _walked(reader: Reader, texts: Sequence[Text], walks: Sequence[Walk]) -> Iterator[int]:
    """Walks side by side to the ends of their texts; yields the sum of their positions after each round."""
    with ExitStack() as held:
        known: list[Known] = []
        for text in texts:
            known.append(reader.read(text))
            held.callback(known[-1].release)
        while going := [number for number, walk in enumerate(walks) if not walk.done]:
            places = [Place(known[n], walks[n].position, walks[n].blocks) for n in going]
            for number, trials in zip(going, reader.trials(places), strict=True):
                walks[number].tell(trials)
            yield sum(walk.position for walk in walks)


def _random(settings: Settings, prompt: int) -> np.random.Generator:
    return np.random.default_rng((settings.seed, prompt))


def _places(work: Work, prompts: int) -> int:
    """Places tried at the prompts that are done before the first that is not."""
    count = 0
    for number in range(prompts):
        if number not in work.found:
            break
        count += _tried(work.found[number])
    return count


def _tried(records: Sequence[RoundRecord]) -> int:
    return len({record.position for record in records})


def _enough(work: Work, prompts: int, positions: int | None) -> list[RoundRecord]:
    """Of the prompts in their order, up to so many places: the same whether it was interrupted or not."""
    records: list[RoundRecord] = []
    count = 0
    for number in range(prompts):
        if positions is not None and count >= positions:
            break
        mine = work.found.get(number, [])
        records += mine
        count += _tried(mine)
    return records
