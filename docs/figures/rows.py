"""Draws docs/figures/rows.svg: how the rows of one request share a forward.

The dots are what the engine's own visibility rule says, not a copy of it. Run: python docs/figures/rows.py
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import torch

from recguide.attention.packing import pack
from recguide.attention.visibility import visible
from recguide.speculation.rows import Branch, BranchKind, verify

OUTPUT = Path(__file__).with_suffix(".svg")

PREFIX = ("The", "old", "river")
BLOCK = ("runs", "down", "to", "the", "sea")
CANDIDATE, RISKY = "into", 2
MASK = -1
WORDS = dict(enumerate((*BLOCK, CANDIDATE))) | {MASK: "▢"}

CELL, LEFT, TOP = 26, 250, 132
INK, FAINT, PAPER = "#24292f", "#d0d7de", "#ffffff"
ROWS = (
    ("#2377cc", "causal row: verify the block", "the drafted block; logits at slot i judge slot i + 1"),
    (
        "#cf4520",
        "draft row: correction branch",
        f"if “{BLOCK[RISKY]}” fails and the verdict is “{CANDIDATE}”",
    ),
    ("#a94fc4", "draft row: continuation branch", "if the whole block passes"),
)


@dataclass
class Picture:
    """SVG elements, one a call."""

    parts: list[str] = field(default_factory=list[str])

    def box(self, x: float, y: float, width: float, height: float, fill: str, opacity: float = 1.0) -> None:
        place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
        self.parts.append(f'<rect {place} fill="{fill}" fill-opacity="{opacity}"/>')

    def dot(self, x: float, y: float, fill: str) -> None:
        self.parts.append(f'<circle cx="{x}" cy="{y}" r="7" fill="{fill}"/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = FAINT) -> None:
        self.parts.append(f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{stroke}"/>')

    def text(self, x: float, y: float, words: str, style: str = "", turn: int | None = None) -> None:
        turned = "" if turn is None else f' transform="rotate({turn} {x} {y})"'
        self.parts.append(f'<text x="{x}" y="{y}" {style}{turned}>{escape(words)}</text>')

    def svg(self, width: int, height: int) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">'
        )
        return "\n".join(
            [head, f'<rect width="{width}" height="{height}" fill="{PAPER}"/>', *self.parts, "</svg>\n"]
        )


def draw() -> str:
    block = len(BLOCK)
    branches = (
        Branch(BranchKind.CORRECTION, RISKY, block, head=block),
        Branch(BranchKind.CONTINUATION, block, block),
    )
    layout = verify(0, len(PREFIX), range(block), branches, mask=MASK, adapter=True)
    batch = pack(layout.rows, [[0]], page_size=16)
    seen = visible(batch, torch.arange(len(batch.tokens)))
    words = [WORDS[token] for token in batch.tokens.tolist()]
    return _paint(
        Picture(), words, batch.row.tolist(), batch.positions.tolist(), seen.tolist(), len(layout.rows)
    )


def _paint(
    picture: Picture,
    words: list[str],
    rows: list[int],
    positions: list[int],
    seen: list[list[bool]],
    count: int,
) -> str:
    keys = len(PREFIX) + len(words)
    width, height = LEFT + keys * CELL + 30, TOP + len(words) * CELL + 92
    right, bottom = LEFT + keys * CELL, TOP + len(words) * CELL
    picture.text(
        24, 34, "One forward, one read of the prefix, no padding", 'font-size="19" font-weight="600"'
    )
    picture.text(24, 56, "● = the token on the left sees the token above", 'fill="#57606a"')
    _columns(picture, words, rows)
    for index, word in enumerate(words):
        y = TOP + index * CELL
        colour = ROWS[rows[index]][0]
        picture.box(LEFT, y, right - LEFT, CELL, colour, 0.07)
        picture.text(LEFT - 14, y + 18, word, f'text-anchor="end" fill="{colour}" font-weight="600"')
        picture.text(
            LEFT - 92,
            y + 18,
            f"position {positions[index]}",
            'text-anchor="end" fill="#57606a" font-size="11"',
        )
        for key in range(keys):
            own = key - len(PREFIX)
            if own < 0 or seen[index][own]:
                picture.dot(
                    LEFT + key * CELL + CELL / 2, y + CELL / 2, INK if own < 0 else ROWS[rows[own]][0]
                )
    for index in range(keys + 1):
        picture.line(LEFT + index * CELL, TOP, LEFT + index * CELL, bottom)
    for index in range(len(words) + 1):
        new_row = index in (0, len(words)) or rows[index] != rows[index - 1]
        picture.line(
            24 if new_row else LEFT,
            TOP + index * CELL,
            right,
            TOP + index * CELL,
            "#8c959f" if new_row else FAINT,
        )
    for row in range(count):
        colour, name, purpose = ROWS[row]
        y = bottom + 28 + row * 22
        picture.box(24, y - 11, 13, 13, colour)
        picture.text(46, y, name, 'font-weight="600"')
        picture.text(330, y, purpose)
    return picture.svg(width, height)


def _columns(picture: Picture, words: list[str], rows: list[int]) -> None:
    for index, word in enumerate((*PREFIX, *words)):
        own = index - len(PREFIX)
        colour = INK if own < 0 else ROWS[rows[own]][0]
        x = LEFT + index * CELL + CELL / 2 + 4
        picture.text(x, TOP - 8, word, f'fill="{colour}" font-weight="600"', turn=-60)
    picture.text(LEFT, TOP - 58, "cached prefix", 'fill="#57606a" font-size="12"')


if __name__ == "__main__":
    OUTPUT.write_text(draw(), encoding="utf-8")
