"""The nouns that every room shares: errors, sampling parameters, rows, the packed batch, results.

Words are those of the architecture: a *slot* is a position inside a block counted from 0, slot 0 is the
*seed* (a token already emitted whose KV is not cached yet), and a *row* is the one primitive that a forward
knows: either causal (KV written, logits at slot i predict token i+1) or draft (KV in flight only, every slot
sees every own slot, logits at slot i predict token i).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from numbers import Integral, Real
from typing import TYPE_CHECKING, Protocol, TypeVar, dataclass_transform

if TYPE_CHECKING:  # only names of types: a process that runs no model does without torch
    import torch
    from torch import Tensor

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def light(cls: type[T]) -> type[T]:
    """A dataclass whose fields are not to be changed, by type checkers' word alone.

    For what is made for every request in every step: one that enforced it would take seven times as long.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


MAX_LOGPROBS = 20
MAX_BLOCK = 64
MAX_SEED = 2**63
MIN_TEMPERATURE = 1e-4
"""Below it, logits ÷ temperature leave float32's range; 0 says the same."""


class RecGuideError(Exception):
    """Base of every error that RecGuide raises on purpose."""


class ParameterError(RecGuideError, ValueError):
    """A parameter that cannot be honoured; names the field and the remedy."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(f"{parameter}: {message}")
        self.parameter = parameter


class CheckpointError(RecGuideError):
    """A checkpoint, adapter or tokenizer that does not hold what its files promise; names file and tensor."""


# --- what a user asks for -----------------------------------------------------------------------------------

STRUCTURES = ("json_object", "json_schema", "regex", "grammar")
MAX_STRUCTURE = 65_536
"""Characters of one: compiling and following it takes the time of all requests."""


@dataclass(frozen=True, slots=True)
class Structure:
    """A form that the whole output takes.

    Attributes:
        kind: "json_object" for any JSON object, "json_schema" for a schema, "regex" for a regular expression
            (without look-around), "grammar" for a context-free grammar in the Lark syntax of llguidance.
        text: the schema, expression or grammar; nothing for a "json_object".
    """

    kind: str
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in STRUCTURES:
            raise ParameterError("structure", f"{self.kind!r} is not one of {', '.join(STRUCTURES)}")
        _text("structure", self.text)
        if bool(self.text) is (self.kind == "json_object"):
            need = "takes no text" if self.text else "needs a text"
            raise ParameterError("structure", f"a {self.kind} {need}")
        if len(self.text) > MAX_STRUCTURE:
            raise ParameterError(
                "structure", f"has {len(self.text)} characters; at most {MAX_STRUCTURE} may be"
            )


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
        for name, convert in _CONVERSIONS.items():
            object.__setattr__(self, name, convert(name, getattr(self, name)))
        _check_ranges(self)

    @property
    def penalised(self) -> bool:
        """Whether logits depend on the tokens emitted so far through a penalty."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    def with_seed(self, seed: int) -> SamplingParams:
        return replace(self, seed=seed)


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ParameterError(name, f"must be an integer (got {value!r})")
    return int(value)


def _real(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(name, f"must be a number (got {value!r})")
    return float(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ParameterError(name, f"must be True or False (got {value!r})")
    return value


def _name(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ParameterError(name, f"must be a name (got {value!r})")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ParameterError(name, f"must be text (got {value!r:.60})")
    return value


def _form(name: str, value: object) -> Structure:
    if not isinstance(value, Structure):
        raise ParameterError(name, f"must be a Structure (got {value!r:.60})")
    return value


def _strings(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    items = _items(name, value)
    texts = tuple(item for item in items if isinstance(item, str))
    if len(texts) != len(items):
        raise ParameterError(name, f"must be a string or a list of strings (got {value!r})")
    return texts


def _integers(name: str, value: object) -> tuple[int, ...]:
    return tuple(_integer(name, item) for item in _items(name, value))


def _items(name: str, value: object) -> tuple[object, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise ParameterError(name, f"must be a list (got {value!r})")
    items: Iterable[object] = value
    return tuple(items)


def _bias(name: str, value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise ParameterError(name, f"must map token ids to numbers (got {value!r})")
    pairs: Mapping[object, object] = value
    return {_integer(name, token): _real(name, bias) for token, bias in pairs.items()}


def _optional(convert: Callable[[str, object], object]) -> Callable[[str, object], object]:
    return lambda name, value: None if value is None else convert(name, value)


_CONVERSIONS: Mapping[str, Callable[[str, object], object]] = {
    **dict.fromkeys(
        (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "frequency_penalty",
            "presence_penalty",
        ),
        _real,
    ),
    **dict.fromkeys(("top_k", "max_tokens", "min_tokens", "n"), _integer),
    **dict.fromkeys(
        ("seed", "logprobs", "prompt_logprobs", "thinking_budget", "block_size", "max_block_size"),
        _optional(_integer),
    ),
    "threshold": _optional(_real),
    "method": _optional(_name),
    "structure": _optional(_form),
    "policy": _optional(_name),
    "ignore_eos": _flag,
    "stop": _strings,
    "stop_token_ids": _integers,
    "logit_bias": _bias,
}
"""How each field of SamplingParams is taken over: numbers of any library, but never a bool for one."""


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


# --- what a forward runs ------------------------------------------------------------------------------------


@light
class Row:
    """Tokens of one request that run together in a forward (architecture §2).

    Attributes:
        request: index of the request's block table in the batch.
        prefix: cached tokens of the request; every slot sees all of them.
        tokens: token ids, one per slot.
        causal: causal row (KV written) or draft row (KV in flight only).
        stem: for a draft row, how many tokens of its request's causal row in the same forward it sees.
        adapter: whether the draft adapter's delta applies.
        masked: MASK slots (they take the learned mask embedding, if the adapter has one).
        wanted: slots whose logits are wanted.
    """

    request: int
    prefix: int
    tokens: tuple[int, ...]
    causal: bool
    stem: int = 0
    adapter: bool = False
    masked: tuple[int, ...] = ()
    wanted: Sequence[int] = ()

    @property
    def start(self) -> int:
        """Absolute position of slot 0."""
        return self.prefix + self.stem


class AdapterUse(Enum):
    """Which of a forward's tokens the draft adapter touches."""

    NONE = "none"
    MIXED = "mixed"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Rows of any number of requests, laid end to end without padding between them.

    Rows stand in the order causal, draft without adapter, draft with adapter, so that the tokens that write
    KV are a head slice and those that the adapter touches a tail slice. `N` query tokens, `W` wanted logits,
    `R` requests. All tensors are views of one buffer, so integers are int32.

    A batch may be padded at its end up to the shape of a CUDA graph. Padding tokens are token 0 at position
    0; they write no KV, no work item covers them, and nobody reads what becomes of them. Padding of `wanted`
    is token 0, that of tables is anything.

    Attributes:
        rows: the rows in packed order.
        row_starts: index of each row's slot 0 among the N tokens.
        tokens, positions: [N] int32; positions are absolute.
        row, request, slot, stem, prefix: [N] int32, each token's row index, request index, slot in its row,
            stem length (0 in causal rows) and prefix length.
        causal, masked, adapter_on: [N] bool; causal row, MASK slot, touched by the adapter.
        use: whether the adapter touches no token, some or all.
        written: number of leading tokens that write KV (those of causal rows).
        kv_slots: [N] int32, page × page_size + offset where a token's KV goes; −1 for tokens that write none.
        adapter_start: first token that the adapter touches; the number of tokens for none.
        block_tables: [R, pages] int32, page ids of each request.
        wanted: [W] int32, token indices whose logits are wanted, in the order of the rows *as given*.
        order, work: [N, 3] and [rows, FIELDS] int32, the attention's work list (see `attention.work`); empty
            for a backend that needs none.
    """

    rows: tuple[Row, ...]
    row_starts: tuple[int, ...]
    tokens: Tensor
    positions: Tensor
    row: Tensor
    request: Tensor
    slot: Tensor
    stem: Tensor
    prefix: Tensor
    causal: Tensor
    masked: Tensor
    adapter_on: Tensor
    use: AdapterUse
    written: int
    kv_slots: Tensor
    adapter_start: int
    block_tables: Tensor
    wanted: Tensor
    order: Tensor
    work: Tensor


class Turn(Protocol):
    """How one forward's positions turn queries and keys: what attention needs of a `Rotation`."""

    @property
    def cos(self) -> Tensor: ...

    @property
    def sin(self) -> Tensor: ...

    @property
    def query_scale(self) -> Tensor | None: ...

    def split(self, qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """qkv [N, heads + 2·kv_heads, dim] → q, k (both rotated), v [N, (kv_)heads, dim]."""
        ...


Attend = Callable[[int, "Tensor", Turn], "Tensor"]
"""(layer, qkv [N, heads + 2·kv_heads, dim], not rotated yet, rotation) → [N, heads · dim].

It may rotate in place.
"""


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one cached token costs: two tensors of [layers, kv_heads, head_dim]."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary's size and the ids that picks and settle treat specially.

    `mask` is None for a model that never learned to draft; `think` holds the ids of <think> and </think>.
    """

    size: int
    eos: tuple[int, ...]
    mask: int | None = None
    think: tuple[int, int] | None = None


def opens_thinking(prompt: Sequence[int], think: tuple[int, int] | None) -> bool:
    """Whether a prompt ends inside a <think>; `think` are the ids of <think> and </think>, None for none."""
    if think is None:
        return False
    return next((token for token in reversed(prompt) if token in think), None) == think[0]


class Backbone(Protocol):
    """What the engine needs of a model; a decoder with its adapter, or a scripted fake in tests."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def kv_shape(self) -> KVShape: ...

    @property
    def heads(self) -> int:
        """Query heads, a multiple of the cache's."""
        ...

    @property
    def adapted(self) -> bool:
        """Whether there is a draft adapter, so that rows with and without it are computed differently."""
        ...

    @property
    def diffusion_adapter(self) -> bool:
        """Whether block diffusion needs the adapter: a model that learned to draft by adapter does."""
        ...

    def forward(self, batch: PackedBatch, attend: Attend) -> Tensor:
        """Logits of the wanted tokens, [W, vocab] float32 (float64 for a float64 model)."""
        ...


# --- what comes back ----------------------------------------------------------------------------------------


class Origin(StrEnum):
    """How a token came to be emitted."""

    PREFILL = "prefill"
    AR = "ar"
    ACCEPTED = "accepted"
    REUSED = "reused"
    """An accepted draft token whose draft came from a branch."""
    CORRECTION = "correction"
    BONUS = "bonus"
    DIFFUSION = "diffusion"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Raw log-probabilities at one token: its own, and the most likely tokens' (id → logprob)."""

    logprob: float
    top: Mapping[int, float]


@dataclass(slots=True)
class RoundStats:
    """What a request's rounds did. Sums over requests add field by field.

    Attributes:
        tokens: tokens returned.
        untrimmed: tokens after the first before stops and caps cut them; all else counts what was kept.
        forwards: forwards in which the request had a row that was not prefill.
        prefill_forwards: forwards in which it only prefilled.
        acceptance: histogram of A over rounds that had a draft.
        matched: histogram of matched draft slots over the same rounds: A − 1, or all of a round cut short.
        blocks: histogram of verified block lengths.
        drafted, accepted: draft slots offered to the verifier, and those that matched.
        branches: branches run, by kind.
        covered, reused: rounds whose outcome slot some branch predicted, and whose branch was used, by kind.
        query_tokens: query tokens of its rows, prefill excluded.
        prefix_hit_tokens: prompt tokens whose KV was cached when the request was admitted.
        preemptions: how often it lost its KV and had it computed again.
        continued, begun: AR steps and prefills that a continuation ran beside, and those whose next draft it
            became. No draft was verified there, so they count neither as branches nor as rounds.
    """

    tokens: int = 0
    untrimmed: int = 0
    forwards: int = 0
    prefill_forwards: int = 0
    acceptance: Counter[int] = field(default_factory=Counter[int])
    matched: Counter[int] = field(default_factory=Counter[int])
    blocks: Counter[int] = field(default_factory=Counter[int])
    drafted: int = 0
    accepted: int = 0
    branches: Counter[str] = field(default_factory=Counter[str])
    covered: Counter[str] = field(default_factory=Counter[str])
    reused: Counter[str] = field(default_factory=Counter[str])
    query_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    continued: int = 0
    begun: int = 0

    @property
    def rounds(self) -> int:
        return sum(self.acceptance.values())

    @property
    def mean_acceptance(self) -> float:
        """Mean A over rounds with a draft; 1 without any."""
        return sum(a * n for a, n in self.acceptance.items()) / self.rounds if self.rounds else 1.0

    @property
    def tpf(self) -> float:
        """Tokens returned after the first per forward in which the request did not prefill."""
        return max(0, self.tokens - 1) / self.forwards if self.forwards else 0.0

    @property
    def tpf_with_prefill(self) -> float:
        """Like `tpf`, with prefill forwards counted too."""
        total = self.forwards + self.prefill_forwards
        return max(0, self.tokens - 1) / total if total else 0.0

    @property
    def tpf_untrimmed(self) -> float:
        return self.untrimmed / self.forwards if self.forwards else 0.0

    @property
    def coverage(self) -> float:
        return sum(self.covered.values()) / self.rounds if self.rounds else 0.0

    @property
    def reuse(self) -> float:
        return sum(self.reused.values()) / self.rounds if self.rounds else 0.0

    def add(self, other: RoundStats) -> None:
        for name in (
            "tokens",
            "untrimmed",
            "forwards",
            "prefill_forwards",
            "drafted",
            "accepted",
            "query_tokens",
            "prefix_hit_tokens",
            "preemptions",
            "continued",
            "begun",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("acceptance", "matched", "blocks", "branches", "covered", "reused"):
            getattr(self, name).update(getattr(other, name))


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished choice.

    `text` has no special tokens and is cut before a stop string; `token_ids`, `origins` and `logprobs` have
    one entry for each emitted token, up to and with the one that ended the text; `prompt_logprobs` one for
    each token of the prompt but the first.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    seed: int
    stats: RoundStats
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None


@light
class Chunk:
    """What a stream yields: the text and tokens that one commit added to one choice."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    completion: Completion | None = None
    """Set in the last chunk of a choice."""


@dataclass(frozen=True, slots=True)
class Generation:
    """All choices of one prompt."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    completions: tuple[Completion, ...]

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.completions[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.completions[0].token_ids

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        """Of every token of the prompt but the first, if they were asked for."""
        return self.completions[0].prompt_logprobs
