"""A model ready to run: decoder, tokenizer and draft adapter behind the `Backbone` protocol."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from recguide.core import (
    AdapterUse,
    Attend,
    CheckpointError,
    KVShape,
    PackedBatch,
    ParameterError,
    Vocabulary,
)
from recguide.models import adapter_files, demo, dummy, sources
from recguide.models.adapter import Adapter
from recguide.models.arranging import arrange
from recguide.models.checkpoint import load_weights, weight_files
from recguide.models.config import ModelConfig
from recguide.models.decoder import Decoder
from recguide.models.families import read_config
from recguide.models.fingerprint import file_fingerprint, text_fingerprint
from recguide.models.folding import fold
from recguide.models.ops import Touched
from recguide.models.ops.choice import ops_for
from recguide.models.progress import Progress, ignore_progress
from recguide.models.published import SHAPES, shape_of
from recguide.models.tokenizer import Tokenizer
from recguide.models.weights import allocating

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
LOAD_FORMATS = ("auto", "dummy")
NATIVE_ADAPTER = "linear_spec_lora"
SHIPPED_ADAPTERS = Path(__file__).parent / "adapters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A backbone with its tokenizer (None for a model made in tests) and draft adapter (None for none).

    Attributes:
        name: what the user called it: a folder's name, a Hugging Face id, or smollm2-135m.
        fingerprint: tells models and adapters apart, for provenance; equal for the same files anywhere.
    """

    name: str
    config: ModelConfig
    decoder: Decoder
    adapter: Adapter | None
    tokenizer: Tokenizer | None
    fingerprint: str

    def __post_init__(self) -> None:
        if self.adapter is not None and self.decoder.ops.folds:
            fold(self.adapter, self.decoder)

    @classmethod
    def random(
        cls,
        config: ModelConfig,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        adapter: Adapter | None = None,
        tokenizer: Tokenizer | None = None,
        exact: bool = False,
    ) -> Model:
        """A model with random weights, the same for the same seed and dtype."""
        where = torch.device(device)
        decoder = Decoder(config, dtype, where, ops_for(config, dtype, where, exact=exact))
        decoder.randomise(seed)
        return cls(
            name=f"random-{config.family}",
            config=config,
            decoder=decoder,
            adapter=adapter,
            tokenizer=tokenizer,
            fingerprint=text_fingerprint(f"{config} {seed} {dtype} {adapter is not None}"),
        )

    def arrange(self) -> None:
        """Lets its weights lie as inference on this device likes them, in place.

        Nothing else can be done with them afterwards: training takes them as they were loaded.
        """
        arrange(self.decoder, self.adapter)

    @property
    def mask_token_id(self) -> int | None:
        """Id that fills MASK slots; None for a model that never learned to draft."""
        if self.adapter is None and not self.config.native_drafts:
            return None
        if self.config.mask_token_id is not None or self.adapter is None:
            return self.config.mask_token_id
        return self.adapter.mask_token_id

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(
            size=self.config.vocab_size,
            eos=self.config.eos_token_ids,
            mask=self.mask_token_id,
            think=None if self.tokenizer is None else self.tokenizer.think_ids,
        )

    @property
    def max_positions(self) -> int:
        return self.config.max_positions

    @property
    def kv_shape(self) -> KVShape:
        config = self.config
        return KVShape(
            config.layers, config.kv_heads, config.head_dim, self.decoder.dtype, self.decoder.device
        )

    @property
    def heads(self) -> int:
        return self.config.heads

    @property
    def adapted(self) -> bool:
        return self.adapter is not None

    @property
    def diffusion_adapter(self) -> bool:
        """Block diffusion needs the adapter if drafting was learned by the adapter alone."""
        return self.adapter is not None and not self.config.native_drafts

    def forward(self, batch: PackedBatch, attend: Attend) -> Tensor:
        """Logits of the wanted tokens, [W, vocab] float32 (float64 for a float64 model)."""
        hidden = self.decoder.hidden(
            batch.tokens,
            batch.positions,
            attend,
            adapter=None if batch.use is AdapterUse.NONE else self.adapter,
            on=_touched(batch),
            masked=batch.masked,
        )
        return self.decoder.logits(hidden.index_select(0, batch.wanted))


def _touched(batch: PackedBatch) -> Touched:
    """A GPU gets a mask, which a CUDA graph reads anew each time, a CPU a slice, which costs nothing."""
    if batch.use is AdapterUse.ALL:
        return None
    return batch.adapter_on if batch.tokens.is_cuda else slice(batch.adapter_start, None)


def load(
    source: str,
    *,
    adapter: str | None = "auto",
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    revision: str | None = None,
    load_format: str = "auto",
    exact: bool = False,
    progress: Progress = ignore_progress,
) -> Model:
    """Loads a model, fetching it first if need be.

    Args:
        source: a folder, a Hugging Face id (owner/name), or smollm2-135m.
        adapter: "auto" for the checkpoint's own (or, for the demo model, the shipped one) if there is one;
            None for none; else a PEFT folder.
        dtype: "auto" is float32 on a CPU and bfloat16 on a GPU.
        device: "auto" is the first GPU, or the CPU.
        revision: branch, tag or commit of a Hugging Face id.
        load_format: "auto" reads the weights; "dummy" makes random ones for the name of a published shape
            (nld-3b, nld-8b, nld-14b), with a random draft adapter and no tokenizer.
        exact: batch-invariant products and norms: a token's bits depend on its own numbers alone.

    Raises ParameterError for an unknown source or setting, CheckpointError naming file and tensor (or field)
    for a checkpoint, adapter or tokenizer that does not hold what it promises.
    """
    where = resolve_device(device)
    precision = resolve_dtype(dtype, where)
    if load_format not in LOAD_FORMATS:
        raise ParameterError("load_format", f"{load_format!r} is not one of {', '.join(LOAD_FORMATS)}")
    if load_format == "dummy":
        return _dummy(source, adapter, precision, where, exact)
    if source in SHAPES and not Path(source).is_dir():
        raise ParameterError(
            "model", f"{source!r} is a published shape without weights; add load_format dummy for random ones"
        )
    folder = sources.resolve(source, revision, progress)
    config = read_config(folder)
    with allocating(folder / "config.json", where):
        decoder = Decoder(config, precision, where, ops_for(config, precision, where, exact=exact))
    load_weights(decoder, folder, progress)
    local = Path(source).expanduser().is_dir()
    own_adapter = SHIPPED_ADAPTERS / source if source == demo.NAME and not local else folder / NATIVE_ADAPTER
    adapter_folder = _adapter_folder(adapter, own_adapter)
    loaded = (
        None
        if adapter_folder is None
        else adapter_files.load_adapter(adapter_folder, config, precision, where)
    )
    model = Model(
        name=folder.resolve().name if local else source,
        config=config,
        decoder=decoder,
        adapter=loaded,
        tokenizer=Tokenizer.load(folder),
        fingerprint=_fingerprint(folder, adapter_folder),
    )
    _check_tokenizer(model, folder / "tokenizer.json")
    return model


def _dummy(name: str, adapter: str | None, dtype: torch.dtype, device: torch.device, exact: bool) -> Model:
    """A published shape with random weights."""
    config = shape_of(name)
    folder = None if adapter == "auto" else _adapter_folder(adapter, Path(NATIVE_ADAPTER))
    with allocating(Path(name), device):
        decoder = Decoder(config, dtype, device, ops_for(config, dtype, device, exact=exact))
        loaded = dummy.draft_adapter(config, dtype, device) if adapter == "auto" else None
    dummy.fill_decoder(decoder)
    if folder is not None:
        loaded = adapter_files.load_adapter(folder, config, dtype, device)
    return Model(
        name=name,
        config=config,
        decoder=decoder,
        adapter=loaded,
        tokenizer=None,
        fingerprint=text_fingerprint(f"dummy {config} {adapter}"),
    )


def resolve_device(device: str | torch.device) -> torch.device:
    """Raises ParameterError for a device that is unknown or absent."""
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ParameterError("device", f"{device!r} is unknown; auto, cpu, cuda or cuda:N are") from error
    if found.type not in ("cpu", "cuda"):
        raise ParameterError("device", f"{device!r} is not supported; cpu and cuda are")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ParameterError(
            "device", f"{device!r} is not there; {torch.cuda.device_count()} GPUs are visible"
        )
    return found


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Raises ParameterError for a dtype that no model is computed in."""
    if isinstance(dtype, str) and dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in DTYPES.values():
        raise ParameterError("dtype", f"{dtype!r} is not supported; auto, {', '.join(DTYPES)} are")
    return found


def _adapter_folder(adapter: str | None, own: Path) -> Path | None:
    """The folder that was asked for; `own` is the model's, if it exists."""
    if adapter == "auto":
        return own if own.is_dir() else None
    if adapter is None:
        return None
    chosen = Path(adapter).expanduser()
    if not adapter or not chosen.is_dir():  # an empty path would be the working directory
        raise ParameterError("adapter", f"{adapter!r} is no folder; auto, None or a PEFT folder are")
    return chosen


def _check_tokenizer(model: Model, file: Path) -> None:
    """Refuses a tokenizer that cannot be the model's, and a mask token that texts consist of."""
    tokenizer, config = model.tokenizer, model.config
    assert tokenizer is not None
    if tokenizer.size > config.vocab_size:
        raise CheckpointError(
            f"{file} has {tokenizer.size} tokens, but the embedding has {config.vocab_size} rows; it is "
            "another model's tokenizer"
        )
    for token in config.eos_token_ids:
        if token >= tokenizer.size:
            raise CheckpointError(
                f"{file} has {tokenizer.size} tokens, but config.json ends texts with token {token}; it is "
                "another model's tokenizer"
            )
    mask = model.mask_token_id
    if mask is not None and mask < tokenizer.size and mask not in tokenizer.special_ids:
        raise CheckpointError(
            f"{file}: mask_token_id {mask} is the ordinary token {tokenizer.token(mask)!r}, which could then "
            "never be emitted; a mask token is a special or unused one"
        )


def _fingerprint(folder: Path, adapter_folder: Path | None) -> str:
    files = [folder / "config.json", *weight_files(folder)]
    if adapter_folder is not None:
        files += [adapter_folder / adapter_files.CONFIG, adapter_folder / adapter_files.WEIGHTS]
    return file_fingerprint(files)
