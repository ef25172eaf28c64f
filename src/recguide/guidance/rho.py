"""ρ_C of the paper's eq. 3, which the paper does not say how to find: by what it makes of calibration data.

Choices V_B − ρ·T_C(B) change only where two blocks are worth the same, so every such ρ, the midpoints and a
grid are scored with the objective itself: tokens per millisecond of a request, meaned over requests.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.clock import Clock
from recguide.guidance.fitting import out_of_fold
from recguide.guidance.records import Rounds
from recguide.guidance.value import ValueTable

GRID = 33


def choices(values: Floats, ms: Floats, rho: float) -> Ints:
    """[rows] index of the block with the most V_B − ρ·T_C(B); the smaller block if equal."""
    return (values - rho * ms).argmax(1).astype(np.int64)


def round_ms(clock: Clock, load: int, blocks: tuple[int, ...], prefix: int) -> Floats:
    """[blocks] T_C(B): a round's draft and verification with every one of `load` requests at that block."""
    n = load * np.array(blocks)
    return 2 * clock.ms(n, float(load * prefix), (n * prefix).astype(np.float64))


def best_rho(values: Floats, labels: Floats, ms: Floats, weight: Floats, request: Ints) -> float:
    """The ρ that makes the most tokens per millisecond; the smallest of equals.

    Args:
        values, labels: [rows, blocks] V_B as predicted, and A as it was.
        ms: [blocks] T_C(B), rising.
        weight: [rows]; a request's is that of all its rows.
        request: [rows] which request a row belongs to.
    """
    options = _options(values, ms)
    requests = int(request.max()) + 1
    of_request = np.bincount(request, weight, requests)
    best, best_score = 0.0, -np.inf
    for rho in options.tolist():
        chosen = choices(values, ms, rho)
        tokens = np.bincount(request, weight * labels[np.arange(len(labels)), chosen], requests)
        spent = np.bincount(request, weight * ms[chosen], requests)
        rate = np.divide(tokens, spent, out=np.zeros(requests), where=spent > 0)
        score = float(of_request @ rate)
        if score > best_score * (1 + 1e-12):
            best, best_score = rho, score
    return best


def _options(values: Floats, ms: Floats) -> Floats:
    crossings = [
        (values[:, large] - values[:, small]) / (ms[large] - ms[small])
        for small, large in combinations(range(len(ms)), 2)
        if ms[large] > ms[small]
    ]
    if not crossings:
        return np.zeros(1)
    at = np.unique(np.concatenate(crossings))
    at = at[at > 0]
    top = float(at[-1]) if len(at) else 1.0
    middle = (at[1:] + at[:-1]) / 2
    return np.unique(np.concatenate([[0.0], at, middle, np.linspace(0.0, 1.1 * top, GRID)]))


def table_rho(table: ValueTable, blocks: tuple[int, ...], ms: Floats) -> float:
    """ρ_C by the table alone: its cells are the rows, its values the labels, all of one request."""
    places = [table.blocks.index(block) for block in blocks]
    values, share = table.values()[:, places], table.share.reshape(-1)
    used = share > 0
    return best_rho(values[used], values[used], ms, share[used], np.zeros(int(used.sum()), np.int64))


def calibrated_rho(
    rounds: Rounds,
    blocks: tuple[int, ...],
    ms: Floats,
    *,
    signal: str = "entropy",
    bins: int = 24,
    values: Floats | None = None,
) -> float:
    """ρ_C by rounds that tried every block from the same states; V is of tables that never saw the prompt.

    `values` [rows, blocks] are these V if they are known from another load.
    """
    if values is None:
        values = out_of_fold(rounds, blocks, signal=signal, bins=bins)
    place = {block: np.flatnonzero(rounds.block == block) for block in blocks}
    states = [dict(zip(rounds.state[rows].tolist(), rows.tolist(), strict=True)) for rows in place.values()]
    common = sorted(set(states[0]).intersection(*states[1:]))
    rows = np.array([[by_state[state] for by_state in states] for state in common], np.int64)
    first = rows[:, 0]
    return best_rho(
        values[first],
        rounds.acceptance[rows].astype(np.float64),
        ms,
        rounds.weight[first],
        rounds.prompt[first],
    )
