"""Proof that every method's text equals plain decoding's, or a list of where and why it does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

from torch import Tensor

from recguide.bench.exactness import (
    Divergence,
    Forced,
    Tolerance,
    Verdict,
    compare,
    first_difference,
    follow,
    gaps,
    judge,
    tolerance,
)
from recguide.bench.replay import Text, laid_out, single
from recguide.bench.totals import Totals, add_up
from recguide.core import Completion, ParameterError, SamplingParams
from recguide.llm import LLM
from recguide.models.progress import Progress, ignore_progress
from recguide.speculation.methods import METHODS, method_named

AR = "ar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is compared: every method × block size × temperature on every prompt.

    `tie_rate` is the share of texts that may end in a tie; None is what the precision explains.
    """

    methods: Sequence[str] = ("linear", "tidar", "recguide")
    block_sizes: Sequence[int] = (8, 16)
    temperatures: Sequence[float] = (0.0, 0.8)
    max_tokens: int = 48
    tie_rate: float | None = None

    def __post_init__(self) -> None:
        verifying = [method.name for method in METHODS if method.verifies]
        for name in self.methods:
            if not method_named(name).verifies:
                raise ParameterError(
                    "methods",
                    f"{name!r} emits drafts as they are, so no text is right or wrong; "
                    f"take some of {', '.join(verifying)}",
                )


@dataclass(frozen=True, slots=True)
class Case:
    """One text against plain decoding's.

    `difference` is the largest logit difference between the method's rows and rows of one token, at emitted
    token `position`; `epsilon` is what rounding explains. Method "ar" is plain decoding by the engine, held
    against rows of one token.
    """

    prompt: int
    method: str
    block_size: int
    temperature: float
    verdict: Verdict
    difference: float
    position: int
    epsilon: float
    divergence: Divergence | None


@dataclass(frozen=True, slots=True)
class Report:
    """Outcome of a verification; `totals` by method, over all block sizes and temperatures."""

    prompts: int
    dtype: str
    tie_rate: float
    cases: tuple[Case, ...]
    totals: dict[str, Totals]

    def count(self, verdict: Verdict) -> int:
        return sum(case.verdict is verdict for case in self.cases)

    @property
    def passed(self) -> bool:
        ties = self.count(Verdict.TIE)
        return self.count(Verdict.BUG) == 0 and ties <= self.tie_rate * len(self.cases)

    def as_object(self) -> dict[str, object]:
        """The report for machines."""
        worst = max(self.cases, key=lambda case: case.difference)
        return {
            "passed": self.passed,
            "prompts": self.prompts,
            "texts": len(self.cases),
            "identical": self.count(Verdict.IDENTICAL),
            "ties": self.count(Verdict.TIE),
            "bugs": self.count(Verdict.BUG),
            "tie_rate": self.tie_rate,
            "dtype": self.dtype,
            "largest_difference": asdict(worst),
            "methods": {name: _method_object(totals) for name, totals in self.totals.items()},
            "divergences": [asdict(case) for case in self.cases if case.verdict is not Verdict.IDENTICAL],
        }


def _method_object(totals: Totals) -> dict[str, object]:
    stats = totals.stats
    return {
        "tpf": totals.tpf,
        "tpf_with_prefill": totals.tpf_with_prefill,
        "acceptance": stats.mean_acceptance,
        "coverage": stats.coverage,
        "reuse": stats.reuse,
        "tokens": stats.tokens,
        "forwards": stats.forwards,
    }


@dataclass(frozen=True, slots=True)
class _Variant:
    """One way to decode all prompts."""

    method: str
    block_size: int
    temperature: float

    def params(self, prompt: int, max_tokens: int) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            seed=prompt,
            max_tokens=max_tokens,
            method=self.method,
            block_size=None if self.method == AR else self.block_size,
        )


def verify(
    llm: LLM, prompts: Sequence[Sequence[int]], settings: Settings, progress: Progress = ignore_progress
) -> Report:
    """Decodes every prompt by every method and holds each text against plain decoding.

    Args:
        llm: idle; the replays use its KV cache.
        prompts: token ids.
        progress: called as ways of decoding are run, then as texts are compared.
    """
    variants = list(_variants(settings))
    done: list[list[Completion]] = []
    for variant in variants:
        progress(f"decoding by {variant.method}", len(done), len(variants))
        done.append(_decode(llm, prompts, variant, settings.max_tokens))
    tolerated = tolerance(llm.model.kv_shape.dtype)
    cases: list[Case] = []
    for index in range(len(prompts)):
        for case in _cases(llm, prompts[index], index, variants, [texts[index] for texts in done], tolerated):
            cases.append(case)
            progress("comparing texts", len(cases), len(variants) * len(prompts))
    methods = dict.fromkeys(variant.method for variant in variants)
    return Report(
        prompts=len(prompts),
        dtype=str(llm.model.kv_shape.dtype).removeprefix("torch."),
        tie_rate=tolerated.tie_rate if settings.tie_rate is None else settings.tie_rate,
        cases=tuple(cases),
        totals={
            method: add_up(
                completion
                for variant, texts in zip(variants, done, strict=True)
                if variant.method == method
                for completion in texts
            )
            for method in methods
        },
    )


def _variants(settings: Settings) -> Iterator[_Variant]:
    """Plain decoding first at each temperature, then what is compared with it."""
    methods = [name for name in settings.methods if name != AR]
    for temperature in settings.temperatures:
        yield _Variant(AR, 1, temperature)
        for method, block_size in product(methods, settings.block_sizes):
            yield _Variant(method, block_size, temperature)


def _decode(
    llm: LLM, prompts: Sequence[Sequence[int]], variant: _Variant, max_tokens: int
) -> list[Completion]:
    params = [variant.params(index, max_tokens) for index in range(len(prompts))]
    return [generation.completions[0] for generation in llm.generate(prompts, params)]


def _cases(
    llm: LLM,
    prompt: Sequence[int],
    index: int,
    variants: Sequence[_Variant],
    completions: Sequence[Completion],
    tolerated: Tolerance,
) -> Iterator[Case]:
    """All variants of one prompt. The single-token logits of a plain text serve every variant after it."""
    reference: _Reference | None = None
    for variant, completion in zip(variants, completions, strict=True):
        params = variant.params(index, len(completion.token_ids))
        if variant.method == AR:
            reference = _Reference.of(llm, Text(prompt, completion.token_ids, params))
        assert reference is not None, "plain decoding comes first"
        forced, divergence = _held_against(llm, reference, completion, variant)
        epsilon = tolerated.relative * max(one.scale for one in forced)
        worst = max(forced, key=lambda one: one.difference)
        verdict = judge(epsilon, forced, divergence)
        yield Case(
            index,
            variant.method,
            variant.block_size,
            variant.temperature,
            verdict,
            worst.difference,
            worst.position,
            epsilon,
            divergence,
        )


@dataclass(frozen=True, slots=True)
class _Reference:
    """Plain decoding's text and the logits of rows of one token that predict it."""

    text: Text
    logits: Tensor

    @classmethod
    def of(cls, llm: LLM, text: Text) -> _Reference:
        return cls(text, single(llm.engine.runner, text))


def _held_against(
    llm: LLM, reference: _Reference, completion: Completion, variant: _Variant
) -> tuple[list[Forced], Divergence | None]:
    """Teacher-forced differences, on both texts where they differ, and the divergence."""
    text = reference.text
    forced = [_forced(llm, reference, variant)]
    if variant.method == AR:
        strayed = _strayed(llm, reference)
        return forced, _with_later(strayed[0], strayed[1:]) if strayed else None
    at = first_difference(text.tokens, completion.token_ids)
    if at is None:
        return forced, None
    if at in (len(text.tokens), len(completion.token_ids)):
        return forced, Divergence(at, *_at(at, text.tokens, completion.token_ids), gap=float("inf"))
    own = _Reference.of(llm, replace(text, tokens=completion.token_ids))
    forced.append(_forced(llm, own, variant))
    strayed = _strayed(llm, own)
    # Neither token need be the one that a row of one token picks there; both must be close to it.
    behind = max(
        gaps(own.logits[[at]], text.params, text.prompt, tokens, [at], llm.engine.vocabulary)[0]
        for tokens in (text.tokens, completion.token_ids)
    )
    found = Divergence(at, *_at(at, text.tokens, completion.token_ids), gap=behind)
    return forced, _with_later(found, [one for one in strayed if one.position != at])


def _forced(llm: LLM, reference: _Reference, variant: _Variant) -> Forced:
    if variant.method == AR:
        return compare(reference.logits, reference.logits)
    method = method_named(variant.method)
    return compare(laid_out(llm.engine.runner, reference.text, method, variant.block_size), reference.logits)


def _strayed(llm: LLM, reference: _Reference) -> list[Divergence]:
    text = reference.text
    return follow(reference.logits, text.params, text.prompt, text.tokens, llm.engine.vocabulary)


def _with_later(divergence: Divergence, others: Sequence[Divergence]) -> Divergence:
    return replace(divergence, later_gap=max((other.gap for other in others), default=0.0))


def _at(position: int, *texts: Sequence[int]) -> tuple[int | None, ...]:
    """Each text's token at the position, None past its end."""
    return tuple(tokens[position] if position < len(tokens) else None for tokens in texts)
