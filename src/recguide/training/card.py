"""The model card of an adapter: what it was trained on, how, with what result; and its curve as a picture."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from recguide.training.acceptance import Measured
from recguide.training.config import AdaptConfig
from recguide.training.corpus import Corpus
from recguide.training.prepared import Prepared
from recguide.training.start import Start
from recguide.training.trainer import Entry

CURVE = "curve.png"
RESULTS = "results.json"


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the card tells."""

    config: AdaptConfig
    model: str
    mask_token: int
    prepared: Prepared
    training: Corpus
    history: tuple[Entry, ...]
    measured: Mapping[str, Mapping[int, Measured]]
    start: Start | None = None


def write_card(report: Report, folder: Path) -> None:
    """Writes README.md, results.json and, where matplotlib is installed, curve.png."""
    folder.mkdir(parents=True, exist_ok=True)
    curve = draw_curve(report.history, folder / CURVE)
    (folder / RESULTS).write_text(json.dumps(_results(report), indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_text(report, curve), encoding="utf-8")


def _results(report: Report) -> dict[str, Any]:
    start = report.start
    return {
        "model": report.model,
        "continued_from": None if start is None else {"name": start.name, "fingerprint": start.fingerprint},
        "settings": json.loads(json.dumps(asdict(report.config), default=str)),
        "history": [asdict(entry) for entry in report.history],
        "measured": {
            name: {
                str(size): {"mean": m.mean, "anywhere": m.anywhere, "rounds": m.histogram()}
                for size, m in sizes.items()
            }
            for name, sizes in report.measured.items()
        },
    }


def _text(report: Report, curve: bool) -> str:
    picture = f"\n![Loss and held-out acceptance over training]({CURVE})\n" if curve else ""
    return (
        "\n".join(
            (
                "---",
                "library_name: peft",
                f"base_model: {report.model}",
                "tags: [speculative-decoding, recguide, lora]",
                "---",
                "",
                f"# Draft adapter for {report.model}",
                "",
                *_about(report),
                "",
                "## Results",
                "",
                *_measured_table(report),
                picture,
                "## Data",
                "",
                *_data(report),
                "",
                "## Settings",
                "",
                *_settings(report),
                "",
                "## Limits",
                "",
                *_limits(report),
            )
        )
        + "\n"
    )


def _about(report: Report) -> list[str]:
    name = report.config.output.name
    return [
        "With this LoRA adapter the model drafts a block of tokens in one forward; without it, it verifies",
        "them. The output is the model's own, token for token; it only comes in fewer forwards.",
        "",
        "```sh",
        f'recguide generate {report.model} "Why is the sky blue?" --adapter {name}',
        "```",
        "",
        f"MASK slots take token id {report.mask_token} and the learned `mask_embedding`.",
    ]


def _measured_table(report: Report) -> list[str]:
    """Test files if any were measured, else the held-out prompts of the last measurement."""
    if report.measured:
        rows = {name: {size: m.mean for size, m in sizes.items()} for name, sizes in report.measured.items()}
        kind = "prompts that were never trained on"
    else:
        rows = next((dict(e.acceptance) for e in reversed(report.history) if e.acceptance), {})
        kind = "held-out training prompts"
    if not rows:
        return ["No acceptance was measured."]
    sizes = sorted(next(iter(rows.values())))
    lines = [
        f"Mean acceptance A (tokens a round emits) on {kind}, greedy, at most "
        f"{report.config.continuation.max_new_tokens} new tokens. Drafts are compared with the model's own "
        "greedy text (teacher-forced), round after round as decoding would; no engine is involved.",
        "",
        "| | " + " | ".join(f"B = {size}" for size in sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    lines += [
        f"| {name} | " + " | ".join(f"{row[size]:.2f}" for size in sizes) + " |" for name, row in rows.items()
    ]
    return lines


def _data(report: Report) -> list[str]:
    prompts = report.prepared.prompts
    sources = Counter((prompt.source, prompt.licence) for prompt in prompts)
    texts, tokens = len(report.training), int(report.training.response_lengths.sum())
    passes = ", ".join(f"{t:g}" for t in report.config.continuation.temperatures)
    lines = (
        [] if report.start is None else [f"Beside the data of {report.start.name}, which it continues:", ""]
    )
    lines += [
        f"The model's own continuations ({texts:,} texts, {tokens / 1e6:.1f} M tokens; temperatures "
        f"{passes}) of {len(prompts):,} prompts. The prompts are credited here; their text is not in it.",
        "",
        "| source | licence | prompts |",
        "|---|---|---|",
    ]
    return lines + [
        f"| {source} | {licence} | {count:,} |" for (source, licence), count in sources.most_common()
    ]


def _settings(report: Report) -> list[str]:
    train = report.config.train
    last = report.history[-1] if report.history else None
    rows: list[tuple[str, object]] = []
    if report.start is not None:
        rows.append(("continued from", f"{report.start.name} ({report.start.fingerprint})"))
    rows += [
        ("rank / scale", f"{train.lora.rank} / {train.lora.scale:g}"),
        ("rank pattern", dict(train.lora.rank_pattern) or "none"),
        ("targets", ", ".join(train.lora.targets)),
        ("optimiser", _named(asdict(train.optimiser))),
        ("loss", _named(asdict(train.loss))),
        ("blocks (share of slots)", _named({str(k): v for k, v in train.blocks.sizes.items()})),
        ("all-MASK blocks", f"{train.blocks.continuation_share:.0%}"),
        ("bias to hard starts", f"{train.blocks.hard_start_bias:g}"),
        ("seed", train.seed),
    ]
    if last is not None:
        rows += [
            ("steps", f"{last.step:,}"),
            ("drafted slots trained", f"{last.tokens / 1e6:.1f} M"),
            ("training time, minutes", f"{last.seconds / 60:.1f}"),
        ]
    return ["| setting | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _named(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _limits(report: Report) -> list[str]:
    longest = report.config.continuation.max_prompt_tokens + report.config.continuation.max_new_tokens
    sizes = ", ".join(str(size) for size in sorted(report.config.train.blocks.sizes))
    return [
        f"- It belongs to exactly this model. Trained on texts of up to {longest} tokens, blocks of {sizes}.",
        "- Acceptance falls on languages and tasks that the prompts do not cover; the text stays right.",
        "- It says nothing about the quality of the model's answers, which it does not change.",
    ]


def draw_curve(history: Sequence[Entry], file: Path) -> bool:
    """Loss and held-out acceptance over drafted slots; False without matplotlib or without history."""
    if not history or importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure  # an extra, and slow to import

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = cast("tuple[Any, Any]", figure.subplots(1, 2))
    millions = [entry.tokens / 1e6 for entry in history]
    left.plot(millions, [entry.loss for entry in history], linewidth=0.8)
    left.set(xlabel="drafted slots trained (millions)", ylabel="loss")
    for task in sorted({task for entry in history for task in entry.acceptance}):
        points = [(e.tokens / 1e6, _middle(e.acceptance[task])) for e in history if task in e.acceptance]
        right.plot(*zip(*points, strict=True), marker=".", label=task)
    right.set(xlabel="drafted slots trained (millions)", ylabel="held-out acceptance A")
    if right.lines:
        right.legend(fontsize="small")
    figure.savefig(file, dpi=110)
    return True


def _middle(acceptance: Mapping[int, float]) -> float:
    return acceptance[sorted(acceptance)[len(acceptance) // 2]]
