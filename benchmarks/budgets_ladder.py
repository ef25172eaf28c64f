"""Budgets by load on a real engine: the paper's Table 6, every fixed block, plain decoding and `price`.

Published shapes with random weights and a replayed acceptance: all computation is real, only what the picks
say is scripted (see `recguide.bench.acceptance`). A closed loop of C requests, prompts known to the cache;
all that draft decode the same texts. Costs of forwards are measured first; value tables are calibrated on
other texts of the process. The oracle, and other strengths of the entropy link, are simulated with
the measured costs.

It may be run in parts: `--resume FILE` keeps what FILE has of other loads, so that `--loads 2 8 32` and then
`--loads 4 16 64 128 --resume FILE` make one result. Without `--loads` it then measures nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from recguide.bench.acceptance.process import ENTROPY_LINKS, LABEL, AcceptanceReplay, fitted
from recguide.bench.acceptance.traffic import ReplayTraffic
from recguide.bench.forwards import measure
from recguide.bench.guided.figures import block_mix, frontier
from recguide.bench.guided.served import Served, Text, cycle, know, serve, whole_pages
from recguide.bench.guided.study import LEARNING, Study, Way, shares
from recguide.bench.results import Target, write_result
from recguide.bench.tables import text_table
from recguide.bench.targets import Result, read_result, short_table
from recguide.bench.workload import random_prompts, replay_engine
from recguide.core import SamplingParams
from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.guidance.batching import batching_named
from recguide.guidance.clock import Clock
from recguide.guidance.cost import CostTable
from recguide.guidance.explore import explore
from recguide.guidance.load import Load
from recguide.guidance.oracle import Oracle
from recguide.guidance.policy import Policy
from recguide.guidance.records import Rounds
from recguide.guidance.simulation import simulate
from recguide.models.devices import device_name
from recguide.models.loading import Model, load

RESULTS = Path(__file__).parent / "results"
SECONDS, SKIPPED = 2.0, 48
"""Of plain decoding at a load; steps of others before anything counts, in which the first texts get apart."""
LOADS = (2, 4, 8, 16, 32, 64, 128)
PROMPT = 744
MODEL_LEN = 8192
"""Enough for the longest prefix that forwards are timed with."""
TABLE_6 = {
    "nld-8b": {
        "recipe": 4725,
        "paper, s, padded": 5221,
        "paper, s and z, padded": 5254,
        "paper, bucketed": 6608,
    },
    "nld-14b": {
        "recipe": 3756,
        "paper, s, padded": 4041,
        "paper, s and z, padded": 4071,
        "paper, bucketed": 4987,
    },
}
"""Tokens a second, means over LOADS, on a B200 in SGLang; beside ours, not a target."""
OUTDOES, BEATS = 0.98, 1.10
"""Price against the best of fixed blocks, AR and the paper at every load; its mean over the recipe, and over
the paper as published."""
COLUMNS = {
    "where": "where",
    "load": "C",
    "way": "policy",
    "tokens_per_s": "tok/s",
    "request_tokens_per_s": "tok/s each",
    "query_tokens": "N",
    "ms_per_step": "ms/step",
    "price": "price",
}


# --- the engine ---------------------------------------------------------------------------------------------


def engine_of(model: Model, process: AcceptanceReplay, loads: Sequence[int], length: int) -> Engine:
    """With room for every prompt and its text at the largest load, twice over."""
    most = max(loads)
    longest = PROMPT + 64 + length + 64
    config = EngineConfig(
        max_running=most,
        max_batch_tokens=max(1024, 32 * most),
        max_model_len=min(model.max_positions, MODEL_LEN),
        kv_cache_tokens=2 * most * longest,
    )
    return replay_engine(model, process, config)


def texts_of(engine: Engine, model: Model, loads: Sequence[int], length: int) -> list[Text]:
    """As many prompts as decode together."""
    tokens = whole_pages(PROMPT, engine.runner.pool.page_size)
    prompts = random_prompts(max(loads), tokens, model.vocabulary.size)
    params = SamplingParams(max_tokens=length, ignore_eos=True, seed=0)
    return [Text(prompt, params) for prompt in prompts]


def engine_rows(
    engine: Engine,
    study: Study,
    texts: Sequence[Text],
    options: argparse.Namespace,
    keep: Callable[[Sequence[Mapping[str, Any]]], None],
) -> list[dict[str, Any]]:
    """Every way at every load, kept after each load.

    All that draft decode the same texts, each of them from its first token to its last. Plain decoding has no
    luck, and has some seconds.
    """
    ways = [way for way in study.ladder() if not options.ways or way.name in options.ways]
    rows: list[dict[str, Any]] = []
    know(engine, texts)
    for seats in options.loads:
        whole = max(seats, options.texts)
        for way in ways:
            mine, policy = cycle([way.of(text) for text in texts]), way.policy(seats)
            much = {"seconds": SECONDS} if way.method == "ar" else {"whole": whole}
            served = serve(engine, policy, way.batching, mine, seats, skip=max(SKIPPED, way.learns), **much)
            rows.append(served_row(way.name, served))
            print(f"C = {seats}, {way.name}: {served.tokens_per_s:,.0f} tok/s", flush=True)
        keep(rows)
    return rows


def served_row(way: str, served: Served) -> dict[str, Any]:
    steps = max(1, len(served.step_ms))
    return {
        "where": "engine",
        "load": served.load,
        "way": way,
        "tokens_per_s": served.tokens_per_s,
        "window_tokens_per_s": served.window_tokens_per_s,
        "warm_up_tokens_per_s": served.warm_up_tokens_per_s,
        "request_tokens_per_s": served.request_rate,
        "query_tokens": served.mean_query_tokens,
        "ms_per_step": served.wall_ms / steps,
        "steps": steps,
        "texts": len(served.decoded),
        "outliers": served.outliers,
        "price": fmean(served.prices) if served.prices else 0.0,
        "shares": shares(served.drafts) if served.drafts else {},
        "drafts_per_step": served.drafts.total() / steps,
        "branches": dict(sorted(served.branches.items())),
        "acceptance": served.stats.mean_acceptance,
        "reuse": served.stats.reuse,
    }


# --- the simulator ------------------------------------------------------------------------------------------


def simulated(
    policy: Policy, way: Way, traffic: ReplayTraffic, clock: Clock, seats: int, texts: int
) -> dict[str, Any]:
    much = Load(seats=seats, texts=max(texts, 3 * seats), prefix=PROMPT)
    tally = simulate(traffic, policy, clock, much, batching_named(way.batching))
    return {
        "load": seats,
        "way": way.name,
        "tokens_per_s": tally.throughput,
        "request_tokens_per_s": tally.throughput / seats,
        "query_tokens": tally.query_tokens / max(1, tally.forwards),
        "ms_per_step": tally.ms / max(1, tally.forwards),
        "price": fmean(price for _, price, _ in tally.prices) if tally.prices else 0.0,
        "shares": shares(tally.blocks) if tally.blocks else {},
    }


def simulator_rows(
    process: AcceptanceReplay, cost: CostTable, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """All ways and the oracle at three strengths of the entropy link, with the measured costs."""
    rows: list[dict[str, Any]] = []
    texts = 8 if options.quick else 24
    for link in ENTROPY_LINKS:
        linked = process.linked(link)
        study = study_of(linked, cost, options)
        ways = [*study.ladder(), Way("oracle", lambda _, study=study: Oracle(study.clock))]
        for seats in options.simulated:
            for way in ways:
                traffic = ReplayTraffic(linked, seats=seats, length=options.length, seed=1)
                row = simulated(way.policy(seats), way, traffic, study.clock, seats, texts)
                rows.append({"where": f"simulator, {link} link", **row})
            print(f"simulated, {link} link, C = {seats}", flush=True)
    return rows


def study_of(process: AcceptanceReplay, cost: CostTable, options: argparse.Namespace) -> Study:
    """Tables of other texts of the process."""
    texts = 48 if options.quick else 150
    traffic = ReplayTraffic(process, seats=1, length=options.length, seed=7)
    rounds = Rounds.of(explore(traffic, texts, name=process.name))
    return Study(rounds, cost, bins=6 if options.quick else 12, prefix=PROMPT + options.length // 2)


# --- targets ------------------------------------------------------------------------------------------------


def targets_of(model: str, rows: Sequence[Mapping[str, Any]]) -> list[Target]:
    """Of the engine; loads and ways that were not run have none."""
    by_load: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["where"] == "engine":
            by_load.setdefault(row["load"], {})[row["way"]] = row["tokens_per_s"]
    found: list[Target] = []
    for seats, ways in sorted(by_load.items()):
        others = {name: value for name, value in ways.items() if name not in ("price", "recipe")}
        if "price" in ways and others:
            name = f"{model}, {LABEL}, C = {seats}: price / max(best fixed, AR, paper)"
            found.append(Target.at_least(name, round(ways["price"] / max(others.values()), 4), OUTDOES))
    for other in ("recipe", "paper, bucketed"):
        ratios = [ways["price"] / ways[other] for ways in by_load.values() if {"price", other} <= set(ways)]
        if ratios:
            name = f"{model}, {LABEL}: price / {other}, mean over {len(ratios)} loads"
            found.append(Target.at_least(name, round(fmean(ratios), 4), BEATS))
    return found


def beside_the_paper(model: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over loads, and gains over the recipe: published on another GPU and engine, and here."""
    ours = {
        way: fmean(row["tokens_per_s"] for row in rows if row["way"] == way and row["where"] == "engine")
        for way in {row["way"] for row in rows if row["where"] == "engine"}
    }
    published = TABLE_6.get(model, {})
    return [
        {
            "way": way,
            "published_tokens_per_s": published.get(way),
            "published_gain": published[way] / published["recipe"] - 1 if way in published else None,
            "tokens_per_s": mean,
            "gain": mean / ours["recipe"] - 1 if "recipe" in ours else None,
        }
        for way, mean in sorted(ours.items(), key=lambda item: item[1])
    ]


# --- the run ------------------------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="nld-8b", help="published shape: nld-8b, nld-14b")
    parser.add_argument("--texts", type=int, help="of each way at a load, at least C (48; quick: 24)")
    parser.add_argument("--loads", type=int, nargs="+", help="all of the paper's")
    parser.add_argument("--simulated", type=int, nargs="*", default=(), help="loads to simulate, too")
    parser.add_argument("--resume", type=Path, help="a result; what it has of other loads is kept")
    parser.add_argument("--ways", nargs="*", default=(), help="policies by their names; all if left out")
    parser.add_argument("--length", type=int, help="new tokens of a text (512; quick: 256)")
    parser.add_argument("--cost", type=Path, help="cost table; measured if left out")
    parser.add_argument("--quick", action="store_true", help="short texts, coarse tables, on any device")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--figures", type=Path, help="folder of the pictures", default=RESULTS)
    options = parser.parse_args(arguments)
    options.texts = options.texts or (24 if options.quick else 48)
    options.length = options.length or (256 if options.quick else 512)
    options.loads = options.loads or (() if options.resume else LOADS)
    options.output = options.output or RESULTS / f"budgets_ladder-{options.model}.json"
    return options


def measured(options: argparse.Namespace, earlier: Result | None) -> None:
    """Writes the engine's part, load by load."""
    began = time.monotonic()
    model = load(options.model, load_format="dummy")
    replay = fitted(options.model)
    engine = engine_of(model, replay.process, options.loads, options.length)
    cost = CostTable.read(options.cost) if options.cost else measure(engine, model, 1024).table
    study = study_of(replay.process, cost, options)
    print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
    settings = {
        "model": options.model,
        "weights": "random",
        "acceptance": LABEL,
        "replay": replay.as_object(),
        "length": options.length,
        "prompt": PROMPT,
    }
    kept, parts = kept_of(earlier, settings, options.loads, device_name(model.kv_shape.device))
    part = {
        "loads": list(options.loads),
        "texts": options.texts,
        "seconds": SECONDS,
        "learning_steps": LEARNING,
        "quick": options.quick,
    }

    def keep(mine: Sequence[Mapping[str, Any]]) -> None:
        rows = sorted([*kept, *mine], key=lambda row: row["load"])
        more = {
            "cost": cost.as_object(),
            "parts": [*parts, part],
            "beside_the_paper": beside_the_paper(options.model, rows),
        }
        write_result(
            options.output,
            settings={**settings, **more},
            rows=rows,
            targets=targets_of(options.model, rows),
            device=model.kv_shape.device,
        )

    engine_rows(engine, study, texts_of(engine, model, options.loads, options.length), options, keep)


def kept_of(
    earlier: Result | None, settings: Mapping[str, Any], loads: Sequence[int], device: str
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The engine's rows at other loads, and the runs that they are of; SystemExit if they are not alike."""
    if earlier is None:
        return [], []
    for name, value in settings.items():
        if earlier.settings.get(name) != json.loads(json.dumps(value)):
            raise SystemExit(f"--resume: {earlier.name} is of another {name}")
    if earlier.provenance["device"] != device:
        raise SystemExit(f"--resume: {earlier.name} is of another device, {earlier.provenance['device']}")
    rows = [row for row in earlier.rows if row["where"] == "engine" and row["load"] not in loads]
    provenance = {name: earlier.provenance[name] for name in ("commit", "time") if name in earlier.provenance}
    parts = [{**provenance, **part} for part in earlier.settings.get("parts", ())]
    return rows, parts


def main() -> None:
    options = parse()
    earlier = None if options.resume is None else read_result(options.resume)
    if options.loads:
        measured(options, earlier)
    of = options.output if options.loads else options.resume
    result = read_result(of)
    rows = [dict(row) for row in result.rows if row["where"] == "engine"]
    if options.simulated:
        cost = CostTable.of(result.settings["cost"])
        rows += simulator_rows(fitted(options.model).process, cost, options)
        add_rows(options.output, of, rows)
    print(text_table(rows, COLUMNS), "\n")
    print(short_table(result.targets))
    draw(options, rows)


def add_rows(file: Path, of: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """The result `of` with other rows: what was measured keeps its provenance."""
    content = json.loads(of.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**content, "rows": list(rows)}, indent=1) + "\n", encoding="utf-8")


def draw(options: argparse.Namespace, rows: Sequence[Mapping[str, Any]]) -> None:
    """Figure 5 and Table 4, with the simulated oracle of the fitted link among the engine's lines."""
    shown = [row for row in rows if row["where"] == "engine"]
    shown += [row for row in rows if row["way"] == "oracle" and "medium" in row["where"]]
    name = options.output.stem
    frontier(shown, f"{options.model}, {LABEL}", options.figures / f"{name}.svg")
    drafting = [row for row in rows if row["where"] == "engine" and row["way"] in ("paper, ragged", "price")]
    if any(row["shares"] for row in drafting):
        file = options.figures / f"{name}-blocks.svg"
        block_mix(drafting, f"{options.model}: blocks of the drafts begun", file)


if __name__ == "__main__":
    main()
