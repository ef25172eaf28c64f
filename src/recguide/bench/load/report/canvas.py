"""Where pictures are drawn: SVG in the colours of its page, so that they follow light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, FAINT, BAD = "#010101", "#020202", "#030303"
SERIES = ("#040404", "#050505")
"""Stand-ins: colours that matplotlib writes down and `to_svg` replaces by the page's variables."""
_VARIABLES = {INK: "ink", FAINT: "faint", BAD: "bad", **{c: f"series-{i}" for i, c in enumerate(SERIES)}}
_STYLE: Mapping[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "recguide",
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
}


class Canvas:
    """Panels beside each other; used in a `with`, so that its style ends with it."""

    def __init__(self, *, panels: int = 1, width: float = 9.6, height: float = 3.0) -> None:
        self._style = rc_context(dict[Any, Any](_STYLE))
        self._size = (width, height)
        self._panels = panels

    def __enter__(self) -> Canvas:
        self._style.__enter__()
        self.figure = Figure(figsize=self._size, layout="constrained")
        self.figure.patch.set_visible(False)
        drawn = self.figure.subplots(1, self._panels, squeeze=False)
        self.axes: list[Axes] = list(drawn[0])
        for axes in self.axes:
            axes.patch.set_visible(False)
        return self

    def __exit__(self, *error: object) -> None:
        self._style.__exit__(None, None, None)

    def to_svg(self, label: str) -> str:
        """The picture as an element of a page; `label` is what a screen reader says."""
        stream = io.StringIO()
        self.figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        text = stream.getvalue()
        text = text[text.index("<svg") :]
        text = re.sub(r'(<g|<svg) id="[^"]*"', r"\1", text)  # several pictures on a page share no names
        text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
        for colour, variable in _VARIABLES.items():
            text = text.replace(colour, f"var(--{variable})")
        text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', "", text, count=1)
        return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
