"""`recguide pull`: fetch a model and check it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from recguide.cli.console import out, print_json
from recguide.cli.options import Json, LoadOptions, Model, fills, loading

if TYPE_CHECKING:
    from recguide.models import loading as models


@fills(load=loading)
def pull(model: Model, *, json_output: Json = False, load: LoadOptions) -> None:
    """Fetch a model and check it: every tensor, the tokenizer, the draft adapter.

    Example: [bold]recguide pull smollm2-135m[/bold]
    """
    from recguide.cli.opening import open_model

    facts = describe(open_model(model, load))
    if json_output:
        print_json(facts)
        return
    grid = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        grid.add_row(name.replace("_", " "), "none" if value is None else str(value))
    out().print(grid)


def describe(model: models.Model) -> dict[str, object]:
    """What a model is, for people and machines."""
    config, vocabulary = model.config, model.vocabulary
    adapter = 0 if model.adapter is None else sum(tensor.numel() for tensor in model.adapter.parameters())
    return {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "family": config.family,
        "parameters": sum(tensor.numel() for tensor in model.decoder.parameters()),
        "adapter_parameters": adapter,
        "layers": config.layers,
        "vocabulary": vocabulary.size,
        "positions": model.max_positions,
        "mask_token": vocabulary.mask,
        "end_tokens": list(vocabulary.eos),
        "chat_template": model.tokenizer is not None and model.tokenizer.chat_template is not None,
        "device": str(model.kv_shape.device),
        "dtype": str(model.kv_shape.dtype).removeprefix("torch."),
        "kv_bytes_per_token": model.kv_shape.bytes_per_token,
    }
