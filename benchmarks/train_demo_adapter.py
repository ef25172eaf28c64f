"""Trains the demo model's draft adapter on one or several GPUs. Each verb can be repeated.

    python benchmarks/train_demo_adapter.py checkpoint MODEL.gguf FOLDER  GGUF → checkpoint folder
    python benchmarks/train_demo_adapter.py prepare --model FOLDER …  tokenise all prompts (no GPU)
    python benchmarks/train_demo_adapter.py smoke   kernels, masks, speed on random weights
    python benchmarks/train_demo_adapter.py write --model FOLDER …  continuations alone
    python benchmarks/train_demo_adapter.py run --model FOLDER …  continuations, training, measurement
    python benchmarks/train_demo_adapter.py auto --model FOLDER …  the same, optimiser chosen by short runs
    python benchmarks/train_demo_adapter.py pack ADAPTER OUT  split for transport; `join` undoes it

`torchrun --nproc-per-node N benchmarks/train_demo_adapter.py auto …` uses N GPUs of one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from recguide.models import demo
from recguide.models.config import ModelConfig, RopeConfig
from recguide.models.decoder import Decoder
from recguide.models.loading import load
from recguide.models.progress import ignore_progress
from recguide.training import lane_attention
from recguide.training.adapt import (
    AdaptResult,
    Event,
    Opened,
    adapt,
    open_run,
    prepare_prompts,
    split,
    train_run,
    write_texts,
)
from recguide.training.config import (
    AdaptConfig,
    BlockConfig,
    ContinuationConfig,
    LoraConfig,
    LossConfig,
    OptimiserConfig,
    TrainConfig,
)
from recguide.training.continuations import read_continuations
from recguide.training.corpus import Corpus
from recguide.training.halves import Halves
from recguide.training.halves import load as load_step
from recguide.training.lanes import Lanes
from recguide.training.loss import DraftLoss, chunk_outcome
from recguide.training.network import Backbone
from recguide.training.prepared import prepare
from recguide.training.prompts import read_prompts
from recguide.training.steps import StepPlan
from recguide.training.trainer import Trainer
from recguide.training.workers import close_workers, open_workers, wait_for_all

PART_BYTES = 15_000_000
TRAINING_SHARE = 0.94
"""Share of the time that goes into steps; the rest into measuring and compiling."""
SETS = {"gsm8k": "gsm8k_test", "humaneval": "humaneval", "mt-bench": "mt_bench", "ifeval": "ifeval"}


# --- carrying files -----------------------------------------------------------------------------------------


def checkpoint(gguf: Path, folder: Path) -> None:
    """The demo model's checkpoint folder from its GGUF file."""
    if (folder / "model.safetensors").is_file():
        return
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    demo._unpack(gguf, part, ignore_progress)
    part.rename(folder)


def pack(adapter: Path, out: Path) -> None:
    """The adapter folder as files of at most PART_BYTES, and the small ones in one tar."""
    out.mkdir(parents=True, exist_ok=True)
    data = (adapter / "adapter_model.safetensors").read_bytes()
    for number, start in enumerate(range(0, len(data), PART_BYTES)):
        (out / f"adapter.part{number}").write_bytes(data[start : start + PART_BYTES])
    small = [
        file for file in adapter.iterdir() if file.is_file() and file.name != "adapter_model.safetensors"
    ]
    staged = out / "small"
    staged.mkdir()
    for file in small:
        shutil.copy(file, staged)
    shutil.make_archive(str(out / "small"), "gztar", staged)
    shutil.rmtree(staged)


def join(parts: Path, adapter: Path) -> None:
    """Undoes `pack`."""
    adapter.mkdir(parents=True, exist_ok=True)
    files = sorted(parts.glob("adapter.part*"), key=lambda file: int(file.name[len("adapter.part") :]))
    (adapter / "adapter_model.safetensors").write_bytes(b"".join(file.read_bytes() for file in files))
    shutil.unpack_archive(parts / "small.tar.gz", adapter)


# --- smoke: everything that only a GPU can show, on random weights ------------------------------------------


def smoke(arguments: argparse.Namespace) -> None:
    backbone = random_backbone(arguments.device, arguments.tiny)
    report: list[tuple[str, str]] = []

    def check(name: str, run: Callable[[], str]) -> None:
        began = time.perf_counter()
        try:
            result = run()
        except Exception as error:  # noqa: BLE001 (a smoke test reports every failure and goes on)
            result = f"FAILED {type(error).__name__}: {str(error)[:1500]}"
        report.append((name, f"{result}  [{time.perf_counter() - began:.1f} s]"))
        print(f"{name:28} {report[-1][1]}", flush=True)

    sizes = (1024, 512) if arguments.tiny else (4096, 2048)
    check("lane kernel", lambda: check_lane_kernel(backbone))
    check("greedy lanes", lambda: check_lanes(backbone))
    check("compiled halves", lambda: check_halves(backbone, *sizes))
    check("compiled loss", lambda: check_loss(backbone))
    lanes, tokens = (8, 512) if arguments.tiny else (4096, 32_768)
    check(f"writing, {lanes} lanes", lambda: time_lanes(backbone, lanes, arguments.tiny))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    check(f"training, {tokens} slots", lambda: time_training(backbone, tokens, arguments.tiny))


def random_backbone(device: str, tiny: bool) -> Backbone:
    config = ModelConfig(
        family="llama",
        vocab_size=512 if tiny else 49152,
        hidden_size=64 if tiny else 576,
        intermediate_size=96 if tiny else 1536,
        layers=2 if tiny else 30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        norm_eps=1e-5,
        rope=RopeConfig(theta=100_000.0),
        query_scale=None,
        tie_embeddings=True,
        max_positions=8192,
        bos_token_id=1,
        eos_token_ids=(2,),
        mask_token_id=16,
        block_size=None,
        native_drafts=False,
    )
    on = torch.device(device)
    decoder = Decoder(config, torch.bfloat16 if on.type == "cuda" else torch.float32, on)
    decoder.randomise(0)
    return Backbone.of(decoder)


def random_texts(backbone: Backbone, count: int, seed: int = 0) -> Corpus:
    rng = np.random.default_rng(seed)
    prompts = rng.integers(40, 160, size=count)
    responses = np.minimum(rng.integers(60, 400, size=count), 256)
    vocab = backbone.decoder.config.vocab_size
    texts = [rng.integers(20, vocab, size=p + r).tolist() for p, r in zip(prompts, responses, strict=True)]
    chances = [rng.random(r).tolist() for r in responses]
    return Corpus.of(texts, prompts.tolist(), chances=chances)


def check_lane_kernel(backbone: Backbone) -> str:
    shape, device = backbone.shape, backbone.device
    q = torch.randn(64, shape.heads, shape.head_dim, device=device, dtype=backbone.dtype)
    k = torch.randn(64, 300, shape.kv_heads, shape.head_dim, device=device, dtype=backbone.dtype)
    v = torch.randn_like(k)
    lengths = torch.randint(1, 301, (64,), device=device)
    function = lane_attention.best(shape.head_dim, device)
    exact = lane_attention.reference(q.double(), k.double(), v.double(), lengths)
    error = ((function(q, k, v, lengths).double() - exact).norm() / exact.norm()).item()
    assert error < 1e-2, f"relative error {error:.1e}"
    return (
        f"{'kernel' if function is not lane_attention.reference else 'reference'}, relative error {error:.1e}"
    )


def check_lanes(backbone: Backbone) -> str:
    """Texts of the lanes against the compiled-free clean half: each token is (nearly) its argmax."""
    rng = np.random.default_rng(1)
    vocab = backbone.decoder.config.vocab_size
    prompts = [rng.integers(20, vocab, size=int(n)).tolist() for n in rng.integers(5, 60, size=40)]
    lanes = Lanes(backbone, lanes=16, positions=128, max_new_tokens=24, end_tokens=(2,), mask_token=16)
    worst, count = 0.0, 0
    halves = Halves(backbone, 128, 128, compiled=False)
    for written in lanes.write(prompts, 0.0, 0):
        text = [*prompts[written.index], *written.tokens]
        corpus = Corpus.of([text], [len(prompts[written.index])])
        step = StepPlan(corpus, 128, 128, BlockConfig(), 0).step(0)
        loaded = load_step(step, backbone.device, 16)
        final, _ = halves.clean(loaded, halves.masks(loaded)[0])
        before = final[len(prompts[written.index]) - 1 : len(text) - 1]
        logits = before.double() @ backbone.head.double().T
        logits[:, 16] = float("-inf")
        chosen = logits.gather(1, torch.tensor(written.tokens, device=logits.device)[:, None])[:, 0]
        worst = max(worst, ((logits.amax(1) - chosen) / logits.std(1).clamp(min=1e-9)).max().item())
        count += len(written.tokens)
    assert count > 0
    assert worst < 0.5, f"a token lies {worst:.2f} deviations below the best"
    return f"{count} tokens, worst gap {worst:.3f} deviations"


def check_halves(backbone: Backbone, clean: int, noisy: int) -> str:
    """Compiled block-sparse halves against dense masks: hidden states and gradients."""
    config = TrainConfig(
        steps=1, clean_tokens=clean, noisy_tokens=noisy, compiled=False, lora=LoraConfig(rank=16)
    )
    corpus = random_texts(backbone, 60)
    trainer = Trainer(backbone, corpus, config, 16)
    with torch.no_grad():
        for outer in trainer.factors.outer:
            outer.normal_(std=0.01)
    found: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
    loaded = load_step(StepPlan(corpus, clean, noisy, BlockConfig(), 0).step(0), backbone.device, 16)
    for compiled in (True, False):
        halves = Halves(backbone, clean, noisy, compiled=compiled and backbone.device.type == "cuda")
        clean_mask, noisy_mask = halves.masks(loaded)
        with torch.no_grad():
            _, kept = halves.clean(loaded, clean_mask)
        layers = trainer.factors.merged(backbone)
        hidden = halves.noisy(loaded, noisy_mask, layers, trainer.factors.mask_embedding, kept)
        weight = torch.linspace(-1, 1, hidden.shape[1], device=hidden.device)
        (hidden.float() * weight).sum().backward()
        found.append((hidden.detach().double(), [p.grad.double() for p in trainer.factors.parameters()]))
        trainer.factors.zero_grad()
    (a, da), (b, db) = found
    error = ((a - b).norm() / b.norm()).item()
    worst = max(((x - y).norm() / y.norm().clamp(min=1e-12)).item() for x, y in zip(da, db, strict=True))
    assert error < 5e-2, f"hidden states differ by {error:.1e}"
    assert worst < 2e-1, f"gradients differ by {worst:.1e}"
    return f"relative difference: hidden {error:.1e}, worst gradient {worst:.1e}"


def check_loss(backbone: Backbone) -> str:
    torch.manual_seed(0)
    vocab, width = backbone.head.shape
    hidden = torch.randn(2048, width, device=backbone.device, dtype=backbone.dtype)
    teacher = torch.randn_like(hidden)
    labels = torch.randint(20, vocab, (2048,), device=backbone.device)
    found = []
    on_gpu = backbone.device.type == "cuda"
    for function in (torch.compile(chunk_outcome, dynamic=False) if on_gpu else chunk_outcome, chunk_outcome):
        h = hidden.clone().requires_grad_()
        outcome = DraftLoss(backbone.head, LossConfig(), 16, 1024, function)(h, teacher, labels)
        outcome.loss.mean().backward()
        found.append((outcome.loss.detach().double(), h.grad.double()))
    error, worst = (((a - b).norm() / b.norm()).item() for a, b in zip(*found, strict=True))
    assert error < 1e-3, f"losses differ by {error:.1e}"
    assert worst < 2e-2, f"gradients differ by {worst:.1e}"
    return f"relative difference: loss {error:.1e}, gradient {worst:.1e}"


def time_lanes(backbone: Backbone, count: int, tiny: bool) -> str:
    rng = np.random.default_rng(2)
    vocab = backbone.decoder.config.vocab_size
    new = 16 if tiny else 128
    prompts = [
        rng.integers(20, vocab, size=int(n)).tolist() for n in np.sort(rng.integers(40, 120, size=2 * count))
    ]
    lanes = Lanes(backbone, lanes=count, positions=640, max_new_tokens=new, end_tokens=(2,), mask_token=16)
    speeds = []
    for temperature in (0.0, 0.7):
        for _ in lanes.write(prompts[: count // 4], temperature, 0):
            pass  # captures the graph
        synchronise()
        began = time.perf_counter()
        tokens = sum(len(w.tokens) for w in lanes.write(prompts, temperature, 0))
        synchronise()
        speeds.append(tokens / (time.perf_counter() - began) / 1e3)
    return f"{speeds[0]:.0f} k tokens/s greedy, {speeds[1]:.0f} k sampled, {memory()}"


def time_training(backbone: Backbone, tokens: int, tiny: bool) -> str:
    texts = random_texts(backbone, max(20, tokens // 60))
    lora = LoraConfig(rank=4 if tiny else 96)
    warm, timed = (2, 2) if tiny else (4, 12)
    lines: list[str] = []
    trainer: Trainer | None = None
    for kind in ("adamw", "muon"):
        config = TrainConfig(
            steps=warm + timed,
            clean_tokens=tokens,
            noisy_tokens=tokens,
            eval_every=0,
            lora=lora,
            optimiser=OptimiserConfig(kind=kind),
        )
        trainer = Trainer(backbone, texts, config, 16, like=trainer)
        began = time.perf_counter()
        for index in range(warm):
            trainer._train(trainer._plan.step(index))
            trainer._optimiser.step(index)
        synchronise()
        warmed = time.perf_counter() - began
        steps = [trainer._plan.step(warm + index) for index in range(timed)]
        began = time.perf_counter()
        for index, step in enumerate(steps):
            trainer._train(step)
            trainer._optimiser.step(warm + index)
        synchronise()
        seconds = (time.perf_counter() - began) / timed
        lines.append(
            f"{kind} {seconds * 1e3:.0f} ms, {tokens / seconds / 1e3:.0f} k slots/s (warm-up {warmed:.0f} s)"
        )
    return "; ".join((*lines, memory()))


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def memory() -> str:
    if not torch.cuda.is_available():
        return "no GPU"
    peak = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return f"peak {peak:.0f} GiB"


# --- the run ------------------------------------------------------------------------------------------------


def config_of(arguments: argparse.Namespace) -> AdaptConfig:
    shares = dict(pair.split(":") for pair in arguments.blocks.split(","))
    tokens = arguments.tokens
    return AdaptConfig(
        model=str(arguments.model),
        prompts=arguments.mixture,
        output=arguments.output,
        work=arguments.work,
        limit=arguments.limit,
        held_out=arguments.held_out,
        device=arguments.device,
        measure={name: arguments.tests / f"{file}.jsonl.gz" for name, file in SETS.items()},
        measure_limit=arguments.measure_limit,
        continuation=ContinuationConfig(
            temperatures=tuple(float(t) for t in arguments.temperatures.split(",")),
            max_new_tokens=arguments.max_new_tokens,
            max_prompt_tokens=arguments.max_prompt_tokens,
            lanes=arguments.lanes,
            chunk=arguments.chunk,
            seed=arguments.seed,
        ),
        train=TrainConfig(
            steps=arguments.steps,
            clean_tokens=round(tokens / arguments.coverage / 128) * 128,
            noisy_tokens=tokens,
            eval_every=arguments.eval_every,
            checkpoint_every=1000,
            max_seconds=arguments.seconds,
            seed=arguments.seed,
            lora=LoraConfig(rank=arguments.rank, rank_pattern=json.loads(arguments.rank_pattern)),
            blocks=BlockConfig(
                sizes={int(size): float(share) for size, share in shares.items()},
                continuation_share=arguments.continuation_share,
                hard_start_bias=arguments.bias,
            ),
            loss=LossConfig(
                hard=arguments.hard,
                teacher_temperature=arguments.teacher_temperature,
                decay=arguments.decay,
                reach=arguments.reach,
            ),
            optimiser=OptimiserConfig(
                kind=arguments.optimiser,
                lr=arguments.lr,
                b_ratio=arguments.b_ratio,
                schedule=arguments.schedule,
                warmup=arguments.warmup,
                decay=arguments.falling,
                ema=arguments.ema,
            ),
        ),
    )


def prepare_all(arguments: argparse.Namespace) -> None:
    """Tokenised prompts in the work folder, so that no GPU waits for them."""
    config = config_of(arguments)
    model = load(config.model, adapter=None, device="cpu", dtype="bfloat16")
    prepared = prepare_prompts(config, model)
    print("prompts", len(prepared.tokens), "tokens", sum(map(len, prepared.tokens)))
    assert model.tokenizer is not None
    for path in config.measure.values():
        prompts = read_prompts(path)[: config.measure_limit]
        tokens = prepare(prompts, model.tokenizer, config.work_folder / f"measure-{path.name}.npz").tokens
        longest = max(map(len, tokens))
        print(path.name, len(tokens), "longest", longest)


RECIPES: dict[str, dict[str, object]] = {
    "adamw 1e-3": {"kind": "adamw", "lr": 1e-3},
    "adamw 2.5e-3": {"kind": "adamw", "lr": 2.5e-3},
    "muon 3e-3": {"kind": "muon", "lr": 3e-3},
    "muon 8e-3": {"kind": "muon", "lr": 8e-3},
    "adamw 1.5e-3, B 4 times": {"kind": "adamw", "lr": 1.5e-3, "b_ratio": 4.0},
    "muon 3e-3, B 3 times": {"kind": "muon", "lr": 3e-3, "b_ratio": 3.0},
}


def probe(
    base: AdaptConfig,
    opened: Opened,
    texts: tuple[Corpus, dict[str, Corpus]],
    arguments: argparse.Namespace,
    part: int,
) -> Trainer | None:
    """Short runs of some optimiser settings over the same steps; the best of them goes to a file."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    rows: list[tuple[float, str, float]] = []
    trainer: Trainer | None = None
    for name in arguments.recipes.split(";")[part::count]:
        settings = replace(base.train.optimiser, **RECIPES[name])
        config = replace(
            base.train, optimiser=settings, steps=arguments.probe_steps, eval_every=0, max_seconds=None
        )
        trainer = Trainer(
            opened.backbone,
            texts[0],
            config,
            opened.mask_token,
            held_out=texts[1],
            blocks_measured=(16,),
            like=trainer,
        )
        began = time.perf_counter()
        trainer.run()
        last = trainer.history[-1]
        marks = [e for e in trainer.history if e.step > arguments.probe_steps // 2]
        rate = (marks[-1].tokens - marks[0].tokens) / max(marks[-1].seconds - marks[0].seconds, 1e-9)
        rows.append((last.mean or 0.0, name, rate))
        tasks = " ".join(f"{task} {a[16]:.3f}" for task, a in last.acceptance.items())
        seconds = time.perf_counter() - began
        print(
            f"probe {name:24} A {last.mean:.3f} ({tasks}) loss {last.loss:.4f} "
            f"{rate / 1e3:.0f} k/s {seconds:.0f} s",
            flush=True,
        )
    if rows:
        best, name, rate = max(rows)
        recipe = {"acceptance": best, "name": name, "slots_per_second": rate, **RECIPES[name]}
        (base.work_folder / f"recipe-{part}.json").write_text(json.dumps(recipe))
    return trainer


def auto(arguments: argparse.Namespace) -> None:
    """Everything in one process (per GPU): checkpoint, continuations, probes, training, measurement.

    The number of steps follows from the speed of the best probe and --train-seconds, once; a later call
    resumes. Stops --stop-after seconds after its start, measurement and saving not counted.
    """
    began = time.perf_counter()
    base = config_of(arguments)
    workers = open_workers(base.device)
    if arguments.gguf is not None and workers.index == 0:
        checkpoint(arguments.gguf, arguments.model)
    wait_for_all(workers)
    show = shower(began)
    opened = open_run(base, workers, show if workers.index == 0 else lambda _: None)
    texts = read_continuations(base.work_folder, len(opened.prepared.prompts), base.continuation)
    split_texts = split(texts, opened.prepared, base)
    plan_file = base.work_folder / "plan.json"
    trainer: Trainer | None = None
    if not plan_file.is_file():
        trainer = probe(base, opened, split_texts, arguments, workers.index)
        wait_for_all(workers)
        if workers.index == 0:
            found = [json.loads(file.read_text()) for file in base.work_folder.glob("recipe-*.json")]
            recipe = max(found, key=lambda one: one["acceptance"])
            # Speed is that of one device; with several, each trains its own slots in the same step.
            left = max(0.0, arguments.stop_after - (time.perf_counter() - began)) + arguments.later_seconds
            steps = TRAINING_SHARE * left * recipe["slots_per_second"] / arguments.tokens
            recipe["steps"] = max(1, round(steps))
            plan_file.write_text(json.dumps(recipe))
        wait_for_all(workers)
    recipe = json.loads(plan_file.read_text())
    settings = replace(
        base.train.optimiser, kind=recipe["kind"], lr=recipe["lr"], b_ratio=recipe.get("b_ratio", 1.0)
    )
    seconds = arguments.stop_after - (time.perf_counter() - began)
    done = base.work_folder / "checkpoint.pt"
    if done.is_file():
        seconds += torch.load(done, map_location="cpu", weights_only=True)["seconds"]
    config = replace(
        base,
        train=replace(base.train, optimiser=settings, steps=recipe["steps"], max_seconds=max(seconds, 1.0)),
    )
    if workers.index == 0:
        print(
            f"recipe {recipe['name']}, {recipe['steps']} steps, until {seconds:.0f} s of training", flush=True
        )
    main_run = Trainer(
        opened.backbone,
        split_texts[0],
        config.train,
        opened.mask_token,
        held_out=split_texts[1],
        workers=workers,
        like=trainer,
    )
    result = train_run(
        config, opened, main_run, split_texts[0], show if workers.index == 0 else lambda _: None
    )
    if workers.index == 0:
        print(f"{time.perf_counter() - began:6.0f} s  finished: {result.finished}, {memory()}")
        report(result)
    close_workers(workers)


def shower(began: float) -> Callable[[Event], None]:
    """Prints an event now and then, with the seconds since `began`."""
    state = {"shown": 0.0, "stage": ""}

    def show(event: Event) -> None:
        now = time.perf_counter() - began
        entry = event.entry
        stage = event.stage.split("(")[0]
        if entry is not None and (entry.acceptance or now - state["shown"] > 20):
            rate = entry.tokens / max(entry.seconds, 1e-9) / 1e3
            line = f"step {entry.step:5} loss {entry.loss:.3f} first {entry.first:.3f} "
            line += f"lr {entry.lr:.2f} {rate:.0f} k/s"
            for task, sizes in entry.acceptance.items():
                line += f" | {task} " + "/".join(f"{a:.2f}" for a in sizes.values())
        elif entry is None and (
            stage != state["stage"] or event.done == event.total or now - state["shown"] > 10
        ):
            line = f"{event.stage} {event.done}/{event.total}"
        else:
            return
        state["shown"], state["stage"] = now, stage
        print(f"{now:6.0f} s  {line}", flush=True)

    return show


def run(arguments: argparse.Namespace) -> None:
    began = time.perf_counter()
    result = adapt(config_of(arguments), shower(began))
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"{time.perf_counter() - began:6.0f} s  finished: {result.finished}, {memory()}")
        report(result)


def report(result: AdaptResult) -> None:
    for name, sizes in result.measured.items():
        line = "  ".join(f"B{size} {m.mean:.3f} (anywhere {m.anywhere:.2f})" for size, m in sizes.items())
        print(f"{name:12} {line}")


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = whole.add_subparsers(dest="verb", required=True)
    for name in ("checkpoint", "pack", "join"):
        verb = verbs.add_parser(name)
        verb.add_argument("source", type=Path)
        verb.add_argument("target", type=Path)
    smoking = verbs.add_parser("smoke")
    smoking.add_argument("--device", default="cuda")
    smoking.add_argument("--tiny", action="store_true")
    for name in ("prepare", "write", "run", "auto"):
        verb = verbs.add_parser(name)
        verb.add_argument("--recipes", default=";".join(list(RECIPES)[:4]))
        verb.add_argument("--probe-steps", type=int, default=200)
        verb.add_argument(
            "--later-seconds", type=float, default=450.0, help="training time of the calls to come"
        )
        verb.add_argument(
            "--stop-after", type=float, default=520.0, help="seconds after which this call stops training"
        )
        verb.add_argument("--gguf", type=Path)
        for option, kind, default in (
            ("model", Path, None),
            ("mixture", Path, None),
            ("tests", Path, None),
            ("work", Path, None),
            ("output", Path, None),
            ("device", str, "auto"),
            ("limit", int, None),
            ("held-out", int, 24),
            ("measure-limit", int, 100),
            ("temperatures", str, "0,0.7"),
            ("max-new-tokens", int, 256),
            ("max-prompt-tokens", int, 448),
            ("lanes", int, 4096),
            ("chunk", int, 50_000),
            ("steps", int, 6000),
            ("seconds", float, None),
            ("tokens", int, 32_768),
            ("coverage", float, 1.0),
            ("eval-every", int, 800),
            ("seed", int, 0),
            ("rank", int, 96),
            ("rank-pattern", str, "{}"),
            ("blocks", str, "8:0.35,16:0.5,32:0.15"),
            ("continuation-share", float, 0.1),
            ("bias", float, 2.0),
            ("hard", float, 0.5),
            ("teacher-temperature", float, 1.0),
            ("decay", float, 8.0),
            ("reach", float, 0.5),
            ("optimiser", str, "adamw"),
            ("lr", float, 1.5e-3),
            ("b-ratio", float, 1.0),
            ("schedule", str, "cosine"),
            ("warmup", float, 0.02),
            ("falling", float, 0.4),
            ("ema", float, 0.0),
        ):
            verb.add_argument(
                f"--{option}", type=kind, default=default, required=default is None and kind is Path
            )
    return whole


def main() -> None:
    arguments = parser().parse_args()
    match arguments.verb:
        case "checkpoint":
            checkpoint(arguments.source, arguments.target)
        case "pack":
            pack(arguments.source, arguments.target)
        case "join":
            join(arguments.source, arguments.target)
        case "smoke":
            smoke(arguments)
        case "auto":
            auto(arguments)
        case "write":
            write_texts(config_of(arguments), shower(time.perf_counter()))
        case "prepare":
            prepare_all(arguments)
        case _:
            run(arguments)


if __name__ == "__main__":
    main()
