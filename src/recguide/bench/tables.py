"""Rows of results as text: aligned for a terminal, or as a Markdown table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def cell(value: object) -> str:
    """A value as people read it: four significant digits, a dash for nothing, yes and no."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def text_table(rows: Sequence[Mapping[str, object]], columns: Mapping[str, str]) -> str:
    """`columns` maps keys of the rows to headings; a column of numbers is aligned to the right."""
    lines = _cells(rows, columns)
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    right = [_numeric(rows, key) for key in columns]
    return "\n".join(
        "  ".join(
            text.rjust(width) if numeric else text.ljust(width)
            for text, width, numeric in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def markdown_table(rows: Sequence[Mapping[str, object]], columns: Mapping[str, str]) -> str:
    """The same as GitHub-flavoured Markdown."""
    heading, *lines = [[text.replace("|", "\\|") for text in line] for line in _cells(rows, columns)]
    rule = ["---:" if _numeric(rows, key) else "---" for key in columns]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heading, rule, *lines))


def _cells(rows: Sequence[Mapping[str, object]], columns: Mapping[str, str]) -> list[list[str]]:
    return [list(columns.values()), *([cell(row.get(key)) for key in columns] for row in rows)]


def _numeric(rows: Sequence[Mapping[str, object]], key: str) -> bool:
    values = [row[key] for row in rows if row.get(key) is not None]
    return bool(values) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
