"""What a user asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from recguide.core.conversions import CONVERSIONS
from recguide.core.errors import ParameterError
from recguide.core.structure import Structure

MAX_LOGPROBS = 20
MAX_BLOCK = 64
MAX_SEED = 2**63
MIN_TEMPERATURE = 1e-4
"""Below it, logits ÷ temperature leave float32's range; 0 says the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one prompt is continued. Whatever is accepted here works under every verifying method.

    Attributes:
        temperature: 0 is greedy.
        top_p, top_k, min_p: filters on the tempered distribution; 1.0, 0 and 0.0 switch them off.
        repetition_penalty: divides (multiplies) positive (negative) logits of tokens in prompt or output.
        frequency_penalty, presence_penalty: subtracted per, or for, occurrence in the output.
        logit_bias: token id → value added to the logit.
        seed: sampling seed, 0 ≤ seed < 2^63; None draws a fresh one, which the result reports.
        max_tokens: tokens to emit at most; 0, with prompt_logprobs, only asks about the prompt.
        min_tokens: no end-of-sequence, stop token or stop string before that many tokens.
        stop: strings that end the text; the text is cut before them.
        stop_token_ids: token ids that end the text like end-of-sequence.
        ignore_eos: do not stop at the model's end-of-sequence ids.
        logprobs: None for none, k ≥ 0 for the emitted token's and the k most likely tokens' raw logprobs.
        prompt_logprobs: the same for every token of the prompt but the first; None for none.
        n: choices; choice 0 uses `seed`, the others seeds derived from it.
        thinking_budget: close a <think> that the prompt opened after that many tokens.
        structure: form of the output, after the </think> of a <think> that the prompt opened; None is any.
        method: speculation method for this request ("ar" forces plain decoding); None is the engine's.
        block_size: slots drafted and verified together; None is the engine's, and where that names none
            either, a policy chooses for method "recguide" and others take 16.
        policy: who chooses blocks and branches of this request, for method "recguide" alone; None is the
            engine's.
        max_block_size: slots of any block at most, whoever chooses it; None for no cap.
        threshold: confidence that fixes a slot in block diffusion (method "diffusion" alone); None is 0.9.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    seed: int | None = None
    max_tokens: int = 256
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    thinking_budget: int | None = None
    structure: Structure | None = None
    method: str | None = None
    block_size: int | None = None
    policy: str | None = None
    max_block_size: int | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        for name, convert in CONVERSIONS.items():
            object.__setattr__(self, name, convert(name, getattr(self, name)))
        _check_ranges(self)

    @property
    def penalised(self) -> bool:
        """Whether logits depend on the tokens emitted so far through a penalty."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    def with_seed(self, seed: int) -> SamplingParams:
        return replace(self, seed=seed)


def _check_ranges(params: SamplingParams) -> None:
    """Raises ParameterError for the first field outside its range."""
    checks: tuple[tuple[str, bool, str], ...] = (
        (
            "temperature",
            params.temperature == 0.0 or MIN_TEMPERATURE <= params.temperature <= 100.0,
            f"must be 0, which is greedy, or lie in [{MIN_TEMPERATURE}, 100]",
        ),
        ("top_p", 0.0 < params.top_p <= 1.0, "must lie in (0, 1]; 1 switches it off"),
        ("top_k", params.top_k >= 0, "must be at least 0; 0 switches it off"),
        ("min_p", 0.0 <= params.min_p < 1.0, "must lie in [0, 1); 0 switches it off"),
        ("repetition_penalty", 0.0 < params.repetition_penalty <= 100.0, "must lie in (0, 100]; 1 is none"),
        ("frequency_penalty", -2.0 <= params.frequency_penalty <= 2.0, "must lie in [-2, 2]"),
        ("presence_penalty", -2.0 <= params.presence_penalty <= 2.0, "must lie in [-2, 2]"),
        ("seed", params.seed is None or 0 <= params.seed < MAX_SEED, "must lie in [0, 2^63)"),
        (
            "max_tokens",
            params.max_tokens >= (1 if params.prompt_logprobs is None else 0),
            "must be at least 1, or 0 where prompt_logprobs asks about the prompt alone",
        ),
        ("min_tokens", 0 <= params.min_tokens <= params.max_tokens, "must lie in [0, max_tokens]"),
        ("stop", all(params.stop), "must not hold an empty string; drop it"),
        (
            "logprobs",
            params.logprobs is None or 0 <= params.logprobs <= MAX_LOGPROBS,
            f"must lie in [0, {MAX_LOGPROBS}], or be None for none",
        ),
        (
            "prompt_logprobs",
            params.prompt_logprobs is None or 0 <= params.prompt_logprobs <= MAX_LOGPROBS,
            f"must lie in [0, {MAX_LOGPROBS}], or be None for none",
        ),
        ("n", 1 <= params.n <= 128, "must lie in [1, 128]"),
        (
            "thinking_budget",
            params.thinking_budget is None or params.thinking_budget >= 0,
            "must be at least 0, or None for no limit",
        ),
        (
            "block_size",
            params.block_size is None or 1 <= params.block_size <= MAX_BLOCK,
            f"must lie in [1, {MAX_BLOCK}]",
        ),
        (
            "ignore_eos",
            not (params.ignore_eos and params.structure),
            "must be False with a structure, which ends with end-of-sequence",
        ),
        (
            "max_block_size",
            params.max_block_size is None or 1 <= params.max_block_size <= MAX_BLOCK,
            f"must lie in [1, {MAX_BLOCK}], or be None for no cap",
        ),
        ("threshold", params.threshold is None or 0.0 < params.threshold <= 1.0, "must lie in (0, 1]"),
        (
            "logit_bias",
            all(-100.0 <= value <= 100.0 for value in params.logit_bias.values()),
            "values must lie in [-100, 100]",
        ),
    )
    for name, ok, message in checks:
        if not ok:
            raise ParameterError(name, f"{message} (got {getattr(params, name)!r})")
