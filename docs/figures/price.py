"""Draws docs/figures/price.svg: how one step's price is found, and what it buys at each load.

Everything is what the policy itself computes, from the published statistics and an ideal engine's costs. Run:
python docs/figures/price.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from recguide.guidance.arrays import Floats
from recguide.guidance.beliefs import Beliefs
from recguide.guidance.clock import Clock
from recguide.guidance.ideal import ideal_cost
from recguide.guidance.merged import Merged
from recguide.guidance.step import base_of
from recguide.guidance.sweep import Swept
from recguide.guidance.value import prior
from recguide.guidance.view import View

OUTPUT = Path(__file__).with_suffix(".svg")
INK, FAINT, BLUE, RED, GREEN = "#24292f", "#d0d7de", "#2377cc", "#cf4520", "#2da44e"
PREFIX = 1000
LOAD = 16
LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
STYLE = {"svg.hashsalt": "recguide", "svg.fonttype": "none", "font.size": 9}

BELIEFS = Beliefs(prior())
CLOCK = Clock(ideal_cost("ideal-8b"))


def requests(load: int) -> View:
    """Every second one easy, as after two sure rounds and a full block of 32; the others hard."""
    easy = np.arange(load) % 2 == 0
    return View(
        draft=np.zeros(load, np.int64),
        margins=np.ones((load, 1)),
        signals=np.where(easy, -0.15, -0.9)[:, None] * np.ones(3),
        previous=np.where(easy, 32, 8),
        full=easy,
        idle=np.zeros(load, np.int64),
        prefix=np.full(load, PREFIX),
        remaining=np.full(load, 400),
    )


def time(load: int, n: Floats) -> Floats:
    return CLOCK.mean_ms(n, float(load * PREFIX))


def cut(load: int) -> tuple[float, float, float, Swept]:
    """N and Y at the best cut, its price, and the sweep."""
    seen = requests(load)
    swept = Merged(BELIEFS.menus).sweep(
        base_of(seen), BELIEFS.cell(seen), seen.prefix.astype(float), np.ones(load)
    )
    best = swept.best(lambda n, _: time(load, n))
    slope = best.gain / best.ms * CLOCK.slope_ms(best.tokens)
    return best.tokens, best.gain, min(max(slope, best.following), best.last), swept


def menus(axes: Any, price: float) -> None:  # noqa: ANN401  matplotlib is imported when it is used
    """Both menus' hulls, and what each takes at the price."""
    cells = BELIEFS.cell(requests(2))
    for cell, name, colour in zip(cells.tolist(), ("easy", "hard"), (BLUE, RED), strict=True):
        n, y = BELIEFS.menus.n[:, cell], BELIEFS.menus.y[:, cell]
        axes.plot(n, y, "o-", color=colour, markersize=3, linewidth=1.2, label=f"a request with {name} text")
        best = int((y - price * n).argmax())
        axes.plot(n[best], y[best], "o", color=colour, markersize=9, fillstyle="none")
        reach = np.array([max(0.0, n[best] - 14), n[best] + 14])
        axes.plot(reach, y[best] + price * (reach - n[best]), color=INK, linewidth=0.8, linestyle="--")
    axes.plot([], [], color=INK, linewidth=0.8, linestyle="--", label="slope μ, the price")
    axes.set(xlabel="query tokens a forward, n", ylabel="tokens a forward, y", xlim=(0, 75), ylim=(0, None))
    axes.set_title(f"What each may do, and takes at C = {LOAD}", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def sweep(axes: Any, swept: Swept, tokens: float) -> None:  # noqa: ANN401
    """Throughput over N, with the increments in the order of what they bring per token."""
    n = np.linspace(swept.tokens[0], min(swept.tokens[-1], 900), 500)
    rate = 1e3 * np.interp(n, swept.tokens, swept.gain) / time(LOAD, n)
    axes.plot(n, rate, color=GREEN, linewidth=1.6, label="Y(N) / T(N)")
    axes.axvline(tokens, color=INK, linewidth=0.8, linestyle="--")
    axes.annotate(f" N = {tokens:.0f}", (tokens, 1.5 * rate.min()), fontsize=8, color=INK)
    axes.plot(n[0], rate[0], "o", color=INK, markersize=5)
    axes.annotate(" all plain decoding", (n[0], rate[0]), fontsize=8, va="center", color=INK)
    axes.set(xlabel="query tokens of the forward, N", ylabel="tokens a second")
    axes.set_title(f"All menus merged, {LOAD} requests: the best cut", fontsize=10)


def loads(axes: Any) -> None:  # noqa: ANN401
    """Price and query tokens a request over the load."""
    found = [cut(load) for load in LOADS]
    axes.plot(LOADS, [price for *_, price, _ in found], "o-", color=INK, markersize=4, label="price μ")
    axes.set(xscale="log", xlabel="requests C", ylabel="price μ, tokens for a query token", ylim=(0, None))
    axes.set_xticks(LOADS, labels=list(map(str, LOADS)))
    axes.minorticks_off()
    other = axes.twinx()
    cells = BELIEFS.cell(requests(2)).tolist()
    for cell, name, colour in zip(cells, ("easy", "hard"), (BLUE, RED), strict=True):
        n, y = BELIEFS.menus.n[:, cell], BELIEFS.menus.y[:, cell]
        taken = [n[int((y - price * n).argmax())] for *_, price, _ in found]
        other.plot(LOADS, taken, "s:", color=colour, markersize=3, label=f"n, {name} text")
    other.set(yscale="log", ylabel="query tokens a forward, n")
    other.set_yticks([1, 4, 16, 64], labels=["1", "4", "16", "64"])
    other.minorticks_off()
    other.spines["top"].set_visible(False)
    lines = [*axes.get_lines(), *other.get_lines()]
    axes.legend(lines, [line.get_label() for line in lines], frameon=False, fontsize=8, loc="center left")
    axes.set_title("The price by load, and what it leaves to each", fontsize=10)


def main() -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    tokens, _, price, swept = cut(LOAD)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13.0, 4.0), layout="constrained")
        panels = figure.subplots(1, 3)
        menus(panels[0], price)
        sweep(panels[1], swept, tokens)
        loads(panels[2])
        for axes in panels:
            axes.spines["top"].set_visible(False)
            axes.grid(color=FAINT, linewidth=0.4)
        for axes in panels[:2]:
            axes.spines["right"].set_visible(False)
        figure.savefig(OUTPUT, metadata={"Date": None})


if __name__ == "__main__":
    main()
