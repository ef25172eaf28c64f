"""What is wrong with a model, its adapter or this machine, said before the user wonders."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, requires, version

import torch
from packaging.requirements import Requirement
from torch import Tensor

from recguide.bench.forwards import conditions_of
from recguide.bench.totals import total
from recguide.core import SamplingParams
from recguide.guidance import cost, value
from recguide.kv.tables import BlockTable
from recguide.llm import LLM
from recguide.models.loading import Model
from recguide.models.progress import Progress
from recguide.speculation import rows

BLOCK = 16
TOKENS = 64
CHANCE = 1.2
"""Random drafts give a mean acceptance barely above 1; a model that drafts at all is above this."""


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `remedy` says what to do about a warning or problem."""

    check: str
    level: Level
    message: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Band:
    """Mean acceptance to expect on the built-in prompts, greedy, at B = 16 and 64 new tokens."""

    low: float
    high: float


BANDS = {"smollm2-135m": Band(2.0, 4.0), "nemotron_labs_diffusion": Band(4.0, 16.0)}
"""By model name, then by family. The demo model with its shipped adapter measured 2.90."""
ANY_MODEL = Band(1.5, 16.0)


def examine(llm: LLM, prompts: Sequence[Sequence[int]], progress: Progress) -> list[Finding]:
    """All checks; `prompts` (token ids) are those that acceptance is measured on."""
    checks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("versions", versions),
        ("device", lambda: device(llm.model)),
        ("memory", lambda: memory(llm.model, llm.engine.memory.kv_tokens)),
        ("template", lambda: template(llm.model)),
        ("mask token", lambda: mask_token(llm.model)),
        ("adapter", lambda: adapter(llm, prompts[0])),
        ("acceptance", lambda: acceptance(llm, prompts)),
        ("tables", lambda: tables(llm)),
    )
    return list(_run(checks, progress))


def _run(checks: Sequence[tuple[str, Callable[[], Finding]]], progress: Progress) -> Iterator[Finding]:
    for done, (name, check) in enumerate(checks):
        progress(f"checking {name}", done, len(checks))
        yield check()


# --- the machine --------------------------------------------------------------------------------------------


def versions() -> Finding:
    """Whether every package that RecGuide needs is there in a version that it was made for."""
    faults, found = list[str](), [f"Python {platform.python_version()}"]
    for line in requires("recguide") or ():
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            present = version(requirement.name)
        except PackageNotFoundError:
            faults.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(present, prereleases=True):
            faults.append(f"{requirement.name} {present} is not {requirement.specifier}")
        if requirement.name in ("torch", "transformers", "tokenizers"):
            found.append(f"{requirement.name} {present}")
    text = f"recguide {version('recguide')}, {', '.join(found)}"
    if faults:
        return Finding("versions", Level.PROBLEM, "; ".join(faults), "install RecGuide again with pip")
    return Finding("versions", Level.OK, text)


def device(model: Model) -> Finding:
    """Whether the precision suits the device."""
    shape = model.kv_shape
    dtype = str(shape.dtype).removeprefix("torch.")
    if shape.device.type == "cpu":
        text = f"CPU, threads at work: {torch.get_num_threads()}, {dtype}"
        if torch.cuda.is_available():
            return Finding("device", Level.WARNING, f"{text}, though a GPU is there", "use --device cuda")
        if shape.dtype in (torch.bfloat16, torch.float16):
            return Finding("device", Level.WARNING, f"{text}: slow on most CPUs", "use --dtype float32")
        return Finding("device", Level.OK, f"{text}; speculation saves forwards here, hardly time")
    text = f"{torch.cuda.get_device_name(shape.device)}, {dtype}"
    if shape.dtype in (torch.float32, torch.float64):
        return Finding("device", Level.WARNING, f"{text}: twice the memory traffic", "use --dtype bfloat16")
    return Finding("device", Level.OK, text)


def memory(model: Model, kv_tokens: int) -> Finding:
    """Whether weights and KV cache fit with room to spare."""
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.decoder.parameters())
    cache = kv_tokens * model.kv_shape.bytes_per_token
    whole = _memory_bytes(model.kv_shape.device)
    text = f"weights {_gib(weights)}, KV cache {_gib(cache)} for {kv_tokens} tokens, {_gib(whole)} of memory"
    if weights + cache > 0.9 * whole:
        return Finding("memory", Level.WARNING, text, "lower --kv-cache-tokens")
    return Finding("memory", Level.OK, text)


def _memory_bytes(where: torch.device) -> int:
    if where.type == "cuda":
        return torch.cuda.get_device_properties(where).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


# --- the model ----------------------------------------------------------------------------------------------


def template(model: Model) -> Finding:
    """Whether there is a chat template that marks where the assistant speaks."""
    tokenizer = model.tokenizer
    if tokenizer is None or tokenizer.chat_template is None:
        return Finding(
            "template",
            Level.WARNING,
            "no chat template: right for a base model, wrong for an instruct model",
            "an instruct model's folder needs chat_template.jinja or tokenizer_config.json; fetch it again",
        )
    return Finding("template", Level.OK, f"chat template of {len(tokenizer.chat_template)} characters")


def mask_token(model: Model) -> Finding:
    """Whether there is one; loading has refused one that texts contain or that the adapter does not know."""
    mask = model.vocabulary.mask
    if mask is None:
        return Finding(
            "mask token",
            Level.WARNING,
            "none: this model cannot draft, so every method but plain decoding is refused",
            "load a draft adapter (--adapter FOLDER), or train one (recguide adapt)",
        )
    tokenizer = model.tokenizer
    name = "" if tokenizer is None or mask >= tokenizer.size else f" ({tokenizer.token(mask)})"
    return Finding("mask token", Level.OK, f"{mask}{name}")


def adapter(llm: LLM, prompt: Sequence[int]) -> Finding:
    """Whether the draft adapter is loaded and changes what is drafted."""
    model = llm.model
    if model.adapter is None:
        if model.config.native_drafts:
            return Finding(
                "adapter", Level.WARNING, "none: the backbone drafts by itself, less well", "add its adapter"
            )
        return Finding("adapter", Level.WARNING, "none", "load one (--adapter FOLDER), or train one")
    if model.vocabulary.mask is None:
        return Finding(
            "adapter",
            Level.PROBLEM,
            "loaded, but neither it nor the model names a mask token",
            "add mask_token_id to adapter_config.json",
        )
    bare, adapted = (_draft_logits(llm, prompt, model.vocabulary.mask, on) for on in (False, True))
    change = float((adapted - bare).abs().max())
    if change == 0:
        return Finding(
            "adapter",
            Level.PROBLEM,
            "loaded, but draft logits are the same without it",
            "its lora_B tensors are zero or its targets do nothing: take a trained adapter",
        )
    return Finding("adapter", Level.OK, f"applied: it moves draft logits by up to {change:.1f}")


def _draft_logits(llm: LLM, prompt: Sequence[int], mask: int, on: bool) -> Tensor:
    """Logits of a draft row after the prompt, its last token being the seed."""
    table = BlockTable(llm.engine.runner.pool)
    known = prompt[:-1]
    blank = rows.blank_draft(prompt[-1], BLOCK, mask)
    try:
        table.extend(len(known))
        runner = llm.engine.runner
        runner.forward(rows.prefill(0, 0, known, picks=True).rows, [table.pages])
        return runner.forward(rows.draft(0, len(known), blank, adapter=on).rows, [table.pages])
    finally:
        table.release()


def band(model: Model) -> Band:
    return BANDS.get(model.name) or BANDS.get(model.config.family) or ANY_MODEL


def acceptance(llm: LLM, prompts: Sequence[Sequence[int]]) -> Finding:
    """Whether drafts are as good as they should be: the sign of everything being wired right."""
    if llm.model.vocabulary.mask is None:
        return Finding("acceptance", Level.OK, "not measured: the model cannot draft")
    params = SamplingParams(max_tokens=TOKENS, method="linear", block_size=BLOCK, ignore_eos=True)
    totals = total(llm.generate(prompts, params))
    return judge_acceptance(totals.stats.mean_acceptance, band(llm.model))


def judge_acceptance(mean: float, expected: Band) -> Finding:
    text = f"{mean:.2f} tokens a round at B = {BLOCK}, expected {expected.low:g} to {expected.high:g}"
    remedy = (
        "check the mask token, the adapter and the chat template above; an adapter belongs to one model only"
    )
    if mean < CHANCE:
        return Finding("acceptance", Level.PROBLEM, f"{text}: drafts are no better than chance", remedy)
    if not expected.low <= mean <= expected.high:
        return Finding("acceptance", Level.WARNING, text, remedy)
    return Finding("acceptance", Level.OK, text)


def tables(llm: LLM) -> Finding:
    """Whether policies find measured costs and calibrated values, or go by assumptions."""
    if llm.model.vocabulary.mask is None:
        return Finding("tables", Level.OK, "none needed: the model cannot draft")
    here = conditions_of(llm.engine, llm.model)
    costs, values = cost.found(here), value.found(here)
    said, remedies = list[str](), list[str]()
    if costs is None:
        said.append("costs of forwards are assumed")
        remedies.append("recguide profile MODEL")
    else:
        said.append(f"costs of forwards measured up to {costs.tokens[-1]} query tokens")
    if values is None:
        said.append("values of drafts are published statistics of another model")
        remedies.append("recguide calibrate MODEL --prompts FILE")
    else:
        said.append(f"values of drafts calibrated on {values.rounds:,} rounds")
    text = "; ".join(said)
    if remedies:
        return Finding("tables", Level.WARNING, text, f"run {' and '.join(remedies)}")
    return Finding("tables", Level.OK, text)
